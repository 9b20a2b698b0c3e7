package identity

import (
	"net/netip"
	"testing"
	"time"
)

// TestRateForgets checks that many addresses use a bounded amount of memory, and that the
// limit of an address recovers only over time.
func TestRateForgets(t *testing.T) {
	r := newRate(100)
	now := time.Now()
	for i := range 10_000 {
		r.take(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), now)
	}
	if len(r.by) > 100 {
		t.Errorf("%d addresses are remembered, want at most 100", len(r.by))
	}
	one := netip.MustParseAddr("10.255.0.1")
	taken := func(now time.Time) (n int) {
		for range 1000 {
			if r.take(one, now) {
				n++
			}
		}
		return n
	}
	if got := taken(now); got != maxRefusals {
		t.Errorf("%d requests are taken at once, want %d", got, maxRefusals)
	}
	if got := taken(now.Add(10 * time.Second)); got != 10*refusalsPerSecond {
		t.Errorf("%d requests are taken after ten seconds, want %d", got, 10*refusalsPerSecond)
	}
	granted := netip.MustParseAddr("10.255.0.2")
	for i := range 300 {
		if !r.take(granted, now) {
			t.Fatalf("request %d is refused although all before were granted", i)
		}
		r.refund(granted)
	}
}
