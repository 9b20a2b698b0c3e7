package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/internal/metric"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// desk is a Registry with a variable limit, and its reports.
type desk struct {
	*Registry
	limit  int
	gather *prometheus.Registry

	mu       sync.Mutex
	reports  int
	reported map[mesh.ObjectRef][]string
}

func newDesk(t *testing.T) *desk {
	d := &desk{gather: prometheus.NewRegistry(), reported: map[mesh.ObjectRef][]string{}}
	d.Registry = New(Options{Limit: func() int { return d.limit }, Report: d.report, Registerer: d.gather})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return d
}

func (d *desk) report(object mesh.ObjectRef, problems []mesh.Problem) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reports++
	delete(d.reported, object)
	for _, p := range problems {
		if p.Object != object || p.Reason != ReasonRejected {
			p.Message = fmt.Sprintf("%s of %s: %s", p.Reason, p.Object, p.Message)
		}
		d.reported[object] = append(d.reported[object], p.Message)
	}
}

// settle waits until changes are reported, and returns the current reports.
func (d *desk) settle(t *testing.T) map[mesh.ObjectRef][]string {
	t.Helper()
	time.Sleep(2 * time.Second)
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.reported)
}

// metrics returns the metrics whose value is not 0, without the histogram's buckets.
func (d *desk) metrics(t *testing.T) []string {
	t.Helper()
	families, err := d.gather.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, family := range families {
		for _, m := range family.GetMetric() {
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue()
			name := strings.TrimPrefix(family.GetName(), "outrigger_")
			if h := m.GetHistogram(); h != nil {
				name, value = name+"_count", float64(h.GetSampleCount())
			}
			if value != 0 {
				lines = append(lines, fmt.Sprintf("%s %s %v", name, m.GetLabel()[0].GetValue(), value))
			}
		}
	}
	return lines
}

func proxyOf(name, uid string) driver.ConnectedProxy {
	return driver.ConnectedProxy{
		Peer: driver.Peer{
			Identity: mesh.Identity{TrustDomain: "td", Namespace: "shop", ServiceAccount: "cart"},
			ProxyUID: uid,
		},
		Name: mesh.Name{Namespace: "shop", Name: name}, Class: "envoy", Version: "1.40.0",
		Address: netip.MustParseAddrPort("192.0.2.1:4711"),
	}
}

func (d *desk) connect(t *testing.T, name, uid string) driver.ProxyConnection {
	t.Helper()
	c, err := d.Connect(proxyOf(name, uid))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func expect(t *testing.T, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// states returns the proxies with their states.
func (d *desk) states() []string {
	var list []string
	for _, p := range d.Proxies() {
		list = append(list, p.Name.Name+" "+string(p.State))
	}
	return list
}

// TestLimit checks the limit of connected proxies, which does not apply to a proxy that is
// connected already.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		d.limit = 2
		a := d.connect(t, "a", "1")
		d.connect(t, "b", "2")
		_, err := d.Connect(proxyOf("c", "3"))
		if !errors.Is(err, driver.ErrTooManyProxies) || !strings.Contains(err.Error(), "maxDataPlaneConnections") {
			t.Errorf("one too many: error %v", err)
		}
		again := d.connect(t, "a", "1")
		expect(t, "connected", []string{"a Empty", "b Empty"}, d.states())
		a.Close()
		a.Close()
		expect(t, "after the older connection of a has ended", []string{"a Empty", "b Empty"}, d.states())
		if _, err := d.Connect(proxyOf("c", "3")); err == nil {
			t.Error("the end of an older connection has made room")
		}

		// Lowering the limit disconnects no proxy, and connected ones may connect again.
		d.limit = 1
		again.Close()
		expect(t, "after a has gone", []string{"b Empty"}, d.states())
		if _, err := d.Connect(proxyOf("a", "1")); err == nil {
			t.Error("a is let in, and b fills the limit of 1")
		}
		d.connect(t, "b", "2")
		d.limit = 0
		for i := range 100 {
			d.connect(t, fmt.Sprintf("n%d", i), fmt.Sprintf("n%d", i))
		}
		expect(t, "metrics", []string{"proxies_by_key_exchange envoy 101", "proxies_by_version envoy 101", "proxies_connected envoy 101", "proxies_refused_total envoy 3"}, d.metrics(t))
	})
}

