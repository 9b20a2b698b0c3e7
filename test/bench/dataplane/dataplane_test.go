package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/test/bench/process"
	"github.com/outrigger-mesh/outrigger/test/lab"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

func TestMain(m *testing.M) {
	lab.Enter()
	m.Run()
}

// TestBench measures everything once, in short rounds, and checks that each step has
// switched off what its name says.
func TestBench(t *testing.T) {
	if err := lab.Available(); errors.Is(err, lab.ErrUnavailable) {
		t.Skip("SKIPPED: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	classes, missing := localmesh.FindProxies()
	p := plan{
		parts: parts, stepLoads: []load{{http1, 2, 0}}, timing: timing{rounds: 1, each: 20 * time.Millisecond, warm: 5 * time.Millisecond},
		services: []int{3}, modes: []mode{byPolicy}, starts: 1, threads: 1, inspect: inspectSteps,
	}
	for _, class := range []string{"envoy", "haproxy", "pipy"} {
		if classes[class] == "" {
			t.Logf("SKIPPED: %s: %v", class, missing[class])
			continue
		}
		p.classes = append(p.classes, class)
	}
	if len(p.classes) == 0 {
		t.Skip("SKIPPED: there is no proxy on this machine")
	}
	for _, name := range protocols {
		p.loads = append(p.loads, load{name, 2, 500})
	}
	results, err := measure(t.Context(), &p, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	if err := results.failures(); err != nil {
		t.Error(err)
	}
	checkUsage := func(where string, l *Latency, sidecars int) {
		if l.Requests == 0 || l.P50 <= 0 || l.P99 < l.P50 || l.PerSecond <= 0 {
			t.Errorf("%s: %d requests, p50 %s, p99 %s, %.0f/s", where, l.Requests, l.P50, l.P99, l.PerSecond)
		}
		if len(l.Sidecars) != sidecars {
			t.Fatalf("%s: the usage of %d sidecars, want %d", where, len(l.Sidecars), sidecars)
		}
		for _, u := range l.Sidecars {
			if u.ProxyCPU <= 0 || u.Proxy.Anonymous <= 0 || u.Proxy.Resident <= u.Proxy.Anonymous || u.Agent.Anonymous <= 0 || u.Agent.Resident <= u.Agent.Anonymous {
				t.Errorf("%s: the usage is %+v", where, u)
			}
		}
	}
	n := len(p.classes)
	if want := len(p.loads) * (1 + n*n); len(results.Pairs) != want {
		t.Errorf("%d results of pairs, want %d", len(results.Pairs), want)
	}
	for i := range results.Pairs {
		l := &results.Pairs[i]
		sidecars := 2
		if l.path() == noMesh {
			sidecars = 0
		}
		checkUsage(fmt.Sprint(l.path(), ", ", l.Protocol), l, sidecars)
	}
	seen := make(map[string]bool)
	for i := range results.Steps {
		s := &results.Steps[i]
		sidecars := 2
		if s.Name == noMesh {
			sidecars = 0
		}
		checkUsage(s.Class+" "+s.Name, &s.Latency, sidecars)
		seen[s.Class+" "+s.Name] = true
	}
	for _, class := range p.classes {
		for _, s := range append(stepsOf(class), step{name: noMesh}) {
			if !seen[class+" "+s.name] {
				t.Errorf("%s has no step %q", class, s.name)
			}
		}
	}
	for _, e := range results.Effects {
		if e.Allowed <= 0 || e.Refused <= 0 || e.AllowedMax < e.Allowed || e.RefusedMax < e.Refused {
			t.Errorf("a policy takes effect %+v", e)
		}
	}
	if len(results.Effects) != n || len(results.Memory) != n || len(results.Starts) != n || len(results.Programs) != n+1 {
		t.Errorf("there are %d times to effect, %d results of memory, %d starts and %d programs of %d classes", len(results.Effects), len(results.Memory), len(results.Starts), len(results.Programs), n)
	}
	for _, f := range results.Memory {
		if f.Proxy.Anonymous <= 0 || f.Agent.Anonymous <= 0 {
			t.Errorf("the memory of %s is %+v", f.Class, f)
		}
	}
	checkPage(t, results)
}

// checkPage writes the results into a page.
func checkPage(t *testing.T, results *Results) {
	t.Helper()
	file, to := filepath.Join(t.TempDir(), "results.json"), filepath.Join(t.TempDir(), "cost.md")
	text, err := json.Marshal(results)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile("../../../docs/cost.md")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(file, text, 0o600), os.WriteFile(to, before, 0o600), writePage(to, []string{file})); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"### HTTP/2, by pair", "### Memory of an idle sidecar", "| " + noLogs + " |", results.Machine.Kernel} {
		if !bytes.Contains(after, []byte(want)) {
			t.Errorf("the page does not contain %q:\n%s", want, after)
		}
	}
}

// inspectSteps sends requests through each pair, and looks at what the sidecars did.
func inspectSteps(ctx context.Context, meshes map[mode]*localmesh.Mesh, pairs []pair) error {
	errs := make([]error, len(pairs))
	var group sync.WaitGroup
	for i := range pairs {
		group.Go(func() {
			if err := inspectStep(ctx, meshes[pairs[i].mode], &pairs[i]); err != nil {
				errs[i] = fmt.Errorf("%s, %s: %w", pairs[i].client.class, pairs[i].name, err)
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

func inspectStep(ctx context.Context, mesh *localmesh.Mesh, p *pair) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	server := mesh.Pod(p.server.path())
	wire, err := server.Capture(ctx)
	if err != nil {
		return err
	}
	defer wire.Close()
	s := p.side(mesh)
	for range 3 {
		if err := once(ctx, s.client, s.address(http1), http1); err != nil {
			return err
		}
	}
	// What crosses the wire.
	readable, ports := false, make(map[uint16]bool)
	for _, frame := range wire.Frames() {
		segment, ok := frame.Segment()
		if !ok || frame.Sent {
			continue
		}
		if bytes.HasPrefix(segment.Payload, []byte("GET / HTTP/1.1")) {
			readable = true
		}
		if len(segment.Payload) > 0 {
			ports[segment.To.Port()] = true
		}
	}
	var errs []error
	if want := p.noTLS || p.mode == plaintext; readable != want {
		errs = append(errs, fmt.Errorf("requests can be read on the wire: %t, want %t", readable, want))
	}
	if direct := ports[driver.InboundPort]; direct != p.noRedirection {
		errs = append(errs, fmt.Errorf("requests are sent to the proxy's own port: %t, want %t", direct, p.noRedirection))
	}
	// The access log, after a proxy has had time to write it.
	logged, counted := false, false
	wantLog, wantCount := !p.handWritten && p.accessLog == "all", !p.handWritten && !p.noMetrics
	for range 30 {
		time.Sleep(100 * time.Millisecond)
		logged = strings.Contains(server.Container("outrigger-proxy").Output(), `"path":"/"`)
		page, err := metrics(ctx, server)
		if err != nil && !p.handWritten {
			return err
		}
		counted = regexp.MustCompile(`(?m)^outrigger_requests_total\{`).MatchString(page)
		// What must not appear is waited for, too.
		if logged == wantLog && counted == wantCount && (logged && counted) {
			break
		}
	}
	if logged != wantLog {
		errs = append(errs, fmt.Errorf("there is an access log: %t, want %t", logged, wantLog))
	}
	if counted != wantCount {
		errs = append(errs, fmt.Errorf("requests are counted: %t, want %t", counted, wantCount))
	}
	return errors.Join(errs...)
}

// metrics returns the metrics of a sidecar.
func metrics(ctx context.Context, pod *lab.Pod) (string, error) {
	client := &http.Client{Transport: &http.Transport{DialContext: pod.Dial, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s:%d/stats/prometheus", pod.Addresses()[0], driver.MetricsPort), http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

// slow is a connection whose exchanges take some time.
type slow time.Duration

func (s slow) exchange(context.Context) error { time.Sleep(time.Duration(s)); return nil }
func (slow) close()                           {}

// TestRate checks that waiting for a slow connection is a part of the latency.
func TestRate(t *testing.T) {
	// 100 requests in 0.5 s over connections that carry 50 in this time: the last one waits
	// for 0.5 s, and half of them for 0.25 s.
	conns := []exchanger{slow(50 * time.Millisecond), slow(50 * time.Millisecond), slow(50 * time.Millisecond), slow(50 * time.Millisecond), slow(50 * time.Millisecond)}
	s, err := send(t.Context(), conns, 200, 500*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if s.sent() != 100 || s.percentile(50) < 250*time.Millisecond || s.percentile(99) < 500*time.Millisecond {
		t.Errorf("%d requests were sent with p50 %s and p99 %s, want 100 with at least 250ms and 500ms", s.sent(), s.percentile(50), s.percentile(99))
	}
	// One connection carries 30 in the overtime.
	s, err = send(t.Context(), conns[:1], 200, 500*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if s.sent() > 40 || len(s.latencies) != 100 || s.percentile(99) < time.Second {
		t.Errorf("%d of %d requests were sent with p99 %s, want at most 40 of 100 with at least 1s", s.sent(), len(s.latencies), s.percentile(99))
	}
}

// TestBars checks which results meet the project's bars.
func TestBars(t *testing.T) {
	latency := func(p50 time.Duration) Latency { return Latency{Protocol: http1, Connections: 16, P50: p50} }
	memory := func(mebibytes int64) process.Memory { return process.Memory{Anonymous: mebibytes << 20} }
	text := tables(&Results{
		Steps: []Step{
			{"envoy", noLogs, latency(1050 * time.Microsecond)}, {"envoy", handWritten, latency(time.Millisecond)},
			{"pipy", noLogs, latency(2 * time.Millisecond)}, {"pipy", handWritten, latency(time.Millisecond)},
		},
		Memory: []Footprint{
			{"envoy", permissive, 100, memory(25), memory(4)}, {"haproxy", permissive, 100, memory(5), memory(5)},
			{"envoy", permissive, 1000, memory(1), memory(1)},
		},
	})
	for _, want := range []string{
		"| +5% (1.1 ms, 1.0 ms): met | +100% (2.0 ms, 1.0 ms): **missed** |  |\n",
		"| 25.0 MiB, at most 24: **missed**; agent 4.0 MiB: met |  | 5.0 MiB, at most 6: met; agent 5.0 MiB: **missed** |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the tables have no %q:\n%s", want, text)
		}
	}
}
