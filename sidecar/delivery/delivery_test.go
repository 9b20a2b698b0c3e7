package delivery

import (
	"testing"
	"time"
)

// TestLifetime has connections end before their certificates, not all at once.
func TestLifetime(t *testing.T) {
	for range 1000 {
		for _, left := range []time.Duration{24 * time.Hour, time.Minute, time.Second, 0, -time.Hour} {
			margin := left - Lifetime(left)
			if left > 0 && (margin < min(left/10, 10*time.Minute) || margin > left/5) || left <= 0 && Lifetime(left) > 0 {
				t.Fatalf("of a certificate of %s %s are left", left, margin)
			}
		}
	}
}
