package traffic_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// bookstore is the pod whose proxy reports in most tests.
var bookstore = traffic.Pod{
	Name: mesh.Name{Namespace: "store", Name: "bookstore-7d9f-x2x4z"}, Owner: fact.Owner{Kind: "deployment", Name: "bookstore"}, ServiceAccount: "bookstore",
}

// proxy exports metrics with Prometheus' own library, as an independent writer of its format.
type proxy struct {
	registry *prometheus.Registry
	counters map[string]*prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newProxy() *proxy {
	p := &proxy{registry: prometheus.NewRegistry(), counters: make(map[string]*prometheus.CounterVec)}
	for _, m := range telemetry.Metrics() {
		labels := append(telemetry.Labels(), m.Labels...)
		if m.Type == telemetry.Histogram {
			p.duration = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: m.Name, Help: m.Help, Buckets: telemetry.Buckets()}, labels)
			p.registry.MustRegister(p.duration)
			continue
		}
		p.counters[m.Name] = prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.Name, Help: m.Help}, labels)
		p.registry.MustRegister(p.counters[m.Name])
	}
	return p
}

// common are the labels of requests that bookstore receives from bookbuyer.
var common = prometheus.Labels{
	"reporter": "destination", "class": "envoy", "source_workload": "", "source_namespace": "buyer", "source_service_account": "bookbuyer",
	"destination_workload": "bookstore", "destination_namespace": "store", "destination_service_account": "bookstore", "destination_service": "",
	"protocol": "http",
}

// with returns common with other labels, given as name and value in turn.
func with(labels ...string) prometheus.Labels {
	all := make(prometheus.Labels)
	for name, value := range common {
		all[name] = value
	}
	for i := 0; i < len(labels); i += 2 {
		all[labels[i]] = labels[i+1]
	}
	return all
}

func (p *proxy) count(n float64, metric string, labels ...string) {
	p.counters[metric].With(with(labels...)).Add(n)
}

func (p *proxy) request(n float64, code, grpc, tls string) {
	p.count(n, telemetry.Requests, "response_code", code, "grpc_status", grpc, "tls", tls)
}

func (p *proxy) text(t *testing.T) string {
	t.Helper()
	families, err := p.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&text, family); err != nil {
			t.Fatal(err)
		}
	}
	return text.String()
}

func (p *proxy) sample(t *testing.T) traffic.Sample {
	t.Helper()
	return parse(t, p.text(t))
}

func parse(t *testing.T, text string) traffic.Sample {
	t.Helper()
	sample, err := traffic.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return sample
}

func TestParseOwnMetricsOnly(t *testing.T) {
	p := newProxy()
	p.request(3, "200", "", "mutual")
	// What follows the common metrics is neither read nor understood.
	from := io.MultiReader(strings.NewReader("# HELP other x\n"+p.text(t)+"envoy_cluster_upstream_rq{} 7\n"), failing{})
	sample, err := traffic.Parse(from)
	if err != nil {
		t.Fatal(err)
	}
	if len(sample) != 1 {
		t.Errorf("%d series, want that of the requests: %v", len(sample), sample)
	}
}

// failing is a text whose end is never reached.
type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("read too far") }

func TestParseProblems(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"an older sidecar":            {"# TYPE envoy_up gauge\nenvoy_up 1\n", traffic.ErrNoMetrics.Error()},
		"nothing":                     {"", traffic.ErrNoMetrics.Error()},
		"not the format":              {telemetry.Requests + "{reporter=\"source\" 1\n", "reading its metrics"},
		"a line without an end":       {telemetry.Requests + strings.Repeat("x", 17<<20), "reading its metrics"},
		"a proxy without any traffic": {"# TYPE " + telemetry.Requests + " counter\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := traffic.Parse(strings.NewReader(tt.text))
			if got := fmt.Sprint(err); tt.want == "" && err != nil || !strings.Contains(got, tt.want) {
				t.Errorf("error %q, want %q", got, tt.want)
			}
		})
	}
}

// TestParseHostile has a pod send labels and numbers that no proxy of the mesh sends.
func TestParseHostile(t *testing.T) {
	line := func(code, n string) string {
		return telemetry.Requests + `{reporter="destination",response_code="` + code + `"} ` + n + "\n"
	}
	sample := parse(t, line("\x1b]0;owned\x07", "1")+line("201", "-5")+line("202", "NaN")+line("203", "+Inf")+line("204", "1"))
	flows := traffic.Flows(&bookstore, nil, sample)
	want := map[string]float64{"?]0;owned?": 1, "204": 1}
	if len(flows) != 1 || !cmp.Equal(flows[0].Codes, want) {
		t.Errorf("got %v, want the codes %v", flows, want)
	}
}
