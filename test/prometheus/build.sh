#!/usr/bin/env bash
# Compiles Prometheus and promtool from Go modules into a cache outside the tree and prints
# the folder that holds them. With --where it prints the folder and compiles nothing. What is
# compiled already is not compiled again: the folder's name is made of the versions that
# go.mod, go.sum and the Go toolchain give.
set -euo pipefail
cd "$(dirname "$0")"
# The flags of the product's own programs are not for these. Without the tag, service discovery
# would add the clients of all clouds; the tests need only lists of targets in files.
export GOFLAGS= CGO_ENABLED=0
tags=remove_all_sd

cache=${OUTRIGGER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrigger}
key=$(cat go.mod go.sum build.sh <(go env GOVERSION GOOS GOARCH) | sha256sum | cut -c1-12)
assets=$cache/prometheus-$key

if [ "${1:-}" = --where ] || [ -e "$assets/done" ]; then
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

echo "compiling Prometheus from Go modules (about 3 minutes on two cores, once)" >&2
mkdir -p "$assets"
go build -trimpath -tags "$tags" -ldflags '-s -w' -o "$assets/" tool 9>&- &
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
	echo "Prometheus did not compile; see the errors above" >&2
	exit 1
fi
touch "$assets/done"
echo "$assets"
