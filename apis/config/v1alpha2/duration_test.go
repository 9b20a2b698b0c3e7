package v1alpha2_test

import (
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
)

// goodDurations and badDurations are also sent to the API server, so that Parse and
// the rule in the schema agree.
var (
	goodDurations = map[v1alpha2.Duration]time.Duration{
		"": 0, "0": 0, "0s": 0, "90s": 90 * time.Second, "24h": 24 * time.Hour, "1h30m": 90 * time.Minute,
		"1.5h": 90 * time.Minute, ".5s": time.Second / 2, "1.s": time.Second, "+5m": 5 * time.Minute,
		"300ms": 300 * time.Millisecond, "7us": 7 * time.Microsecond, "7µs": 7 * time.Microsecond,
		"7μs": 7 * time.Microsecond, "9ns": 9,
	}
	badDurations = []v1alpha2.Duration{
		"30", "-5s", "s", ".s", "1d", "1h 30m", " 1h", "1 day", "ten", "5S", "99999999999h",
	}
)

func TestDurationParse(t *testing.T) {
	for d, want := range goodDurations {
		if got, err := d.Parse(); err != nil || got != want {
			t.Errorf("Duration(%q).Parse() = %v, %v, want %v", d, got, err, want)
		}
	}
	for _, d := range badDurations {
		if got, err := d.Parse(); err == nil {
			t.Errorf("Duration(%q).Parse() = %v, want an error", d, got)
		}
	}
}
