package delivery

import (
	"testing"
	"time"
)

// TestLifetime checks that connections end before their certificates, with jitter.
func TestLifetime(t *testing.T) {
	for range 1000 {
		for _, left := range []time.Duration{24 * time.Hour, time.Minute, time.Second, 0, -time.Hour} {
			margin := left - Lifetime(left)
			if left > 0 && (margin < min(left/10, 10*time.Minute) || margin > left/5) || left <= 0 && Lifetime(left) > 0 {
				t.Fatalf("with a validity of %s the margin is %s", left, margin)
			}
		}
	}
}
