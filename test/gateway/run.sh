#!/usr/bin/env bash
# Runs the conformance suite of Gateway API on the cluster of test/e2e/cluster.sh, in which the
# mesh must not be installed yet: once for each CLASS of proxies (default envoy; several are
# separated by spaces). With PROFILE=mesh, the default, the classes are those of sidecars:
# envoy-to-pipy has clients of one class and servers of another, and mixed is all such pairs; each
# class of CORE runs with the core features alone. With PROFILE=gateway, they are the classes of
# gateways and of the sidecars of their servers. RUN selects one test of the suite by its short
# name. The reports of complete runs go to docs/conformance/.
set -euo pipefail
cd "$(dirname "$0")/../.."

profile=${PROFILE:-mesh}
case $profile in
mesh | gateway) ;;
*)
	echo "there is no PROFILE=$profile; use mesh or gateway" >&2
	exit 2
	;;
esac
test/gateway/go.sh >/dev/null
suite=$PWD/bin/conformance.test
GOTOOLCHAIN=auto go test -C test/gateway -c -o "$suite" .
crds=$(GOTOOLCHAIN=auto go list -C test/gateway -m -f '{{.Dir}}' sigs.k8s.io/gateway-api)/config/crd/standard

name=${CLUSTER:-e2e}
. test/e2e/cluster.sh

# Programs of the suite's pods, in images with the names that the suite asks for.
images=registry.k8s.io/gateway-api/conformance
if [ "$profile" = mesh ]; then
	for program in server client; do
		go build -C test/gateway/echo -ldflags='-s -w' -o "$PWD/bin/echo-$program" istio.io/istio/pkg/test/echo/cmd/$program
	done
	openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=echo -keyout bin/echo.key -out bin/echo.crt 2>/dev/null
else
	GOTOOLCHAIN=auto go build -C test/gateway -ldflags='-s -w' -o "$PWD/bin/echo-basic" sigs.k8s.io/gateway-api-conformance-images/echo-basic
fi
# How to run the suite, which calls the gateways: a new cluster has no load balancer, so their
# addresses are inside it.
within=()
if declare -F start >/dev/null; then
	start "$name"
	if [ "$profile" = mesh ]; then
		cluster image $images/echo-advanced:v0.1.0 /usr/local/bin/server="$PWD/bin/echo-server" /usr/local/bin/client="$PWD/bin/echo-client" \
			/cert.crt="$PWD/bin/echo.crt" /cert.key="$PWD/bin/echo.key"
	else
		# The server for UDP has a newer image, but the pods of both have to be ready.
		cluster image $images/echo-basic:v0.1.0 /echo-basic="$PWD/bin/echo-basic"
		cluster image $images/echo-basic:v0.2.0 /echo-basic="$PWD/bin/echo-basic"
		within=(bin/cluster -name "$CLUSTER" run)
	fi
fi
kubectl=${KUBECTL:-kubectl}

"$kubectl" apply --server-side -f "$crds"
install=(--set osm.enablePermissiveTrafficPolicy=true --timeout 5m)
[ "$profile" = mesh ] || install+=(--set gateways.enabled=true --set 'gateways.certificateNamespaces={*}')
bin/outrigger install "${install[@]}"

version=$(bin/outrigger version --client -o json | sed -n 's/.*"version": "\(.*\)".*/\1/p' | head -1)
mkdir -p docs/conformance
failed=0
times=()
# run CLIENTS-to-SERVERS [FLAG...]
run() {
	local clients=${1%-to-*} servers=${1#*-to-} log=bin/conformance-$1.log began=$SECONDS
	printf '\n== %s\n' "$1"
	# The namespaces of the former run may still be ending.
	"$kubectl" wait --for=delete --timeout=2m "${namespaces[@]}"
	[ "$clients" != "$servers" ] || servers=
	# The suite logs every request, so only a failed run is printed completely.
	if SERVERS=$servers "${within[@]}" "$suite" -test.v -test.timeout "${TIMEOUT:-60m}" -test.run TestConformance \
		-mode="$1" \
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
if [ "$profile" = gateway ]; then
	namespaces=(ns/gateway-conformance-infra ns/gateway-conformance-app-backend ns/gateway-conformance-web-backend)
else
	namespaces=(ns/gateway-conformance-mesh ns/gateway-conformance-mesh-consumer)
fi
mixed='envoy-to-haproxy envoy-to-pipy haproxy-to-envoy haproxy-to-pipy pipy-to-envoy pipy-to-haproxy'
classes=${CLASS-envoy}
for class in ${classes/mixed/$mixed}; do
	if [ "$profile" = gateway ]; then
		of=(-gateway-class="outrigger-$class" -conformance-profiles=GATEWAY-HTTP,GATEWAY-GRPC,GATEWAY-TLS,GATEWAY-TCP)
		report=docs/conformance/gateway-$class.yaml
	else
		of=(-conformance-profiles=MESH-HTTP,MESH-GRPC)
		report=docs/conformance/$class.yaml
	fi
	if [ -z "${RUN:-}" ]; then of+=(-report-output="$PWD/$report"); else of+=(-run-test="$RUN"); fi
	run "$class" "${of[@]}"
done
for class in ${CORE:-}; do
	run "$class" -conformance-profiles=MESH-HTTP,MESH-GRPC -supported-features=Mesh,HTTPRoute,GRPCRoute -run-test="${RUN:-}"
done
printf '\n'
printf '%s\n' "${times[@]}"
exit $failed
