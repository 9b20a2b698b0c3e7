package record

import "testing"

// BenchmarkRecord counts a line of HAProxy's.
func BenchmarkRecord(b *testing.B) {
	counter := newTestCounter()
	line := []byte("<30>1 2026-11-24T22:54:44.123456Z - haproxy 15 - line=15/4711 record=1795560884000400-1795560884000000;120;459;r0;destination;http;200;;tls;" + webPeer + ";; --;\n")
	twins := newTwins(maxSingles)
	b.ReportAllocs()
	for b.Loop() {
		if !twins.isSecond(line) {
			counter.count(line)
		}
	}
}
