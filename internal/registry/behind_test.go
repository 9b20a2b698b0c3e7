package registry

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/internal/metric"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// TestBehind checks when the metric says that a proxy is behind.
func TestBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gather := prometheus.NewRegistry()
		r := New(Options{Registerer: gather})
		check := func(when string, after time.Duration, want float64) {
			t.Helper()
			time.Sleep(after)
			families, err := gather.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				if f.GetName() == metric.ProxiesBehind {
					if got := f.GetMetric()[0].GetGauge().GetValue(); got != want {
						t.Errorf("%s: %v proxies are behind, want %v", when, got, want)
					}
					return
				}
			}
			t.Errorf("%s: there is no %s", when, metric.ProxiesBehind)
		}
		p, err := r.Connect(driver.ConnectedProxy{Peer: driver.Peer{ProxyUID: "a"}, Class: "envoy"})
		if err != nil {
			t.Fatal(err)
		}
		check("just connected", time.Second, 0)
		check("connected without a configuration", 2*time.Minute, 1)
		p.Sent("1", 1, 1)
		check("its first one was sent, without an answer", time.Second, 1)
		p.Acked("1", time.Time{})
		check("taken", time.Hour, 0)
		p.Sent("2", 1, 1)
		check("sent a moment ago", 30*time.Second, 0)
		p.Sent("3", 1, 1)
		check("a newer one does not excuse it", 31*time.Second, 1)
		p.Acked("2", time.Time{})
		check("it makes progress", 59*time.Second, 0)
		check("it made progress a while ago", 2*time.Second, 1)
		p.Acked("3", time.Time{})
		check("taken at last", time.Hour, 0)
		p.Sent("4", 1, 1)
		p.Sent("3", 1, 1)
		check("what it runs is the latest again", time.Hour, 0)
		p.Sent("5", 1, 1)
		p.Rejected(driver.Rejection{Version: "5"})
		check("it rejects the latest, which is another state", time.Hour, 0)
		p.Close()
		families, err := gather.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == metric.ProxiesBehind {
				t.Errorf("no proxy is connected, but there is %v", f)
			}
		}
	})
}
