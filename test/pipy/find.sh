#!/usr/bin/env bash
# Prints the path of the Pipy that the tests run, $PIPY or the one in PATH. Nothing
# installs it: no registry carries a binary. Without one it fails and says so.
set -euo pipefail

if program=$(command -v "${PIPY:-pipy}"); then
	realpath "$program"
	exit 0
fi
echo "there is no Pipy here${PIPY:+, PIPY is \"$PIPY\"}: build flomesh-io/pipy 1.5.18 and set PIPY to it, or put it into PATH" >&2
exit 1
