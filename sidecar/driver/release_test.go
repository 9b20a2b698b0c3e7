package driver_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// releases are those of a proxy with the branches 1.1 to 1.4.
func releases() *driver.Releases {
	return driver.ParseReleases([]byte(`{
		"proxy": "oar", "asOf": "2026-11-28", "default": "1.4.2", "oldest": "1.1.9", "reason": "1.0 sinks", "before": {"version": "2.0.0", "reason": "2.0 has another rudder"}, "newest": ["1.4.2", "1.3.5"],
		"since": {"HTTP2Resets": {"version": "1.2", "otherwise": "it floats"}, "IPv6": {"version": "1.4.1", "otherwise": "it drifts"}},
		"hybrid": {"library": "OpenSSL", "since": "3.5.0"},
		"advisories": [
			{"id": "leak", "summary": "water comes in", "fixed": ["1.1.3", "1.2.4"]},
			{"id": "hole", "summary": "it sinks", "fixed": ["1.2.1"], "unsupported": true},
			{"id": "rust", "library": "OpenSSL", "summary": "it creaks", "fixed": ["3.0.22", "3.5.0"]}
		],
		"releases": [
			{"version": "1.4.0-1+deb13", "tested": "water", "until": "2027-Q2", "open": ["it is loud"], "lacks": "nothing"},
			{"version": "1.2.4", "tested": "water", "lacks": "nothing"}
		]
	}`))
}

func TestSupportedVersions(t *testing.T) {
	for version, want := range map[string]string{
		"oar 1.0.9":        "oar 1.0.9 is too old: the oldest supported oar is 1.1.9, since 1.0 sinks; omit the image",
		"1.1.8":            "is too old",
		"1.1":              "",
		"1.2.0":            "has a known fault, hole: it sinks (fixed in 1.2.1); omit the image to use the driver's default, 1.4.2",
		"1.2.1":            "",
		"1.2":              "",
		"oar 1.4.0-1+deb9": "",
		"v1.4.0":           "",
		"1.9.9":            "",
		"oar 2.0.0":        "oar 2.0.0 is too new: versions before 2.0.0 are supported, since 2.0 has another rudder; omit the image",
		"2.0":              "is too new",
		"2.1.3-1":          "is too new",
		"unknown":          "",
		"":                 "",
	} {
		err := releases().Check(version)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", version, err, want)
		}
	}
	for image, want := range map[string]string{
		"example.com/oar:v1.2.0": "\"example.com/oar:v1.2.0\" has a known fault, hole",
		"example.com/oar:v1.1.8": "is too old",
		"example.com/oar:1.1":    "",
		"example.com/oar:2.0":    "is too new",
		"example.com/sail:1.0":   "",
	} {
		err := releases().CheckImage(image)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", image, err, want)
		}
	}
}

func TestFeaturesOfVersions(t *testing.T) {
	for version, want := range map[string]string{
		"oar 1.1.9":         "[HTTP2Resets IPv6]",
		"1.2.0-1+deb12 any": "[IPv6]",
		"1.4.1":             "[]",
		"unknown":           "[HTTP2Resets IPv6]",
	} {
		if got := fmt.Sprint(releases().LackedBy(version)); got != want {
			t.Errorf("%s lacks %s, want %s", version, got, want)
		}
	}
	for image, want := range map[string]string{
		"example.com/oar:1.1.9-alpine": "[\"example.com/oar:1.1.9-alpine\" lacks the feature HTTP2Resets: it floats; use oar 1.2 or later \"example.com/oar:1.1.9-alpine\" lacks the feature IPv6: it drifts; use oar 1.4.1 or later]",
		"example.com/oar:v1.2.0":       "[\"example.com/oar:v1.2.0\" lacks the feature IPv6: it drifts; use oar 1.4.1 or later]",
		// The newest of the branch.
		"example.com/oar:1.4":    "[]",
		"example.com/oar:latest": "[]",
		"example.com/sail:1.1.9": "[]",
		"example.com/oar":        "[]",
	} {
		if got := fmt.Sprint(releases().LackedByImage(image)); got != want {
			t.Errorf("%s lacks %s, want %s", image, got, want)
		}
	}
}

