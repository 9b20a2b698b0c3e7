package kit

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/outrigger-mesh/outrigger/internal/metric"
)

// Metrics are the agent's own; the proxy serves its metrics on another port. Any goroutine may
// count.
type Metrics struct {
	Renewals                  atomic.Int64
	Restarts                  atomic.Int64
	Reloads, ReloadsFailed    atomic.Int64
	Probes, ProbesFailed      atomic.Int64
	Versions, VersionsRefused atomic.Int64
	FollowFailures            atomic.Int64
	Upgrades, UpgradesFailed  atomic.Int64
	SpansSent, SpansLost      atomic.Int64
	Records, RecordsBad       atomic.Int64
	// Connections to destinations that the proxy did not know, by where they went.
	ToMesh, ToOutside, Nowhere atomic.Int64

	mu       sync.Mutex
	failures map[string]int64
}

// Failed counts a failed attempt to obtain a certificate.
func (m *Metrics) Failed(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failures == nil {
		m.failures = make(map[string]int64)
	}
	m.failures[reason]++
}

// Write writes the metrics in the text format of Prometheus.
func (m *Metrics) Write(w io.Writer, expiry int64, ready bool) {
	write := func(name, kind, help string, samples ...string) {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
		for _, s := range samples {
			fmt.Fprintf(w, "%s%s\n", name, s)
		}
	}
	value := func(n int64) string { return fmt.Sprintf(" %d", n) }
	labelled := func(label, of string, n int64) string { return fmt.Sprintf("{%s=%q} %d", label, of, n) }

	write(metric.AgentCertificateExpiry, "gauge", "When the pod's certificate expires, in seconds since 1970; 0 before there is one.", value(expiry))
	write(metric.AgentCertificatesIssued, "counter", "Certificates that the pod obtained.", value(m.Renewals.Load()))
	m.mu.Lock()
	var failures []string
	for _, reason := range slices.Sorted(maps.Keys(m.failures)) {
		failures = append(failures, labelled(metric.LabelReason, reason, m.failures[reason]))
	}
	m.mu.Unlock()
	write(metric.AgentCertificateFailures, "counter", "Failed attempts to obtain a certificate, by reason.", failures...)
	write(metric.AgentProxyRestarts, "counter", "Restarts of the proxy after it exited.", value(m.Restarts.Load()))
	write(metric.AgentProxyReloads, "counter", "Reloads of the proxy, by result.",
		labelled(metric.LabelResult, metric.ResultError, m.ReloadsFailed.Load()), labelled(metric.LabelResult, metric.ResultSuccess, m.Reloads.Load()))
	write(metric.AgentProxyUpgrades, "counter", "Other versions of the proxy that should take over in the running pod, by result.",
		labelled(metric.LabelResult, metric.ResultError, m.UpgradesFailed.Load()), labelled(metric.LabelResult, metric.ResultSuccess, m.Upgrades.Load()))
	write(metric.AgentMirrorVersions, "counter", "Versions of the driver's files that the proxy was given or could not use, by result.",
		labelled(metric.LabelResult, "given", m.Versions.Load()), labelled(metric.LabelResult, metric.ResultRefused, m.VersionsRefused.Load()))
	write(metric.AgentMirrorFailures, "counter", "Failed attempts to follow the driver's files.", value(m.FollowFailures.Load()))
	write(metric.AgentProbes, "counter", "Probes and hooks sent to the app, by result.",
		labelled(metric.LabelResult, metric.ResultFailure, m.ProbesFailed.Load()), labelled(metric.LabelResult, metric.ResultSuccess, m.Probes.Load()-m.ProbesFailed.Load()))
	write(metric.AgentSpans, "counter", "Spans of the proxy, by result.",
		labelled(metric.LabelResult, "lost", m.SpansLost.Load()), labelled(metric.LabelResult, "sent", m.SpansSent.Load()))
	write(metric.AgentRecords, "counter", "Records of the proxy's requests and connections, by result.",
		labelled(metric.LabelResult, "counted", m.Records.Load()), labelled(metric.LabelResult, "malformed", m.RecordsBad.Load()))
	write(metric.AgentUnknown, "counter", "Connections to destinations that the proxy did not know, by where they went.",
		labelled(metric.LabelResult, metric.ResultError, m.Nowhere.Load()), labelled(metric.LabelResult, "mesh", m.ToMesh.Load()), labelled(metric.LabelResult, "outside", m.ToOutside.Load()))
	write(metric.AgentReady, "gauge", "Whether the agent reports the pod as ready.", value(map[bool]int64{true: 1}[ready]))
}
