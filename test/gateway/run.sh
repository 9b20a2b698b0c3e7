#!/usr/bin/env bash
# Runs the conformance suite of Gateway API for service meshes on the cluster of
# test/e2e/cluster.sh, in which the mesh must not be installed yet: once for each CLASS of
# sidecars (default envoy; several are separated by spaces; envoy-to-pipy has clients of one
# class and servers of another), and with the core features alone for each class of CORE. RUN
# selects one test of the suite by its short name. The reports go to docs/conformance/.
set -euo pipefail
cd "$(dirname "$0")/../.."

. test/e2e/cluster.sh
kubectl=${KUBECTL:-kubectl}

# The server and the client of the suite's pods, in an image with the name that the suite
# asks for.
image=registry.k8s.io/gateway-api/conformance/echo-advanced:v0.1.0
for program in server client; do
	go build -C test/gateway/echo -ldflags='-s -w' -o "$PWD/bin/echo-$program" istio.io/istio/pkg/test/echo/cmd/$program
done
openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=echo -keyout bin/echo.key -out bin/echo.crt 2>/dev/null
[ -z "${E2E_NODE:-}" ] || cluster image "$image" /usr/local/bin/server="$PWD/bin/echo-server" \
	/usr/local/bin/client="$PWD/bin/echo-client" /cert.crt="$PWD/bin/echo.crt" /cert.key="$PWD/bin/echo.key"

# The suite wants a newer Go than the product, which is downloaded even if GOTOOLCHAIN=local.
export GOTOOLCHAIN
GOTOOLCHAIN=$(sed -n 's/^toolchain //p' test/gateway/go.mod)
crds=$(go list -C test/gateway -m -f '{{.Dir}}' sigs.k8s.io/gateway-api)/config/crd/standard
"$kubectl" apply --server-side -f "$crds"
bin/outrigger install --set osm.enablePermissiveTrafficPolicy=true --timeout 5m

features=Mesh,HTTPRoute,GRPCRoute,MeshClusterIPMatching,MeshConsumerRoute,MeshHTTPRouteRewritePath,MeshHTTPRouteSchemeRedirect
features=$features,MeshHTTPRouteRedirectPort,MeshHTTPRouteRedirectPath,MeshHTTPRouteBackendRequestHeaderModification
features=$features,MeshHTTPRouteQueryParamMatching,MeshHTTPRouteNamedRouteRule,HTTPRouteResponseHeaderModification,HTTPRouteParentRefPort
features=$features,HTTPRoute303RedirectStatusCode,HTTPRoute307RedirectStatusCode,HTTPRoute308RedirectStatusCode
version=$(bin/outrigger version --client -o json | sed -n 's/.*"version": "\(.*\)".*/\1/p' | head -1)
core=Mesh,HTTPRoute,GRPCRoute
mkdir -p docs/conformance
failed=0
# run CLIENTS-to-SERVERS FEATURES [FLAG...]
run() {
	local clients=${1%-to-*} servers=${1#*-to-}
	printf '\n== %s\n' "$1"
	# The namespaces of the former run may still be ending.
	"$kubectl" wait --for=delete --timeout=2m ns/gateway-conformance-mesh ns/gateway-conformance-mesh-consumer
	[ "$clients" != "$servers" ] || servers=
	SERVERS=$servers go test -C test/gateway -count=1 -v -timeout "${TIMEOUT:-30m}" -run TestConformance . -args \
		-conformance-profiles=MESH-HTTP,MESH-GRPC -supported-features="$2" -mode="$1" \
		-namespace-labels=openservicemesh.io/monitored-by=osm \
		-namespace-annotations="openservicemesh.io/sidecar-injection=enabled,openservicemesh.io/sidecar-class=$clients" \
		-organization=outrigger-mesh -project=outrigger -url=https://github.com/outrigger-mesh/outrigger -version="$version" \
		-contact=https://github.com/outrigger-mesh/outrigger/issues \
		${RUN:+-run-test="$RUN"} "${@:3}" | grep -v -e '--- SKIP' || failed=1
}
for class in ${CLASS-envoy}; do
	run "$class" "$features" -report-output="$PWD/docs/conformance/$class.yaml"
done
for class in ${CORE:-}; do
	run "$class" "$core"
done
exit $failed
