#!/usr/bin/env bash
# Compiles programs of Kubernetes from Go modules into a cache outside the tree and prints
# the folder that holds them: 'build.sh apiserver' kube-apiserver and etcd, 'build.sh
# containerd' the container runtime and network plug-ins, 'build.sh node' all others that a
# node and its control plane need. With --where it prints the folder and compiles nothing. What is compiled already is not compiled again: the folder's name is
# made of the versions that go.mod, go.sum and the Go toolchain give. The environment variable
# KUBERNETES_VERSION, such as 1.37.2, stands for another release than that of go.mod.
set -euo pipefail

where=
if [ "${1:-}" = --where ]; then
	where=yes
	shift
fi
set=${1:-apiserver}
case $set in
apiserver) packages=(k8s.io/kubernetes/cmd/kube-apiserver ./etcd) minutes=6 ;;
containerd) packages=(tool) minutes=3 ;;
node) packages=(tool ./coredns ./pause) minutes=8 ;;
*)
	echo "build.sh: there are no programs \"$set\": give apiserver, containerd or node" >&2
	exit 2
	;;
esac
cd "$(dirname "$0")/$set"
# The flags of the product's own programs are not for these.
export GOFLAGS= CGO_ENABLED=0

cache=${OUTRIGGER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrigger}
other=${KUBERNETES_VERSION:-}
[ "$set" != containerd ] || other=
key=$(cat go.mod go.sum ../build.sh <(go env GOVERSION GOOS GOARCH; echo "$other") | sha256sum | cut -c1-12)
assets=$cache/kubernetes-$set-$key

if [ -n "$where" ] || [ -e "$assets/done" ]; then
	echo "$assets"
	exit 0
fi

mkdir -p "$cache"
# Two test runs at once must not compile twice into one folder.
exec 9>"$assets.lock"
flock 9
if [ -e "$assets/done" ]; then
	echo "$assets"
	exit 0
fi

started=$SECONDS
echo "compiling Kubernetes' programs ($set) from Go modules (about $minutes minutes on two cores, once)" >&2
mkdir -p "$assets"
if [ -n "$other" ]; then
	# The libraries of release 1.x have the version 0.x.
	cp -r . "$assets/source"
	cd "$assets/source"
	pinned=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
	sed -i "s/ $pinned\\b/ v$other/; s/ v0${pinned#v1}\\b/ v0${other#1}/" go.mod
	go mod tidy >&2
fi
# A module build knows no version of its own, and clients ask the server for it.
flags="-s -w"
if [ "$set" != containerd ]; then
	version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
	minor=${version#v1.} minor=${minor%%.*}
	stamp=k8s.io/component-base/version
	flags+=" -X $stamp.gitVersion=$version -X $stamp.gitMajor=1 -X $stamp.gitMinor=$minor"
fi
go build -trimpath -o "$assets/" -ldflags "$flags" "${packages[@]}" 9>&- &
build=$!
while kill -0 "$build" 2>/dev/null; do
	for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
		sleep 1
		kill -0 "$build" 2>/dev/null || break
	done
	echo "  ... $((SECONDS - started)) s" >&2
done
if ! wait "$build"; then
	echo "Kubernetes' programs ($set) did not compile; see the errors above" >&2
	exit 1
fi
rm -rf "$assets/source"
touch "$assets/done"
echo "$assets"
