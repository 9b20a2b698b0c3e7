#!/usr/bin/env bash
# Compiles what signs certificates in the tests of internal/identity/issuer from Go
# modules, into a cache outside the tree, and prints the folder that holds it.
#
#   build.sh certmanager|vault [--where]
#
# With --where it prints the folder and compiles nothing. What is compiled already is
# not compiled again: the folder's name is made of the sources, the versions in go.mod
# and go.sum, and the Go toolchain.
set -euo pipefail
program=${1:?certmanager or vault}
cd "$(dirname "$0")/$program"

cache=${OUTRIGGER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrigger}
key=$({ find . ../build.sh -type f -print0 | LC_ALL=C sort -z | xargs -0 cat; go env GOVERSION GOOS GOARCH; } | sha256sum | cut -c1-12)
assets=$cache/$program-$key

if [ "${2:-}" = --where ] || [ -e "$assets/done" ]; then
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

echo "compiling $program from Go modules (a few minutes, once)" >&2
mkdir -p "$assets"
CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$assets/$program" . 9>&- &
build=$!
started=$SECONDS
while kill -0 "$build" 2>/dev/null; do
	for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
		sleep 1
		kill -0 "$build" 2>/dev/null || break
	done
	echo "  ... $((SECONDS - started)) s" >&2
done
if ! wait "$build"; then
	echo "$program did not compile; see the errors above" >&2
	exit 1
fi
if [ "$program" = certmanager ]; then
	mkdir -p "$assets/crds"
	cp -f "$(go list -m -f '{{.Dir}}' github.com/cert-manager/cert-manager)"/deploy/crds/*.yaml "$assets/crds/"
	chmod -R u+w "$assets/crds"
fi
touch "$assets/done"
echo "$assets"
