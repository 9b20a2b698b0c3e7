#!/usr/bin/env bash
# Prints the path of the Pipy for the tests: $PIPY or the one in PATH. It must be built by
# hand, since no registry has a binary. Without Pipy this fails with a message.
set -euo pipefail

if program=$(command -v "${PIPY:-pipy}"); then
	realpath "$program"
	exit 0
fi
echo "Pipy is not installed${PIPY:+, PIPY is \"$PIPY\"}: build flomesh-io/pipy 1.5.18 and set PIPY to the program's path, or put it into PATH" >&2
exit 1
