#!/usr/bin/env bash
# Builds the dashboard's page into dist, which is committed. With --check it builds it elsewhere
# and fails if the committed files differ; without npm it says that it checks nothing.
set -euo pipefail
cd "$(dirname "$0")"

if ! command -v npm >/dev/null; then
	echo "SKIPPED: building the dashboard's page, because npm is not installed" >&2
	if [ "${1:-}" = --check ]; then exit 0; fi
	exit 1
fi
if grep -q '"resolved"' package-lock.json; then
	echo "package-lock.json names a registry: run 'npm install' in this folder, whose .npmrc leaves it out" >&2
	exit 1
fi
if ! output=$(npm ci --no-audit --no-fund 2>&1); then
	echo "$output" >&2
	if [ "${1:-}" = --check ] && grep -qE 'code (ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH)' <<<"$output"; then
		echo "SKIPPED: checking the dashboard's page, because no registry of npm can be reached" >&2
		exit 0
	fi
	exit 1
fi
if [ "${1:-}" != --check ]; then
	npm run build >&2
	exit 0
fi
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
npm run build -- --outDir "$built" >&2
if ! diff -r "$built" dist >&2; then
	echo "internal/dashboard/web/dist is not what its sources build: run 'make dashboard' and commit the result" >&2
	exit 1
fi
