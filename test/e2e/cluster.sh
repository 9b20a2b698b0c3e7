# Sourced from the repository's folder by scripts that test on a cluster: the one of
# KUBECONFIG, whose nodes must have the images, or a new one that is removed when the script
# ends. CLUSTER is the new cluster's name and KEEP=1 leaves it running. The function "cluster"
# is defined only for a new cluster.
make --no-print-directory build
if [ -z "${KUBECONFIG:-}" ]; then
	test/cluster/install.sh
	name=${CLUSTER:-e2e}
	go build -C test/cluster -o "$PWD/bin/cluster" .
	cluster() { (cd test/cluster && ../../bin/cluster -name "$name" "$@"); }
	[ -n "${KEEP:-}" ] || trap 'cluster down' EXIT
	KUBECONFIG=$(cluster up)
	export KUBECONFIG
	export KUBECTL=${KUBECONFIG%/*}/bin/kubectl

	export E2E_CNI_CONF=${KUBECONFIG%/*}/config/cni E2E_CNI_BIN=${KUBECONFIG%/*}/bin

	make --no-print-directory images RELEASE="-local -platforms linux/$(go env GOARCH)"
	cluster load "$PWD/dist/images"
	# Images of the proxies installed here, with the vendors' names and paths.
	E2E_CLASSES=
	add() { # CLASS PATH FILE
		local image
		image=$(printf 'apiVersion: v1\nkind: Pod\nmetadata: {name: a, annotations: {openservicemesh.io/sidecar-class: %s}}\nspec: {containers: [{name: a, image: a}]}\n' "$1" |
			bin/outrigger inject -f - 2>/dev/null | grep -oE "docker.io/[a-z/]+/$1:[a-z0-9.]+")
		cluster image "$image" "$2=$3"
		E2E_CLASSES=${E2E_CLASSES:+$E2E_CLASSES,}$1
	}
	if program=$(test/envoy/install.sh); then add envoy /usr/local/bin/envoy "$program"; else echo 'SKIPPED: Envoy, which is not installed' >&2; fi
	if program=$(test/haproxy/install.sh); then add haproxy /usr/local/sbin/haproxy "$program"; else echo 'SKIPPED: HAProxy, which is not installed' >&2; fi
	if program=$(test/pipy/find.sh); then add pipy /usr/local/bin/pipy "$program"; else echo 'SKIPPED: Pipy, which is not installed' >&2; fi
	export E2E_CLASSES
	export E2E_NODE=$PWD/bin/cluster CLUSTER=$name
fi
