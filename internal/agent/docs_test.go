package agent

import (
	"bytes"
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
)

// TestDocumented looks for every command, flag, page and metric in the documentation.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/agent.md")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, c := range commands() {
		want = append(want, "`"+c.name)
		flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
		c.prepare(&program{}, flags)
		flags.VisitAll(func(f *flag.Flag) { want = append(want, "`--"+f.Name) })
	}
	for _, page := range reserved[1:] {
		want = append(want, "`"+page+"`")
	}
	var b bytes.Buffer
	new(kit.Metrics).Write(&b, 0, true)
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+)`).FindAllStringSubmatch(b.String(), -1) {
		want = append(want, "`"+m[1]+"`")
	}
	for _, w := range want {
		if !strings.Contains(string(text), w) {
			t.Errorf("docs/agent.md does not mention %s", w)
		}
	}
}

// TestMetricsFormat checks that the metrics are in Prometheus's text format.
func TestMetricsFormat(t *testing.T) {
	m := new(kit.Metrics)
	m.Failed("unavailable")
	m.Failed("unavailable")
	m.Failed("answer")
	m.Restarts.Add(3)
	var b bytes.Buffer
	m.Write(&b, 12, false)
	line := regexp.MustCompile(`^(# (HELP|TYPE) outrigger_agent_[a-z_]+ .+|outrigger_agent_[a-z_]+(\{[a-z]+="[a-z_]+"\})? \d+)$`)
	for l := range strings.Lines(b.String()) {
		if !line.MatchString(strings.TrimSuffix(l, "\n")) {
			t.Errorf("line %q", l)
		}
	}
	for _, sample := range []string{
		"outrigger_agent_certificate_expiry_timestamp_seconds 12\n", "outrigger_agent_proxy_restarts_total 3\n", "outrigger_agent_ready 0\n",
		`outrigger_agent_certificate_failures_total{reason="answer"} 1` + "\n" + `outrigger_agent_certificate_failures_total{reason="unavailable"} 2` + "\n",
	} {
		if !strings.Contains(b.String(), sample) {
			t.Errorf("%q is missing in\n%s", sample, b.String())
		}
	}
}