// TestStates follows one proxy.
func TestStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		c := d.connect(t, "a", "1")
		expect(t, "at first", []string{"a Empty"}, d.states())
		c.Sent("v1", 10, 1000)
		expect(t, "sent", []string{"a Waiting"}, d.states())
		changed := time.Now()
		time.Sleep(300 * time.Millisecond)
		c.Acked("v1", changed)
		expect(t, "acked", []string{"a Current"}, d.states())
		c.Sent("v2", 1, 50)
		c.Rejected(driver.Rejection{Version: "v2", Message: "no\n such\tthing", Resources: []string{"Cluster x"}})
		expect(t, "rejected", []string{"a Rejected"}, d.states())
		c.Sent("v3", 1, 50)
		c.Acked("v3", time.Time{})
		shown := d.Proxies()[0]
		expect(t, "at the end", Proxy{
			Name: mesh.Name{Namespace: "shop", Name: "a"}, UID: "1", Identity: "spiffe://td/ns/shop/sa/cart", Class: "envoy", Version: "1.40.0",
			Address: "192.0.2.1:4711", Connected: changed, State: "Current",
			Sent: Configuration{"v3", changed.Add(300 * time.Millisecond)}, Acked: Configuration{"v3", changed.Add(300 * time.Millisecond)},
			Resources: 12, Bytes: 1100,
		}, shown)
		expect(t, "metrics", []string{
			"proxies_by_key_exchange envoy 1", "proxies_by_version envoy 1", "proxies_connected envoy 1", "proxy_config_bytes_total envoy 1100", "proxy_config_resources_total envoy 12", "proxy_config_seconds_count envoy 1",
			"proxy_configs_acked_total envoy 2", "proxy_configs_rejected_total envoy 1", "proxy_configs_sent_total envoy 3",
		}, d.metrics(t))

		// Reports on an older connection are ignored.
		newer := d.connect(t, "a", "1")
		newer.Acked("v3", time.Time{})
		c.Rejected(driver.Rejection{Version: "v3", Message: "late"})
		c.Sent("v4", 1, 1)
		expect(t, "by the newer connection", []string{"a Current"}, d.states())
		newer.Close()
		c.Acked("v9", time.Time{})
		c.Close()
		expect(t, "after the end", []string(nil), d.states())
	})
}

var (
	service = mesh.ObjectRef{APIVersion: "v1", Kind: "Service", Namespace: "shop", Name: "cart"}
	split   = mesh.ObjectRef{APIVersion: "split.smi-spec.io/v1alpha4", Kind: "TrafficSplit", Namespace: "shop", Name: "cart"}
)

func pod(name string) mesh.ObjectRef {
	return mesh.ObjectRef{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: name}
}

func TestProblems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		a := d.connect(t, "a", "1")
		refused := driver.Rejection{Version: "v1", Message: "no such\nthing", Resources: []string{"Cluster shop/cart:80"}, Objects: []mesh.ObjectRef{service, split}}
		a.Rejected(refused)
		one := []string{"the envoy proxy of pod shop/a rejects Cluster shop/cart:80; the previous configuration stays in use: no such thing"}
		expect(t, "one proxy", map[mesh.ObjectRef][]string{service: one, split: one}, d.settle(t))

		b := d.connect(t, "b", "2")
		b.Rejected(refused)
		two := []string{"the envoy proxy of pod shop/a and others reject Cluster shop/cart:80; the previous configuration stays in use: no such thing"}
		expect(t, "two proxies", map[mesh.ObjectRef][]string{service: two, split: two}, d.settle(t))

		a.Acked("v2", time.Time{})
		other := []string{"the envoy proxy of pod shop/b rejects Cluster shop/cart:80; the previous configuration stays in use: no such thing"}
		expect(t, "the first one took the next", map[mesh.ObjectRef][]string{service: other, split: other}, d.settle(t))

		// Another part of the same version is rejected too.
		b.Rejected(driver.Rejection{Version: "v1", Message: "bad", Resources: []string{"Route shop/cart:80"}, Objects: []mesh.ObjectRef{split}})
		expect(t, "two parts", map[mesh.ObjectRef][]string{
			service: other, split: append(slices.Clone(other), "the envoy proxy of pod shop/b rejects Route shop/cart:80; the previous configuration stays in use: bad"),
		}, d.settle(t))
		// Of the next version only that part is rejected.
		b.Rejected(driver.Rejection{Version: "v2", Message: "bad", Resources: []string{"Route shop/cart:80"}, Objects: []mesh.ObjectRef{split}})
		expect(t, "one part of the next", map[mesh.ObjectRef][]string{
			split: {"the envoy proxy of pod shop/b rejects Route shop/cart:80; the previous configuration stays in use: bad"},
		}, d.settle(t))
		b.Close()
		expect(t, "the proxy is gone", map[mesh.ObjectRef][]string{}, d.settle(t))
		expect(t, "metrics of those that refuse", false, slices.ContainsFunc(d.metrics(t), func(m string) bool { return strings.HasPrefix(m, "proxies_rejecting") }))

		// A rejection without an object belongs to the pod.
		a.Rejected(driver.Rejection{Version: "v3", Message: "out of memory"})
		expect(t, "no object", map[mesh.ObjectRef][]string{
			pod("a"): {"the envoy proxy of pod shop/a rejects a part of its configuration; the previous configuration stays in use: out of memory"},
		}, d.settle(t))
		d.connect(t, "a", "1")
		expect(t, "a new connection begins anew", map[mesh.ObjectRef][]string{}, d.settle(t))
	})
}