func TestKeyExchange(t *testing.T) {
	for version, want := range map[string]string{
		"1.4.2 OpenSSL 3.5.0":  driver.KeyExchangeHybrid,
		"1.1.9 OpenSSL 4.0.0":  driver.KeyExchangeHybrid,
		"1.4.2 OpenSSL 3.0.19": driver.KeyExchangeClassic,
		"1.4.2":                "",
		"1.4.2 OpenSSL":        "",
		"":                     "",
	} {
		if got := releases().KeyExchange(version); got != want {
			t.Errorf("%q: %q, want %q", version, got, want)
		}
	}
	own := driver.ParseReleases([]byte(`{"proxy": "oar", "asOf": "2026-11-28", "oldest": "1.1.9", "hybrid": {"since": "1.2.0"}}`))
	for version, want := range map[string]string{"oar 1.2.0": driver.KeyExchangeHybrid, "1.1.9": driver.KeyExchangeClassic, "unknown": ""} {
		if got := own.KeyExchange(version); got != want {
			t.Errorf("%q: %q, want %q", version, got, want)
		}
	}
	if got := new(driver.Releases).KeyExchange("1.2.0"); got != "" {
		t.Errorf("of a proxy of which nothing is known: %q", got)
	}
}

func TestWarnings(t *testing.T) {
	before, after := time.Date(2027, 6, 30, 23, 0, 0, 0, time.UTC), time.Date(2027, 7, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		version string
		at      time.Time
		want    []string
	}{
		{"oar 1.4.2", before, nil},
		{"1.4.1", before, []string{"1.4.2 is the newest release of its branch that was known on 2026-11-28"}},
		{"1.4.2", after, []string{"its branch gets no fixes since the end of 2027-Q2"}},
		{"1.4.0-1+deb13", before, []string{"it is loud", "1.4.2 is the newest"}},
		{"1.4.0-1+deb12", before, []string{"1.4.2 is the newest"}},
		{"1.4", before, nil},
		{"1.2.3", before, []string{"known fault leak: water comes in (fixed in 1.1.3, 1.2.4)"}},
		{"1.2.4", before, nil},
		{"oar 1.4.2 OpenSSL 3.2.0", before, []string{"known fault rust: it creaks (fixed in 3.0.22, 3.5.0)"}},
		{"oar 1.4.2 OpenSSL 3.0.21", before, []string{"known fault rust"}},
		{"oar 1.4.2 OpenSSL 3.0.22", before, nil},
		{"oar 1.4.2 OpenSSL 3.5.2", before, nil},
		{"oar 1.4.2 OpenSSL", before, nil},
		{"1.3.5", before, []string{"no release of its branch was tested"}},
		{"1.5.0", before, []string{"no release of its branch was tested"}},
		{"of another kind", before, nil},
	} {
		got := releases().Warnings(tt.version, tt.at)
		if len(got) != len(tt.want) {
			t.Errorf("%s: %q, want %q", tt.version, got, tt.want)
			continue
		}
		for i, want := range tt.want {
			if !strings.Contains(got[i], want) {
				t.Errorf("%s: %q, want %q", tt.version, got[i], want)
			}
		}
	}
}

// TestInvalidReleases checks that a driver with a file that would be misread can't start.
func TestInvalidReleases(t *testing.T) {
	for _, file := range []string{
		`{`,
		`{"proxy": "oar", "asOf": "2026-11-28", "oldest": "1.0", "oldst": "1.1"}`,
		`{"proxy": "oar", "asOf": "November", "oldest": "1.0"}`,
		`{"proxy": "oar", "asOf": "2026-11-28", "oldest": "none"}`,
		`{"proxy": "oar", "asOf": "2026-11-28", "oldest": "1.0", "releases": [{"version": "1.0", "until": "2027-Q5"}]}`,
		`{"proxy": "oar", "asOf": "2026-11-28", "oldest": "1.0", "releases": [{"version": "1.0", "until": "2027"}]}`,
		`{"proxy": "oar", "asOf": "2026-11-28", "oldest": "1.0", "since": {"Sails": {"version": "1.1", "otherwise": "oars"}}}`,
		`{"proxy": "oar", "asOf": "2026-11-28", "oldest": "1.0", "since": {"IPv6": {"version": "1.1"}}}`,
		`{"proxy": "oar", "asOf": "2026-11-28", "oldest": "1.0", "hybrid": {"library": "OpenSSL"}}`,
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s is accepted", file)
				}
			}()
			driver.ParseReleases([]byte(file))
		}()
	}
}
