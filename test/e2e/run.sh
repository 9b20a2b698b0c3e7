#!/usr/bin/env bash
# Runs the end-to-end tests on the cluster of cluster.sh. RUN selects tests as 'go test -run'
# does.
set -euo pipefail
cd "$(dirname "$0")/../.."

. test/e2e/cluster.sh
go test -tags grpcnotrace,e2e -count=1 -v -timeout "${TIMEOUT:-30m}" -run "${RUN:-.}" ./test/e2e
