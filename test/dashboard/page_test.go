package dashboard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/outrigger-mesh/outrigger/internal/dashboard"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/explain"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// generated is a controller with a generated mesh.
type generated struct {
	mu      sync.Mutex
	mesh    debug.MeshPage
	traffic func() traffic.Report
}

func (g *generated) ask(_ context.Context, path string, take func(string, []byte) error) error {
	g.mu.Lock()
	value := g.answer(path)
	text, err := json.Marshal(value)
	g.mu.Unlock()
	if err != nil {
		return err
	}
	if err := take("generated", text); !errors.Is(err, debug.ErrEnough) {
		return err
	}
	return nil
}

func (g *generated) answer(path string) any {
	address, err := url.Parse(path)
	if err != nil {
		return err
	}
	switch address.Path {
	case debug.TrafficPath:
		return g.traffic()
	case debug.ExplainPath:
		return explain.Explanation{Verdict: explain.Denied, Steps: []explain.Step{
			{Topic: "access", Text: "no rule matches", Details: []string{"TrafficTarget shop/front is for other sources"}, Verdict: explain.Denied},
		}}
	case debug.ProxyPath:
		pod := address.Query().Get("pod")
		return map[string]any{
			"proxy":    g.mesh.Proxies[0],
			"view":     map[string]string{"pod": pod},
			"policies": []mesh.ObjectRef{{Kind: "TrafficTarget", Namespace: "shop", Name: "front"}},
			// Two pods differ in one line.
			"configuration": map[string]string{"proxy.conf": "same\nnode " + pod + "\nsame\n"},
		}
	}
	return g.mesh
}

// change changes the mesh.
func (g *generated) change(f func(*debug.MeshPage)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(&g.mesh)
}

func (g *generated) addWorkload(name string, pods int) {
	for i := range pods {
		of := mesh.Name{Namespace: "shop", Name: fmt.Sprintf("%s-%d", name, i)}
		g.mesh.Pods = append(g.mesh.Pods, debug.MeshPod{
			Name: of, Owner: fact.Owner{Kind: "deployment", Name: name}, ServiceAccount: name, Class: []string{"envoy", "haproxy", "pipy"}[i%3], Ready: true,
		})
		g.mesh.Proxies = append(g.mesh.Proxies, registry.Proxy{
			Name: of, UID: of.Name, State: registry.Current, Class: "envoy", Identity: "spiffe://cluster.local/ns/shop/sa/" + name,
			CertificateEnds: time.Now().Add(time.Hour),
		})
	}
}

// addService adds a service with its workload of the same name.
func (g *generated) addService(name string, pods int) {
	g.addWorkload(name, pods)
	s := debug.MeshService{Name: mesh.Name{Namespace: "shop", Name: name}, Ports: []fact.PortSpec{{Port: 80, Protocol: "http"}}}
	for i := range pods {
		s.Pods = append(s.Pods, fmt.Sprintf("%s-%d", name, i))
	}
	g.mesh.Services = append(g.mesh.Services, s)
}

// calls is a client's pod that has called a service.
func calls(client, service string, counts traffic.Counts) traffic.Pod {
	flow := traffic.Flow{Reporter: "source", Source: traffic.End{Namespace: "shop", Workload: client, ServiceAccount: client}, Protocol: "http", Counts: counts}
	if service != "" {
		flow.Destination, flow.Service = traffic.End{Namespace: "shop"}, service
	}
	return traffic.Pod{
		Name: mesh.Name{Namespace: "shop", Name: client + "-0"}, Owner: fact.Owner{Kind: "deployment", Name: client}, ServiceAccount: client,
		Read: true, Seconds: 1, Flows: []traffic.Flow{flow},
	}
}

func answered(n float64) traffic.Counts {
	return traffic.Counts{
		Requests: n, TLS: map[string]float64{"mutual": n}, Durations: traffic.Histogram{Buckets: []traffic.Bucket{{Bound: 0.005, Count: n}}},
	}
}

// serve serves the dashboard as 'outrigger dashboard' does, and returns its address with and
// without the key.
func (g *generated) serve(t *testing.T) (address, server string) {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	options := dashboard.Options{Ask: g.ask}
	address = options.Local(s.Listener)
	s.Config.Handler = dashboard.New(options)
	s.Start()
	t.Cleanup(s.Close)
	return address, s.URL
}

// split divides the traffic of the service front.
func split(v1, v2 uint32) []debug.MeshSplit {
	return []debug.MeshSplit{{
		Service: mesh.ServicePort{Name: mesh.Name{Namespace: "shop", Name: "front"}, Port: 80}, Route: "shop/canary",
		Shares: []debug.MeshShare{{Service: mesh.Name{Namespace: "shop", Name: "front-v1"}, Weight: v1}, {Service: mesh.Name{Namespace: "shop", Name: "front-v2"}, Weight: v2}},
	}}
}

