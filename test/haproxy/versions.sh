#!/usr/bin/env bash
# Runs the tests of the HAProxy driver, its conformance suite and some rows of the behaviour
# table with other versions of HAProxy than the installed one: those given as arguments, by
# default all that install.sh knows, among them that of the default image. The rows are those that
# depend on the version most.
set -euo pipefail
cd "$(dirname "$0")/../.."

rows='Key exchange|Denied by default|Allowed by path|A header given twice|A request within another|Broken messages'
rows+='|TCP|Server-first TCP|gRPC streaming|Cut messages of.*|WebSocket|IPv6|Idle connections'
rows+='|Retry|Timeout|Outlier ejection|One endpoint for one user|Rate limit|Requests per connection|External authorization'
rows+='|HTTPRoute: matches|HTTPRoute: mirrors|HTTPRoute: retries of any status code|HTTPRoute: sessions by cookie'
rows+='|Long connections|A permission ends|Certificates are renewed|The root is rotated|The proxy is upgraded'
rows+='|Egress by server name|Plaintext taken while moving in|Access logs|Reasons of refusals|Counts of requests'

[ $# != 0 ] || set -- 3.0 3.2
for version; do
	if ! HAPROXY=$(HAPROXY_VERSION=$version test/haproxy/install.sh); then
		echo "SKIPPED: the tests with HAProxy $version, which can't be had here" >&2
		continue
	fi
	export HAPROXY
	echo "== HAProxy $version: $("$HAPROXY" -v | head -n 1)"
	go test ./drivers/haproxy -count=1 -timeout 20m
	go test ./drivers/standard -count=1 -timeout 20m -run 'TestConformance/haproxy'
	go test ./test/behaviour -count=1 -timeout 40m -run "TestBehaviour/(haproxy-to-haproxy|envoy-to-haproxy|haproxy-to-envoy)/($rows)\$"
done
