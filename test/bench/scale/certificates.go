package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Certificates is what the control plane and the API server do when many pods start. All
// counts are differences from before to after.
type Certificates struct {
	// Pods is how many pods start, and Within the time in which they do.
	Pods   int
	Within time.Duration
	// Failed counts the attempts that agents had to repeat, by their errors.
	Failed map[string]int64 `json:",omitempty"`
	// Refused counts the control plane's refusals, by reason. The reason "connection" is that
	// there were too many connections.
	Refused map[string]int64 `json:",omitempty"`
	// Reviews and Reads are the API server's reviews of tokens and reads of single pods, and
	// Limited the requests of all kinds that it refused because there were too many.
	Reviews, Reads, Limited int64
	// APIServer is the API server's CPU time.
	APIServer time.Duration
}

// certificates measures how pods that start at an even rate get their certificates.
func (m *testMesh) certificates(ctx context.Context, r *Result) error {
	return m.certify(ctx, r, m.within)
}

// certificatesAtOnce does the same for pods that start at once.
func (m *testMesh) certificatesAtOnce(ctx context.Context, r *Result) error {
	return m.certify(ctx, r, 0)
}

func (m *testMesh) certify(ctx context.Context, r *Result, within time.Duration) error {
	// Certificates depend neither on policies nor on the protocol.
	if m.mode != m.modes[0] || m.protocol != m.protocols(m.plane)[0] {
		return errOmitted
	}
	if m.starting == nil {
		var err error
		if m.starting, err = m.city.allPods(ctx, m.plane.audience); err != nil {
			return err
		}
	}
	if err := m.plane.quiet(ctx); err != nil {
		return err
	}
	before, err := m.countCertificates(ctx)
	if err != nil {
		return err
	}
	cpu, err := m.plane.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	report, err := m.fleet.do(Order{Do: doCertify, Pods: m.starting, Within: within, Seconds: longest})
	if err != nil {
		return err
	}
	r.All, r.Median, r.Max = time.Since(began), median(report.Took), slices.Max(report.Took)
	after, err := m.plane.cpu()
	if err != nil {
		return err
	}
	r.CPU = after - cpu
	c, err := m.countCertificates(ctx)
	if err != nil {
		return err
	}
	c.Pods, c.Within, c.Failed = len(m.starting), within, report.Failed
	c.Reviews, c.Reads, c.Limited = c.Reviews-before.Reviews, c.Reads-before.Reads, c.Limited-before.Limited
	c.APIServer -= before.APIServer
	for reason := range c.Refused {
		c.Refused[reason] -= before.Refused[reason]
	}
	maps.DeleteFunc(c.Refused, func(_ string, n int64) bool { return n == 0 })
	r.Certificates = c
	return nil
}

// Metrics of the signing service.
const (
	refusals           = "outrigger_identity_refusals_total"
	refusedConnections = "outrigger_identity_connections_refused_total"
)

// countCertificates reads the metrics of the API server and of the control plane.
func (m *testMesh) countCertificates(ctx context.Context) (*Certificates, error) {
	text, err := m.city.kubernetes.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("the API server's metrics: %w", err)
	}
	server, err := parseMetrics(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("the API server's metrics: %w", err)
	}
	const requests = "apiserver_request_total"
	c := &Certificates{
		Reviews:   int64(server.sum(requests, `resource="tokenreviews"`, `verb="POST"`)),
		Reads:     int64(server.sum(requests, `resource="pods"`, `verb="GET"`)),
		Limited:   int64(server.sum(requests, `code="429"`)),
		APIServer: time.Duration(server.sum("process_cpu_seconds_total") * float64(time.Second)),
		Refused:   make(map[string]int64),
	}
	response, err := http.Get(m.plane.metrics)
	if err != nil {
		return nil, err
	}
	plane, err := parseMetrics(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", m.plane.metrics, err)
	}
	for name, value := range plane {
		if strings.HasPrefix(name, refusals+"{") {
			_, reason, _ := strings.Cut(name, `reason="`)
			reason, _, _ = strings.Cut(reason, `"`)
			c.Refused[reason] += int64(value)
		}
	}
	c.Refused["connection"] = int64(plane.sum(refusedConnections))
	return c, nil
}

// metrics are values of metrics, by name and labels as in Prometheus's text format.
type metrics map[string]float64

func parseMetrics(in io.Reader) (metrics, error) {
	s := make(metrics)
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || line[0] == '#' {
			continue
		}
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("the line %q: %w", line, err)
		}
		s[line[:at]] = value
	}
	return s, lines.Err()
}

// sum returns the sum of a metric's series that have all labels, which are given as in the text.
func (s metrics) sum(of string, labels ...string) float64 {
	var sum float64
	for name, value := range s {
		rest, ok := strings.CutPrefix(name, of)
		if ok && (rest == "" || rest[0] == '{') && !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(rest, l) }) {
			sum += value
		}
	}
	return sum
}

// describe returns what happened besides.
func (c *Certificates) describe(cpu time.Duration) string {
	each := func(d time.Duration) time.Duration { return (d / time.Duration(c.Pods)).Round(time.Microsecond) }
	return fmt.Sprintf("%d pods within %s; for each %s of CPU, and %s of the API server; %d reviews, %d pods read; refused %s, by the API server %d; repeated %s",
		c.Pods, c.Within, each(cpu), each(c.APIServer), c.Reviews, c.Reads, counts(c.Refused), c.Limited, counts(c.Failed))
}

// counts returns counts by name as text.
func counts(of map[string]int64) string {
	if len(of) == 0 {
		return "none"
	}
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		texts = append(texts, fmt.Sprintf("%d (%s)", of[name], name))
	}
	return strings.Join(texts, ", ")
}

// failedAttempts is the sum of the attempts that agents had to repeat.
func (c *Certificates) failedAttempts() (sum int64) {
	for _, n := range c.Failed {
		sum += n
	}
	return sum
}
