#!/usr/bin/env bash
# Installs the Debian packages that a node needs and that are missing. It needs root.
set -euo pipefail

missing=()
need() { # PROGRAM PACKAGE
	PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null || missing+=("$2")
}
need runc runc
need nft nftables
need ip iproute2
need conntrack conntrack
if [ ${#missing[@]} = 0 ]; then
	exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "a cluster on this machine needs the packages ${missing[*]}: install them, or set KUBECONFIG to use another cluster" >&2
	exit 1
fi
echo "installing Debian's ${missing[*]}" >&2
{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >&2