// TestManyRefuse lets a thousand proxies reject the same, one after the other.
func TestManyRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		var all []driver.ProxyConnection
		for i := range 1000 {
			c := d.connect(t, fmt.Sprintf("p%04d", i), fmt.Sprint(i))
			all = append(all, c)
			c.Rejected(driver.Rejection{Version: "v", Message: "no such thing", Resources: []string{"Cluster x"}, Objects: []mesh.ObjectRef{service}})
			c.Rejected(driver.Rejection{Version: "v", Message: "nothing to do with objects", Resources: []string{"Listener y"}})
			c.Rejected(driver.Rejection{Version: "v", Message: "of the pod", Resources: []string{"Listener z"}, Objects: []mesh.ObjectRef{pod(fmt.Sprintf("p%04d", i))}})
			time.Sleep(20 * time.Millisecond)
		}
		reported := d.settle(t)
		want := []string{"the envoy proxy of pod shop/p0000 and others reject Cluster x; the previous configuration stays in use: no such thing"}
		expect(t, "the object", want, reported[service])
		expect(t, "objects with Problems", 1+maxMessages, len(reported))
		// This takes 20 seconds, and the message changes only in the first one.
		if d.reports > 12 {
			t.Errorf("%d reports, want a few", d.reports)
		}
		for _, c := range all {
			c.Close()
		}
		expect(t, "all gone", map[mesh.ObjectRef][]string{}, d.settle(t))
	})
}

// TestBounds lets a proxy reject very much, with very long messages.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		c := d.connect(t, "a", "1")
		var names []string
		for i := range 1000 {
			names = append(names, fmt.Sprintf("Cluster %d", i))
			c.Rejected(driver.Rejection{Version: "v", Message: strings.Repeat("ä\xff", 10_000), Resources: []string{fmt.Sprint(i)}, Objects: []mesh.ObjectRef{service}})
		}
		c.Rejected(driver.Rejection{Version: "v", Message: "short", Resources: names, Objects: []mesh.ObjectRef{split}})
		if got := d.Proxies()[0].Rejections; len(got) > maxRejections || len(got[0].Message) > 3*maxMessage {
			t.Errorf("%d rejections are kept, the first with %d bytes", len(got), len(got[0].Message))
		}
		reported := d.settle(t)
		expect(t, "many resources", []string{"the envoy proxy of pod shop/a rejects Cluster 0, Cluster 1, Cluster 2 and 997 more; the previous configuration stays in use: short"}, reported[split])
		expect(t, "many messages", maxMessages, len(reported[service]))
	})
}

// TestConcurrent is for the race detector.
func TestConcurrent(t *testing.T) {
	r := New(Options{Registerer: prometheus.NewRegistry(), Report: func(mesh.ObjectRef, []mesh.Problem) {}, Settle: time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { r.Run(ctx) })
	var proxies sync.WaitGroup
	for i := range 8 {
		proxies.Go(func() {
			for range 200 {
				c, err := r.Connect(proxyOf("a", fmt.Sprint(i%3)))
				if err != nil {
					t.Error(err)
					return
				}
				c.Sent("v", 1, 1)
				c.Rejected(driver.Rejection{Version: "v", Message: "no", Objects: []mesh.ObjectRef{service}})
				r.Proxies()
				c.Acked("v", time.Now())
				c.Close()
			}
		})
	}
	proxies.Wait()
	cancel()
	all.Wait()
	if left := r.Proxies(); len(left) > 0 {
		t.Errorf("%d proxies are left", len(left))
	}
}

// TestVersions counts proxies by their version, which may change and is not limited by anything
// else than the metrics' own limit, and by the key exchange that it tells.
func TestVersions(t *testing.T) {
	gather := prometheus.NewRegistry()
	r := New(Options{Registerer: gather, KeyExchange: func(class, version string) string {
		return map[string]string{"haproxy 3.2.26": "hybrid"}[class+" "+version]
	}})
	connect := func(uid, version string) driver.ProxyConnection {
		c, err := r.Connect(driver.ConnectedProxy{Peer: driver.Peer{ProxyUID: uid}, Class: "haproxy", Version: version})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	count := func(value string) (number float64) {
		families, err := gather.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if by := f.GetName(); (by == metric.ProxiesByVersion && value != "hybrid" || by == metric.ProxiesByKeyExchange && value == "hybrid") && m.GetLabel()[1].GetValue() == value {
					number += m.GetGauge().GetValue()
				}
			}
		}
		return number
	}
	former, last := connect("a", ""), connect("b", "")
	if got := count(""); got != 2 {
		t.Errorf("%v proxies without a version are counted, want 2", got)
	}
	last.SetVersion("2.6.12")
	connect("a", "3.2.26")
	former.SetVersion("1.0") // It is not the proxy's newest connection.
	if got := r.Proxies(); got[0].Version != "3.2.26" || got[1].Version != "2.6.12" || count("2.6.12") != 1 || count("1.0") != 0 || count("hybrid") != 1 {
		t.Errorf("the proxies are %+v", got)
	}
	for i := range 3 * maxVersions {
		connect(fmt.Sprint("c", i), fmt.Sprint("0.", i))
	}
	connect("d", "2.6.12")
	if got := count("other"); got != 2*maxVersions+2 {
		t.Errorf("%v proxies with rare versions are counted together", got)
	}
	if got := count("2.6.12"); got != 2 {
		t.Errorf("%v proxies have the most frequent version, want 2", got)
	}
}
