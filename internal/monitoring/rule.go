package monitoring

import (
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// Group is a group of alerts, which Prometheus evaluates together.
type Group struct {
	Name  string  `json:"name"`
	Rules []Alert `json:"rules"`
}

// Alert is an alert in the format of Prometheus' files of rules.
type Alert struct {
	Name        string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// The severities.
const (
	// critical: requests fail or will soon, or new pods cannot start.
	critical = "critical"
	// warning: something works less well than it should, or will fail in some days.
	warning = "warning"
	// info: it may be intended.
	info = "info"
)

// runbook is the page that explains each alert under a heading of its name.
const runbook = "https://github.com/outrigger-mesh/outrigger/blob/main/docs/runbook.md#"

// alert returns an alert whose condition holds for a time. The summary is one sentence, in
// which {{ $labels.x }} is a label of the result.
func alert(name, severity, lasts, expr, summary string) Alert {
	return Alert{
		Name: name, Expr: expr, For: lasts, Labels: map[string]string{"severity": severity},
		Annotations: map[string]string{"summary": summary, "runbook_url": runbook + strings.ToLower(name)},
	}
}

// label is the value of a label in a summary.
func label(name string) string { return "{{ $labels." + name + " }}" }

// The formats of values in a summary.
const (
	asShare    = "{{ $value | humanizePercentage }}"
	asDuration = "{{ $value | humanizeDuration }}"
	asNumber   = "{{ $value | humanize }}"
)

// above is an expression that has only the series of another one that are above a bound.
func above(expr, bound string) string { return expr + " > " + bound }

// until is the time until a moment, if it is less than a bound, in seconds.
func until(moment string, bound int) string { return fmt.Sprintf("%s - time() < %d", moment, bound) }

// overdue is the time until a certificate ends whose renewal is overdue, whatever its life:
// less than a fifth of the time that it had at most in the last hours. Certificates are renewed
// when a third of their life is left.
func overdue(moment string) string {
	return fmt.Sprintf("%[1]s - time() < 0.2 * max_over_time((%[1]s - time())[6h:1m])", moment)
}

const (
	hour = 3600
	day  = 24 * hour
)

// Rules returns all alerts.
func Rules() []Group {
	return []Group{
		{"outrigger-controller", controllerAlerts()},
		{injectorGroup, injectorAlerts()},
		{"outrigger-certificates", certificateAlerts()},
		{"outrigger-proxies", proxyAlerts()},
		{"outrigger-traffic", trafficAlerts()},
	}
}

// injectorGroup is the group that a mesh without an injector does not have.
const injectorGroup = "outrigger-injector"

func rulesYAML() ([]byte, error) {
	text, err := yaml.Marshal(map[string]any{"groups": Rules()})
	if err != nil {
		return nil, err
	}
	return append([]byte("# Written by UPDATE=1 go test ./internal/monitoring; docs/runbook.md explains the alerts.\n"), text...), nil
}
