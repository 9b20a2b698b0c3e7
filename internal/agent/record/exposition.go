package record

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/limit"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

const (
	metricsPath = "/stats/prometheus"
	metricsType = "text/plain; version=0.0.4; charset=utf-8"
)

// ownMetricsTimeout is how long the proxy may take to answer with its own metrics.
const ownMetricsTimeout = 10 * time.Second

// exposition serves the metrics of the vocabulary for all proxies, and then the proxy's own.
type exposition struct {
	counter *counter
	own     string // the URL of the proxy's own metrics
	client  *http.Client
	log     *slog.Logger
}

func newExposition(counter *counter, own string, log *slog.Logger) *exposition {
	// The environment's HTTP proxy is for the application.
	return &exposition{counter, own, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, log}
}

// http returns the HTTP server. Anybody who reaches the pod can connect.
func (x *exposition) http() *limit.Server {
	return limit.NewServer(x, limit.Bounds{Connections: 128, Each: 32}, x.log)
}

// ServeHTTP answers requests of Prometheus.
func (x *exposition) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch {
	case r.URL.Path != metricsPath:
		kit.Reply(w, http.StatusNotFound, "no such page")
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		kit.Reply(w, http.StatusMethodNotAllowed, "use GET")
		return
	}
	w.Header().Set("Content-Type", metricsType)
	// A client that reads slowly must not stop the counting.
	var counts bytes.Buffer
	x.counter.write(&counts)
	out := bufio.NewWriter(w)
	_, _ = counts.WriteTo(out)
	if err := x.copyOwn(r.Context(), out); err != nil {
		// What is known is worth more than an error.
		x.log.Debug("the proxy does not answer with its own metrics", "error", err)
	}
	_ = out.Flush()
}

// copyOwn appends the proxy's own metrics.
func (x *exposition) copyOwn(ctx context.Context, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, ownMetricsTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, x.own, nil)
	if err != nil {
		return err
	}
	answer, err := x.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", x.own, answer.Status)
	}
	_, err = io.Copy(w, answer.Body)
	return err
}

// write writes the metrics in the text format of Prometheus.
func (c *counter) write(w io.Writer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	edges := slices.SortedFunc(maps.Keys(c.edges), edge.compare)
	for _, m := range telemetry.Metrics() {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", m.Name, m.Help, m.Name, m.Type)
		for _, e := range edges {
			c.edges[e].write(w, m.Name, c.labels(e), e.protocol == telemetry.TCP)
		}
	}
}

func (e edge) compare(other edge) int {
	return cmp.Or(
		cmp.Compare(e.reporter, other.reporter), cmp.Compare(e.protocol, other.protocol), cmp.Compare(e.namespace, other.namespace),
		cmp.Compare(e.account, other.account), cmp.Compare(e.service, other.service))
}

// labels returns the labels of an edge, without a brace at the end.
func (c *counter) labels(e edge) string {
	values := map[string]string{
		telemetry.LabelReporter: e.reporter, telemetry.LabelClass: c.class, telemetry.LabelProtocol: e.protocol,
		telemetry.LabelDestinationService: e.service,
	}
	own := []string{telemetry.LabelSourceWorkload, telemetry.LabelSourceNamespace, telemetry.LabelSourceServiceAccount}
	other := []string{telemetry.LabelDestinationWorkload, telemetry.LabelDestinationNamespace, telemetry.LabelDestinationServiceAccount}
	if e.reporter == telemetry.ReporterDestination {
		own, other = other, own
	}
	values[own[0]], values[own[1]], values[own[2]] = c.workload, c.own.Namespace, c.own.ServiceAccount
	values[other[1]], values[other[2]] = e.namespace, e.account
	var out strings.Builder
	for i, name := range telemetry.Labels() {
		if i > 0 {
			out.WriteByte(',')
		}
		fmt.Fprintf(&out, "%s=%q", name, values[name])
	}
	return out.String()
}

// write writes the samples of one metric.
func (e *counts) write(w io.Writer, metric, labels string, isTCP bool) {
	sample := func(more string, n uint64) { fmt.Fprintf(w, "%s{%s%s} %d\n", metric, labels, more, n) }
	byReason := func(counts map[string]uint64) {
		for _, reason := range slices.Sorted(maps.Keys(counts)) {
			sample(with(telemetry.LabelReason, reason), counts[reason])
		}
	}
	switch metric {
	case telemetry.Denied:
		byReason(e.denied)
		return
	case telemetry.AuditDenied:
		byReason(e.audited)
		return
	}
	if isTCP {
		e.writeConnections(metric, sample)
		return
	}
	if len(e.requests) == 0 {
		return
	}
	switch metric {
	case telemetry.Requests:
		for _, o := range slices.SortedFunc(maps.Keys(e.requests), outcome.compare) {
			sample(with(telemetry.LabelResponseCode, o.code)+with(telemetry.LabelGRPCStatus, o.grpc)+with(telemetry.LabelTLS, o.tls), *e.requests[o])
		}
	case telemetry.RequestDuration:
		e.writeDurations(w, labels)
	case telemetry.RequestBytes:
		sample("", e.received)
	case telemetry.ResponseBytes:
		sample("", e.sent)
	case telemetry.Retries:
		sample("", e.retries)
	}
}

func (e *counts) writeConnections(metric string, sample func(string, uint64)) {
	if len(e.connections) == 0 {
		return
	}
	switch metric {
	case telemetry.Connections:
		for _, tls := range slices.Sorted(maps.Keys(e.connections)) {
			sample(with(telemetry.LabelTLS, tls), e.connections[tls])
		}
	case telemetry.ReceivedBytes:
		sample("", e.received)
	case telemetry.SentBytes:
		sample("", e.sent)
	}
}

func (e *counts) writeDurations(w io.Writer, labels string) {
	n := uint64(0)
	for i, seconds := range telemetry.Buckets() {
		n += e.durations[i]
		fmt.Fprintf(w, "%s_bucket{%s,le=%q} %d\n", telemetry.RequestDuration, labels, strconv.FormatFloat(seconds, 'g', -1, 64), n)
	}
	n += e.durations[len(e.durations)-1]
	fmt.Fprintf(w, "%s_bucket{%s,le=\"+Inf\"} %d\n", telemetry.RequestDuration, labels, n)
	fmt.Fprintf(w, "%s_sum{%s} %s\n", telemetry.RequestDuration, labels, strconv.FormatFloat(float64(e.micros)/1e6, 'f', -1, 64))
	fmt.Fprintf(w, "%s_count{%s} %d\n", telemetry.RequestDuration, labels, n)
}

// with returns a label that follows others.
func with(name, value string) string { return fmt.Sprintf(",%s=%q", name, value) }

func (o outcome) compare(other outcome) int {
	return cmp.Or(cmp.Compare(o.code, other.code), cmp.Compare(o.grpc, other.grpc), cmp.Compare(o.tls, other.tls))
}
