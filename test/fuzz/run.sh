#!/usr/bin/env bash
# Runs every fuzz target for FUZZTIME, and ends at the first that fails.
set -euo pipefail
cd "$(dirname "$0")/../.."
fuzztime=${FUZZTIME:-60s}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Go before 1.27 sometimes reports the end of the time as a failure of the target, which is
# https://go.dev/issue/75804. It then writes this line alone. A failing input is written with
# the place in the test, and a panic with its stack.
time_is_over() {
	local target=$1
	[ "$(grep -cE '^ *--- FAIL' "$log")" = 1 ] &&
		[ "$(grep -A1 "^--- FAIL: $target " "$log" | tail -n +2)" = "    context deadline exceeded" ] &&
		! grep -qE '^(panic:|fatal error:)|Failing input written' "$log"
}

grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9]+' . | sort | while IFS=: read -r file func; do
	target=${func#func }
	folder=$(dirname "$file")
	echo "fuzz $target in $folder for $fuzztime"
	if ! go test -run='^$' -fuzz="^$target\$" -fuzztime="$fuzztime" -fuzzminimizetime=1x "$folder" >"$log" 2>&1 &&
		! time_is_over "$target"; then
		cat "$log"
		exit 1
	fi
done
