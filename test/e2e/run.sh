#!/usr/bin/env bash
# Runs the end-to-end tests on the cluster of cluster.sh. RUN selects tests as 'go test -run'
# does.
set -euo pipefail
cd "$(dirname "$0")/../.."

. test/e2e/cluster.sh
if declare -F cluster >/dev/null; then
	# The release that upgrades start from: it differs only in its version.
	module=$(go list -m)
	go build -ldflags="-s -w -X $module/internal/version.Number=0.0.9 -X $module/charts/outrigger.releasedVersion=0.0.9" -o bin/outrigger-before ./cmd/outrigger
	make --no-print-directory images RELEASE="-local -platforms linux/$(go env GOARCH) -version 0.0.9 -o dist/before"
	cluster load "$PWD/dist/before/images"
	# The image of the tests' pods, with tar for 'kubectl cp'.
	go build -o bin/e2e-app ./test/e2e/app
	cluster image docker.io/outriggermesh/e2e-app:0.1.0 /app="$PWD/bin/e2e-app" /bin/tar="$(command -v tar)"
fi
go test -tags grpcnotrace,e2e -count=1 -v -timeout "${TIMEOUT:-30m}" -run "${RUN:-.}" ./test/e2e
