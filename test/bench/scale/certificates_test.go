package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// TestMain lets the test binary be a fleet, as the program is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-fleet" {
		exit(runFleet(os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}

// TestCertificates measures a small mesh: every pod must get its certificate, for one review of
// its token, and none of its requests may be refused.
func TestCertificates(t *testing.T) {
	apiserver.Require(t)
	const services = 5
	o := &options{modes: []string{modePolicy}, clients: []string{protocolDelta}, scenarios: []string{scenarioCertificates, scenarioAtOnce}, rounds: 1, within: time.Second, built: t.TempDir()}
	got := make(map[string]Certificates)
	err := withGround(t.Context(), o, modePolicy, services, func(g *ground) error {
		if err := g.city.build(t.Context()); err != nil {
			return err
		}
		return g.measure(t.Context(), g.planes[0], protocolDelta, func(r Result, err error) {
			if err != nil {
				t.Errorf("%s: %v", r.Scenario, err)
				return
			}
			c := *r.Certificates
			if c.APIServer <= 0 || r.CPU <= 0 || r.Median <= 0 || r.Max < r.Median || r.Scenario == scenarioCertificates && r.All < o.within/2 {
				t.Errorf("%s takes %+v, %+v", r.Scenario, r, c)
			}
			c.APIServer = 0
			got[r.Scenario] = c
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	const pods = services * endpoints
	want := map[string]Certificates{
		scenarioCertificates: {Pods: pods, Within: time.Second, Reviews: pods, Reads: pods, Failed: map[string]int64{}, Refused: map[string]int64{}},
		scenarioAtOnce:       {Pods: pods, Reviews: pods, Reads: pods, Failed: map[string]int64{}, Refused: map[string]int64{}},
	}
	if diff := cmp.Diff(want, got, cmp.Transformer("counts", func(m map[string]int64) string { return counts(m) })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseMetrics(t *testing.T) {
	m, err := parseMetrics(strings.NewReader("# TYPE a counter\na{x=\"1\",y=\"b c\"} 2\na{x=\"2\",y=\"d\"} 3e1\n\nab 5\na_total 7\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		labels []string
		want   float64
	}{{"a", nil, 32}, {"a", []string{`x="1"`}, 2}, {"a", []string{`x="1"`, `y="d"`}, 0}, {"ab", nil, 5}, {"b", nil, 0}} {
		if got := m.sum(tt.name, tt.labels...); got != tt.want {
			t.Errorf("the sum of %s %s is %v, want %v", tt.name, tt.labels, got, tt.want)
		}
	}
	if _, err := parseMetrics(strings.NewReader("a none\n")); err == nil {
		t.Error("a value that is no number is read")
	}
}
