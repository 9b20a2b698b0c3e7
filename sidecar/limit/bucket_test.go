package limit_test

import (
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/limit"
)

// TestBucket has requests come faster than anybody has reason to send them.
func TestBucket(t *testing.T) {
	const perSecond, atOnce = 200, 4000
	now := time.Now()
	b := limit.Bucket{PerSecond: perSecond, AtOnce: atOnce}
	for i := range atOnce {
		if wait := b.Take(now); wait > 0 {
			t.Fatalf("request %d waits %s", i, wait)
		}
	}
	if wait := b.Take(now); wait <= 0 || wait > 2*time.Second/perSecond {
		t.Errorf("one too many waits %s", wait)
	}
	if wait := b.Take(now.Add(time.Hour)); wait > 0 {
		t.Errorf("an hour later one waits %s", wait)
	}
}
