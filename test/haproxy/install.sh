#!/usr/bin/env bash
# Prints the path of the HAProxy for the tests. If there is none, it installs Debian's
# package, which needs root. With --where it installs nothing.
set -euo pipefail

find_haproxy() {
	if [ -n "${HAPROXY:-}" ]; then
		command -v "$HAPROXY" && return
		echo "HAPROXY is $HAPROXY, which is not a program" >&2
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
	echo "HAProxy is not installed, so its tests are skipped: install the package haproxy, 2.6 or later, or set HAPROXY to the program's path" >&2
	exit 1
fi
echo "installing Debian's haproxy" >&2
{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends haproxy; } >&2
find_haproxy || {
	echo "the package haproxy contains no program haproxy" >&2
	exit 1
}
