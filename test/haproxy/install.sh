#!/usr/bin/env bash
# Finds the HAProxy that the tests run, and installs Debian's package where there is none
# and this is root, and prints the program's path. With --where it installs nothing.
set -euo pipefail

find_haproxy() {
	if [ -n "${HAPROXY:-}" ]; then
		command -v "$HAPROXY" && return
		echo "HAPROXY is $HAPROXY, which is no program" >&2
		exit 1
	fi
	command -v haproxy || PATH=/usr/sbin command -v haproxy
}

if find_haproxy; then
	exit 0
fi
if [ "${1:-}" = --where ]; then
	exit 1
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "there is no HAProxy here, so its tests are skipped: install the package haproxy, 2.6 or later, or set HAPROXY to the path of one" >&2
	exit 1
fi
echo "installing Debian's haproxy" >&2
{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends haproxy; } >&2
find_haproxy || {
	echo "the package haproxy has brought no program haproxy" >&2
	exit 1
}
