package agent

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/outrigger-mesh/outrigger/internal/metric"
)

// metrics are the agent's own; the proxy serves its metrics on another port.
type metrics struct {
	renewals                  atomic.Int64
	restarts                  atomic.Int64
	reloads, reloadsFailed    atomic.Int64
	probes, probesFailed      atomic.Int64
	versions, versionsRefused atomic.Int64
	followFailures            atomic.Int64
	upgrades, upgradesFailed  atomic.Int64
	spansSent, spansLost      atomic.Int64
	records, recordsBad       atomic.Int64
	// Connections to destinations that the proxy did not know, by where they went.
	toMesh, toOutside, nowhere atomic.Int64

	mu       sync.Mutex
	failures map[string]int64
}

// failed counts a failed attempt to obtain a certificate.
func (m *metrics) failed(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failures == nil {
		m.failures = make(map[string]int64)
	}
	m.failures[reason]++
}

// write writes the metrics in the text format of Prometheus.
func (m *metrics) write(w io.Writer, expiry int64, ready bool) {
	write := func(name, kind, help string, samples ...string) {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
		for _, s := range samples {
			fmt.Fprintf(w, "%s%s\n", name, s)
		}
	}
	value := func(n int64) string { return fmt.Sprintf(" %d", n) }
	labelled := func(label, of string, n int64) string { return fmt.Sprintf("{%s=%q} %d", label, of, n) }

	write(metric.AgentCertificateExpiry, "gauge", "When the pod's certificate expires, in seconds since 1970; 0 before there is one.", value(expiry))
	write(metric.AgentCertificatesIssued, "counter", "Certificates that the pod obtained.", value(m.renewals.Load()))
	m.mu.Lock()
	var failures []string
	for _, reason := range slices.Sorted(maps.Keys(m.failures)) {
		failures = append(failures, labelled(metric.LabelReason, reason, m.failures[reason]))
	}
	m.mu.Unlock()
	write(metric.AgentCertificateFailures, "counter", "Failed attempts to obtain a certificate, by reason.", failures...)
	write(metric.AgentProxyRestarts, "counter", "Restarts of the proxy after it exited.", value(m.restarts.Load()))
	write(metric.AgentProxyReloads, "counter", "Reloads of the proxy, by result.",
		labelled(metric.LabelResult, metric.ResultError, m.reloadsFailed.Load()), labelled(metric.LabelResult, metric.ResultSuccess, m.reloads.Load()))
	write(metric.AgentProxyUpgrades, "counter", "Other versions of the proxy that should take over in the running pod, by result.",
		labelled(metric.LabelResult, metric.ResultError, m.upgradesFailed.Load()), labelled(metric.LabelResult, metric.ResultSuccess, m.upgrades.Load()))
	write(metric.AgentMirrorVersions, "counter", "Versions of the driver's files that the proxy was given or could not use, by result.",
		labelled(metric.LabelResult, "given", m.versions.Load()), labelled(metric.LabelResult, metric.ResultRefused, m.versionsRefused.Load()))
	write(metric.AgentMirrorFailures, "counter", "Failed attempts to follow the driver's files.", value(m.followFailures.Load()))
	write(metric.AgentProbes, "counter", "Probes and hooks sent to the app, by result.",
		labelled(metric.LabelResult, metric.ResultFailure, m.probesFailed.Load()), labelled(metric.LabelResult, metric.ResultSuccess, m.probes.Load()-m.probesFailed.Load()))
	write(metric.AgentSpans, "counter", "Spans of the proxy, by result.",
		labelled(metric.LabelResult, "lost", m.spansLost.Load()), labelled(metric.LabelResult, "sent", m.spansSent.Load()))
	write(metric.AgentRecords, "counter", "Records of the proxy's requests and connections, by result.",
		labelled(metric.LabelResult, "counted", m.records.Load()), labelled(metric.LabelResult, "malformed", m.recordsBad.Load()))
	write(metric.AgentUnknown, "counter", "Connections to destinations that the proxy did not know, by where they went.",
		labelled(metric.LabelResult, metric.ResultError, m.nowhere.Load()), labelled(metric.LabelResult, "mesh", m.toMesh.Load()), labelled(metric.LabelResult, "outside", m.toOutside.Load()))
	write(metric.AgentReady, "gauge", "Whether the agent reports the pod as ready.", value(map[bool]int64{true: 1}[ready]))
}
