#!/usr/bin/env bash
# Prints the path of the Chromium for the tests. If there is none, it installs Debian's
# package and a font with the symbols of the page, which needs root. With --where it installs
# nothing.
set -euo pipefail

find_chromium() {
	if [ -n "${CHROMIUM:-}" ]; then
		command -v "$CHROMIUM" && return
		echo "CHROMIUM is $CHROMIUM, which is not a program" >&2
		exit 1
	fi
	command -v chromium
}

if find_chromium; then
	exit 0
fi
if [ "${1:-}" = --where ]; then
	exit 1
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "Chromium is not installed, so its tests are skipped: install the package chromium, or set CHROMIUM to the program's path" >&2
	exit 1
fi
echo "installing Debian's chromium" >&2
{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-noto-color-emoji; } >&2
find_chromium || {
	echo "the package chromium contains no program chromium" >&2
	exit 1
}
