#!/usr/bin/env bash
# Runs the end-to-end tests. RUN selects tests as 'go test -run' does. Without RUN and
# KUBECONFIG, groups of steps run at once, each on a cluster of its own, since they mostly wait.
set -euo pipefail
cd "$(dirname "$0")/../.."

. test/e2e/cluster.sh
run() { go test -tags grpcnotrace,e2e -count=1 -v -timeout "${TIMEOUT:-60m}" -run "$1" ./test/e2e; }
if ! declare -F start >/dev/null; then
	run "${RUN:-.}"
	exit
fi

# The release that upgrades start from: it differs only in its version.
module=$(go list -m)
go build -ldflags="-s -w -X $module/internal/version.Number=0.1.0 -X $module/charts/outrigger.releasedVersion=0.1.0" -o bin/outrigger-before ./cmd/outrigger
make --no-print-directory images RELEASE="-local -platforms linux/$(go env GOARCH) -version 0.1.0 -o dist/before"
go build -o bin/e2e-app ./test/e2e/app

# start_for_tests NAME starts a cluster that has the former release and the application of the
# tests' pods too, with tar for 'kubectl cp'.
start_for_tests() {
	start "$1"
	cluster load "$PWD/dist/before/images"
	cluster image docker.io/outriggermesh/e2e-app:0.2.0 /app="$PWD/bin/e2e-app" /bin/tar="$(command -v tar)"
}
name=${CLUSTER:-e2e}
if [ -n "${RUN:-}" ]; then
	start_for_tests "$name"
	run "$RUN"
	exit
fi

# steps NAME PATTERN runs steps on a new cluster, and prefixes their output.
steps() {
	(
		trap 'remove >/dev/null 2>&1' EXIT
		began=$SECONDS
		start_for_tests "$name-$1"
		run "TestMesh/^(install|$2)\$"
		echo "$((SECONDS - began)) s"
	) 2>&1 | sed -u "s/^/[$1] /"
}
# Each job is a process group, which ends with this script.
set -m
jobs=()
trap 'for job in "${jobs[@]}"; do kill -- "-$job" 2>/dev/null || true; done; wait' EXIT
steps sample 'operate|cni|bookstore|gateway|pods|kubelet|upgrade' & jobs+=($!)
steps failures 'killed|silent_node|away' & jobs+=($!)
steps life 'soak|lifecycle|quick_start|migration' & jobs+=($!)
failed=0
for job in "${jobs[@]}"; do wait "$job" || failed=1; done
jobs=()
# Alone: its pods need nearly all inotify instances that one user of this machine may have.
steps node 'full_node' & jobs+=($!)
wait "${jobs[0]}" || failed=1
exit $failed
