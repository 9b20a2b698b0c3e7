// Package monitoring makes Grafana dashboards and Prometheus alerts for a mesh. They are code,
// so that the names of metrics and labels come from the packages that define them, and an alert
// and a panel that mean the same have the same query.
//
// UPDATE=1 go test ./internal/monitoring writes them to charts/outrigger/monitoring, from where
// the chart takes them. The tests in test/monitoring run every query in a real Prometheus that
// scrapes a real mesh. docs/prometheus.md is for users, docs/runbook.md explains each alert.
package monitoring

import "fmt"

// Dashboards returns the dashboards by the names of their files, without the extension.
func Dashboards() map[string]*Dashboard {
	return map[string]*Dashboard{
		"mesh":          meshDashboard(),
		"workload":      workloadDashboard(),
		"control-plane": controlPlaneDashboard(),
	}
}

// RulesFile is the name of the file of the alerts.
const RulesFile = "rules.yaml"

// Files returns the dashboards and alerts by file name.
func Files() (map[string][]byte, error) {
	files := make(map[string][]byte)
	for name, d := range Dashboards() {
		text, err := d.JSON()
		if err != nil {
			return nil, fmt.Errorf("the dashboard %s: %w", name, err)
		}
		files[name+".json"] = text
	}
	text, err := rulesYAML()
	if err != nil {
		return nil, fmt.Errorf("the alerts: %w", err)
	}
	files[RulesFile] = text
	return files, nil
}
