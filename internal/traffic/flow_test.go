package traffic_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// received is the Flow from bookbuyer to bookstore with some counts.
func received(counts traffic.Counts) traffic.Flow {
	return traffic.Flow{
		Reporter: "destination", Source: traffic.End{Namespace: "buyer", ServiceAccount: "bookbuyer"},
		Destination: traffic.End{Namespace: "store", Workload: "bookstore", ServiceAccount: "bookstore"}, Protocol: "http", Counts: counts,
	}
}

func TestFlows(t *testing.T) {
	for name, tt := range map[string]struct {
		// before is nil if there is no earlier sample.
		before, after func(*proxy)
		// restart says that the later sample is of a new process.
		restart bool
		want    []traffic.Flow
	}{
		"only what is new counts": {
			before: func(p *proxy) { p.request(10, "200", "", "mutual"); p.request(5, "404", "", "mutual") },
			after:  func(p *proxy) { p.request(20, "200", "", "mutual"); p.request(1, "503", "", "none") },
			want: []traffic.Flow{received(traffic.Counts{
				Requests: 21, Failed: 1, Codes: map[string]float64{"200": 20, "503": 1}, TLS: map[string]float64{"mutual": 20, "none": 1},
			})},
		},
		"nothing is new": {
			before: func(p *proxy) { p.request(10, "200", "", "mutual"); p.answered(0.3) },
			after:  func(*proxy) {},
		},
		"a restarted proxy": {
			before:  func(p *proxy) { p.request(10, "200", "", "mutual"); p.answered(0.3, 0.3, 0.3) },
			after:   func(p *proxy) { p.request(4, "200", "", "mutual"); p.answered(0.3, 0.0001) },
			restart: true,
			want: []traffic.Flow{received(traffic.Counts{
				Requests: 4, Codes: map[string]float64{"200": 4}, TLS: map[string]float64{"mutual": 4}, Durations: buckets(0.0005, 1, 0.5, 1),
			})},
		},
		"without a period": {
			after: func(p *proxy) { p.request(4, "200", "", "mutual") },
			want: []traffic.Flow{received(traffic.Counts{
				Requests: 4, Codes: map[string]float64{"200": 4}, TLS: map[string]float64{"mutual": 4},
			})},
		},
		"failures are of the server or the network": {
			after: func(p *proxy) {
				p.request(1, "0", "", "mutual")
				p.request(1, "499", "", "mutual")
				p.request(1, "500", "", "mutual")
				for _, status := range []string{"0", "2", "4", "5", "7", "12", "13", "14", "15"} {
					p.request(1, "200", status, "mutual")
				}
			},
			want: []traffic.Flow{received(traffic.Counts{
				Requests: 12, Failed: 8, TLS: map[string]float64{"mutual": 12},
				Codes: map[string]float64{"0": 1, "499": 1, "500": 1, "grpc 0": 1, "grpc 2": 1, "grpc 4": 1, "grpc 5": 1, "grpc 7": 1, "grpc 12": 1, "grpc 13": 1, "grpc 14": 1, "grpc 15": 1},
			})},
		},
		"everything else that is counted": {
			after: func(p *proxy) {
				p.count(1, telemetry.RequestBytes)
				p.count(2, telemetry.ResponseBytes)
				p.count(4, telemetry.ReceivedBytes)
				p.count(8, telemetry.SentBytes)
				p.count(16, telemetry.Retries)
				p.count(32, telemetry.Connections, "tls", "mutual")
				p.count(64, telemetry.Denied, "reason", "access")
				p.count(128, telemetry.AuditDenied, "reason", "plaintext")
				p.answered(0.004, 0.004, 100)
			},
			want: []traffic.Flow{received(traffic.Counts{
				Received: 5, Sent: 10, Retries: 16, Connections: 32, TLS: map[string]float64{"mutual": 32},
				Denied: map[string]float64{"access": 64}, AuditDenied: map[string]float64{"plaintext": 128}, Durations: traffic.Histogram{Buckets: buckets(0.005, 2).Buckets, Over: 1},
			})},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy()
			var before traffic.Sample
			if tt.before != nil {
				tt.before(p)
				before = p.sample(t)
			}
			if tt.restart {
				p = newProxy()
			}
			tt.after(p)
			got := traffic.Flows(&bookstore, before, p.sample(t))
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// answered counts requests by their durations in seconds.
func (p *proxy) answered(seconds ...float64) {
	for _, s := range seconds {
		p.duration.With(with()).Observe(s)
	}
}

// buckets returns a histogram with telemetry's buckets, some of which have counts, given as
// bound and count in turn.
func buckets(counts ...float64) traffic.Histogram {
	var h traffic.Histogram
	for _, bound := range telemetry.Buckets() {
		b := traffic.Bucket{Bound: bound}
		for i := 0; i < len(counts); i += 2 {
			if counts[i] == bound {
				b.Count = counts[i+1]
			}
		}
		h.Buckets = append(h.Buckets, b)
	}
	return h
}

// TestFlowsOwnEnd has a proxy report for another workload than its pod's.
func TestFlowsOwnEnd(t *testing.T) {
	p := newProxy()
	p.count(1, telemetry.Retries, "reporter", "source", "source_namespace", "other", "source_workload", "other", "source_service_account", "other")
	flows := traffic.Flows(&bookstore, nil, p.sample(t))
	want := traffic.End{Namespace: "store", Workload: "bookstore", ServiceAccount: "bookstore"}
	if len(flows) != 1 || flows[0].Source != want {
		t.Errorf("got %+v, want a flow from %+v", flows, want)
	}
}

// TestQuantile has the results of histogram_quantile for the same buckets, and its rules for
// the first and the last one.
func TestQuantile(t *testing.T) {
	for name, tt := range map[string]struct {
		of    traffic.Histogram
		share float64
		want  any
	}{
		"in the middle of a bucket":      {buckets(0.1, 10, 0.25, 10), 0.75, 0.1 + 0.15*0.5},
		"at the border of two":           {buckets(0.1, 10, 0.25, 10), 0.5, 0.1},
		"above an empty bucket":          {buckets(0.001, 50, 0.01, 50), 0.75, 0.005 + 0.005*0.5},
		"in the first bucket":            {buckets(0.0005, 4), 0.5, 0.00025},
		"above the last bound":           {traffic.Histogram{Buckets: buckets(0.1, 1).Buckets, Over: 9}, 0.95, 60.0},
		"in one bucket with a bound 0.1": {buckets(0.1, 100), 0.99, 0.05 + 0.05*0.99},
		"without durations":              {buckets(), 0.5, nil},
		"of nothing":                     {traffic.Histogram{}, 0.5, nil},
	} {
		got := tt.of.Quantile(tt.share)
		switch want, ok := tt.want.(float64); {
		case ok != (got != nil):
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		case ok && (*got < want-1e-9 || *got > want+1e-9):
			t.Errorf("%s: got %g, want %g", name, *got, want)
		}
	}
}
