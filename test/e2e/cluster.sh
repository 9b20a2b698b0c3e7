# Sourced from the repository's folder by scripts that test on a cluster. With KUBECONFIG they
# use that one, whose nodes must have the images. Otherwise this builds the images, and the
# function "start" is defined, which starts a new cluster; it is removed when the script ends,
# unless KEEP=1.
make --no-print-directory build
if [ -z "${KUBECONFIG:-}" ]; then
	test/cluster/install.sh
	go build -C test/cluster -o "$PWD/bin/cluster" .
	make --no-print-directory images RELEASE="-local -platforms linux/$(go env GOARCH)"
	trap 'remove' EXIT

	# Acts on the cluster that was started last.
	cluster() { (cd test/cluster && ../../bin/cluster -name "$CLUSTER" "$@"); }
	# Removes the cluster that was started last.
	remove() { [ -n "${KEEP:-}" ] || [ -z "${KUBECONFIG:-}" ] || cluster down; }

	# start NAME starts a cluster, loads the images and exports what kubectl and the tests need.
	start() {
		export CLUSTER=$1
		KUBECONFIG=$(cluster up)
		export KUBECONFIG
		local dir=${KUBECONFIG%/*}
		export KUBECTL=$dir/bin/kubectl E2E_NODE=$PWD/bin/cluster E2E_CNI_CONF=$dir/config/cni E2E_CNI_BIN=$dir/bin
		# kubectl remembers for six hours what the server at an address serves, and the next
		# cluster there may be of another release.
		export KUBECACHEDIR=$dir/cache
		cluster load "$PWD/dist/images"
		export E2E_CLASSES=
		local program
		if program=$(test/envoy/install.sh); then add envoy /usr/local/bin/envoy "$program"; else echo 'SKIPPED: Envoy, which is not installed' >&2; fi
		if program=$(test/haproxy/install.sh); then add haproxy /usr/local/sbin/haproxy "$program"; else echo 'SKIPPED: HAProxy, which is not installed' >&2; fi
		if program=$(test/pipy/find.sh); then add pipy /usr/local/bin/pipy "$program"; else echo 'SKIPPED: Pipy, which is not installed' >&2; fi
	}
	# add CLASS PATH FILE loads an image of a proxy installed here, with the vendor's name and path.
	add() {
		local image
		image=$(printf 'apiVersion: v1\nkind: Pod\nmetadata: {name: a, annotations: {openservicemesh.io/sidecar-class: %s}}\nspec: {containers: [{name: a, image: a}]}\n' "$1" |
			bin/outrigger inject -f - 2>/dev/null | grep -oE "docker.io/[a-z/]+/$1:[a-z0-9.]+" | sort -u)
		cluster image "$image" "$2=$3"
		# For upgrades of running pods.
		cluster image "$image-next" "$2=$3"
		E2E_CLASSES=${E2E_CLASSES:+$E2E_CLASSES,}$1
	}
fi