// TestPage uses the page as people do, by mouse and keyboard.
func TestPage(t *testing.T) {
	b := newBrowser(t)
	g := &generated{}
	g.addWorkload("buyer", 2)
	g.addWorkload("thief", 1)
	g.addService("front", 0)
	g.addService("front-v1", 2)
	g.addService("front-v2", 1)
	g.mesh.Splits = split(90, 10)
	g.mesh.Problems = []mesh.Problem{{Object: mesh.ObjectRef{Kind: "TrafficTarget", Namespace: "shop", Name: "front"}, Reason: "Invalid", Message: "it names nobody"}}
	g.traffic = func() traffic.Report {
		return traffic.Report{Pods: []traffic.Pod{
			calls("buyer", "front-v1", answered(9)), calls("buyer", "front-v2", answered(1)),
			calls("thief", "", traffic.Counts{Denied: map[string]float64{"egress": 5}}),
		}}
	}
	address, server := g.serve(t)
	b.open(address)

	b.line("call", "w:shop/buyer", "s:shop/front-v1", "🔒 9.0/s", 30*time.Second)
	b.line("split", "s:shop/front", "s:shop/front-v1", "90 %", 10*time.Second)
	refused := b.line("refused", "w:shop/thief", "r:shop/thief", "refused 5.0/s", 10*time.Second)
	b.choose(refused.ID)
	b.sees(".details", "TrafficTarget shop/front is for other sources")
	b.do(chromedp.KeyEvent(kb.Escape))

	g.change(func(m *debug.MeshPage) { m.Splits = split(50, 50) })
	b.line("split", "s:shop/front", "s:shop/front-v1", "50 %", 10*time.Second)
	b.do(chromedp.KeyEvent("3"))
	b.sees(".splitcard", "front-v1 50 %", "front-v1 90 %")
	b.do(chromedp.KeyEvent("4"))
	b.sees("table", "it names nobody")
	b.do(chromedp.KeyEvent("2"))
	b.sees("table.calls", "shop/buyer", "🔒 yes", "5.0/s: egress")

	// The search hides what it does not find, and its first result is chosen by Enter.
	b.do(chromedp.KeyEvent("1"), chromedp.KeyEvent("/"), chromedp.KeyEvent("buyer"+kb.Enter))
	b.sees(".details h3", "buyer")
	dim := eval[[]string](b, `document.querySelector('.graph')._cyreg.cy.nodes('.dim').map(n => n.id())`)
	if !strings.Contains(strings.Join(dim, " "), "w:shop/thief") {
		t.Errorf("the search for buyer leaves everything but %q", dim)
	}
	b.do(chromedp.KeyEvent(kb.Escape), chromedp.KeyEvent(kb.Escape))

	const theme = "document.documentElement.dataset.theme"
	before := eval[string](b, theme)
	b.do(chromedp.KeyEvent("t"))
	after := eval[string](b, theme)
	if before == after {
		t.Errorf("the theme stays %s", before)
	}

	b.click(`aside a[href="#/workload/shop/front-v1"]`, "")
	b.sees(".workload", "front-v1-0", "front-v1-1", "Current")
	b.click("button", "Policies")
	b.sees(".workload", "TrafficTarget shop/front", "it names nobody")
	b.click("button", "Certificate")
	b.sees(".workload", "spiffe://cluster.local/ns/shop/sa/buyer", "in 60 min")
	b.click("button", "Configuration")
	b.sees("pre.file", "node shop/front-v1-0")
	eval[bool](b, `(s => { s.value = 'front-v1-1'; return s.dispatchEvent(new Event('change', { bubbles: true })) })(document.querySelectorAll('.tools select')[1])`)
	b.sees("pre.file del", "- node shop/front-v1-1")
	b.sees("pre.file ins", "+ node shop/front-v1-0")
	b.shoot("dashboard-configuration.png")
	b.check(server)
}

// TestLarge counts the frames that the browser draws while a large graph moves and changes.
func TestLarge(t *testing.T) {
	b := newBrowser(t)
	g := &generated{}
	const services, pods = 100, 10
	for i := range services {
		g.addService(fmt.Sprintf("s%d", i), pods)
	}
	turn := 0
	g.traffic = func() traffic.Report {
		turn++
		var report traffic.Report
		for i := range services {
			for _, j := range []int{(2*i + 1) % services, (3*i + 7) % services, (5*i + 2) % services} {
				report.Pods = append(report.Pods, calls(fmt.Sprintf("s%d", i), fmt.Sprintf("s%d", j), answered(float64(1+(turn+i)%50))))
			}
		}
		return report
	}
	address, server := g.serve(t)
	b.open(address)
	b.eventually("the graph", time.Minute, func() error {
		if n := len(b.lines()); n < 3*services {
			return fmt.Errorf("%d edges", n)
		}
		return nil
	})
	b.sees(".state", "100 services · 1000 pods")
	// The graph moves for five seconds, in which it gets new data at least once.
	measured := eval[struct{ Frames, Longest float64 }](b, `new Promise(done => {
		const cy = document.querySelector('.graph')._cyreg.cy
		let frames = 0, longest = 0, began = performance.now(), last = began
		const frame = now => {
			frames++
			longest = Math.max(longest, now - last)
			last = now
			cy.panBy({ x: Math.sin(now / 300) * 8, y: 0 })
			if (now - began < 5000) requestAnimationFrame(frame)
			else done({ Frames: frames / (now - began) * 1000, Longest: longest })
		}
		requestAnimationFrame(frame)
	})`)
	t.Logf("%.0f frames a second, the longest took %.0f ms", measured.Frames, measured.Longest)
	// Tests share the processors of the machine, and nothing draws for this browser but them.
	if measured.Frames < 10 {
		t.Errorf("the graph moves with %.1f frames a second", measured.Frames)
	}
	b.check(server)
}
