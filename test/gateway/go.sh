#!/usr/bin/env bash
# Prints the version of Go that compiles the conformance suite, which the go command downloads
# where the installed one is older. Without it this fails with a message.
set -euo pipefail
cd "$(dirname "$0")"

if ! GOTOOLCHAIN=auto go env GOVERSION; then
	echo "the conformance suite needs Go $(sed -n 's/^go //p' go.mod) or newer, and the go command could not download it (see above): install it, or set GOPROXY to a module proxy that serves it" >&2
	exit 1
fi
