package agent

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// metrics are the agent's own; the proxy serves its metrics on another port.
type metrics struct {
	renewals                  atomic.Int64
	restarts                  atomic.Int64
	reloads, reloadsFailed    atomic.Int64
	probes, probesFailed      atomic.Int64
	versions, versionsRefused atomic.Int64
	followFailures            atomic.Int64
	spansSent, spansLost      atomic.Int64
	records, recordsBad       atomic.Int64

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
	metric := func(name, kind, help string, samples ...string) {
		fmt.Fprintf(w, "# HELP outrigger_agent_%s %s\n# TYPE outrigger_agent_%s %s\n", name, help, name, kind)
		for _, s := range samples {
			fmt.Fprintf(w, "outrigger_agent_%s%s\n", name, s)
		}
	}
	value := func(n int64) string { return fmt.Sprintf(" %d", n) }
	labelled := func(label, of string, n int64) string { return fmt.Sprintf("{%s=%q} %d", label, of, n) }

	metric("certificate_expiry_timestamp_seconds", "gauge", "When the pod's certificate expires, in seconds since 1970; 0 before there is one.", value(expiry))
	metric("certificates_issued_total", "counter", "Certificates that the pod obtained.", value(m.renewals.Load()))
	m.mu.Lock()
	var failures []string
	for _, reason := range slices.Sorted(maps.Keys(m.failures)) {
		failures = append(failures, labelled("reason", reason, m.failures[reason]))
	}
	m.mu.Unlock()
	metric("certificate_failures_total", "counter", "Failed attempts to obtain a certificate, by reason.", failures...)
	metric("proxy_restarts_total", "counter", "Restarts of the proxy after it exited.", value(m.restarts.Load()))
	metric("proxy_reloads_total", "counter", "Reloads of the proxy, by result.",
		labelled("result", "error", m.reloadsFailed.Load()), labelled("result", "success", m.reloads.Load()))
	metric("mirror_versions_total", "counter", "Versions of the driver's files that the proxy was given or could not use, by result.",
		labelled("result", "given", m.versions.Load()), labelled("result", "refused", m.versionsRefused.Load()))
	metric("mirror_failures_total", "counter", "Failed attempts to follow the driver's files.", value(m.followFailures.Load()))
	metric("probes_total", "counter", "Probes and hooks sent to the app, by result.",
		labelled("result", "failure", m.probesFailed.Load()), labelled("result", "success", m.probes.Load()-m.probesFailed.Load()))
	metric("spans_total", "counter", "Spans of the proxy, by result.",
		labelled("result", "lost", m.spansLost.Load()), labelled("result", "sent", m.spansSent.Load()))
	metric("records_total", "counter", "Records of the proxy's requests and connections, by result.",
		labelled("result", "counted", m.records.Load()), labelled("result", "malformed", m.recordsBad.Load()))
	metric("ready", "gauge", "Whether the agent reports the pod as ready.", value(map[bool]int64{true: 1}[ready]))
}
