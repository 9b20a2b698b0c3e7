#!/usr/bin/env bash
# Runs the conformance suite of Gateway API for service meshes on the cluster of
# test/e2e/cluster.sh, in which the mesh must not be installed yet: once for each CLASS of
# sidecars (default envoy; several are separated by spaces; envoy-to-pipy has clients of one
# class and servers of another, and mixed is all such pairs), and with the core features alone
# for each class of CORE. RUN selects one test of the suite by its short name. The reports of
# complete runs go to docs/conformance/.
set -euo pipefail
cd "$(dirname "$0")/../.."

test/gateway/go.sh >/dev/null
suite=$PWD/bin/conformance.test
GOTOOLCHAIN=auto go test -C test/gateway -c -o "$suite" .
crds=$(GOTOOLCHAIN=auto go list -C test/gateway -m -f '{{.Dir}}' sigs.k8s.io/gateway-api)/config/crd/standard

name=${CLUSTER:-e2e}
. test/e2e/cluster.sh

# The server and the client of the suite's pods, in an image with the name that the suite
# asks for.
image=registry.k8s.io/gateway-api/conformance/echo-advanced:v0.1.0
for program in server client; do
	go build -C test/gateway/echo -ldflags='-s -w' -o "$PWD/bin/echo-$program" istio.io/istio/pkg/test/echo/cmd/$program
done
openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=echo -keyout bin/echo.key -out bin/echo.crt 2>/dev/null
if declare -F start >/dev/null; then
	start "$name"
	cluster image "$image" /usr/local/bin/server="$PWD/bin/echo-server" /usr/local/bin/client="$PWD/bin/echo-client" \
		/cert.crt="$PWD/bin/echo.crt" /cert.key="$PWD/bin/echo.key"
fi
kubectl=${KUBECTL:-kubectl}

"$kubectl" apply --server-side -f "$crds"
bin/outrigger install --set osm.enablePermissiveTrafficPolicy=true --timeout 5m

version=$(bin/outrigger version --client -o json | sed -n 's/.*"version": "\(.*\)".*/\1/p' | head -1)
mkdir -p docs/conformance
failed=0
times=()
# run CLIENTS-to-SERVERS [FLAG...]
run() {
	local clients=${1%-to-*} servers=${1#*-to-} log=bin/conformance-$1.log began=$SECONDS
	printf '\n== %s\n' "$1"
	# The namespaces of the former run may still be ending.
	"$kubectl" wait --for=delete --timeout=2m ns/gateway-conformance-mesh ns/gateway-conformance-mesh-consumer
	[ "$clients" != "$servers" ] || servers=
	# The suite logs every request, so only a failed run is printed completely.
	if SERVERS=$servers "$suite" -test.v -test.timeout "${TIMEOUT:-30m}" -test.run TestConformance \
		-conformance-profiles=MESH-HTTP,MESH-GRPC -mode="$1" \
		-namespace-labels=openservicemesh.io/monitored-by=osm \
		-namespace-annotations="openservicemesh.io/sidecar-injection=enabled,openservicemesh.io/sidecar-class=$clients" \
		-organization=outrigger-mesh -project=outrigger -url=https://github.com/outrigger-mesh/outrigger -version="$version" \
		-contact=https://github.com/outrigger-mesh/outrigger/issues "${@:2}" >"$log" 2>&1; then
		grep -E '^( {4})?--- PASS' "$log"
	else
		cat "$log"
		failed=1
	fi
	times+=("$(printf '%5d s  %s' $((SECONDS - began)) "$1")")
}
mixed='envoy-to-haproxy envoy-to-pipy haproxy-to-envoy haproxy-to-pipy pipy-to-envoy pipy-to-haproxy'
classes=${CLASS-envoy}
for class in ${classes/mixed/$mixed}; do
	report=(-report-output="$PWD/docs/conformance/$class.yaml")
	[ -z "${RUN:-}" ] || report=(-run-test="$RUN")
	run "$class" "${report[@]}"
done
for class in ${CORE:-}; do
	run "$class" -supported-features=Mesh,HTTPRoute,GRPCRoute -run-test="${RUN:-}"
done
printf '\n'
printf '%s\n' "${times[@]}"
exit $failed
