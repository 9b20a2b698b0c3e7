package scrape

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// field is a mesh whose pods have addresses on loopback.
type field struct {
	*Reader
	snapshot atomic.Pointer[fact.Snapshot]
	pods     []*fact.Workload
}

// newField returns a mesh with the port of its proxies, which differs for each test.
func newField(t *testing.T) *field {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	f := new(field)
	f.Reader = NewReader(f.snapshot.Load)
	f.port = listener.Addr().(*net.TCPAddr).Port
	f.publish()
	return f
}

// publish makes the Snapshot of the current pods.
func (f *field) publish() {
	workloads := make(map[string]*fact.Workload)
	for _, w := range f.pods {
		workloads[w.Name.String()] = w
	}
	f.snapshot.Store(&fact.Snapshot{
		Workloads: mesh.TableOf(workloads),
		Services:  mesh.TableOf(map[string]*fact.Service{"shop/web": mesh.Seal(&fact.Service{Name: mesh.Name{Namespace: "shop", Name: "web"}})}),
	})
}

// add adds a pod whose proxy answers with the handler; without one nothing listens.
func (f *field) add(t *testing.T, namespace, name, class string, answer http.HandlerFunc) *fact.Workload {
	t.Helper()
	address := netip.AddrFrom4([4]byte{127, 0, 1, byte(len(f.pods) + 1)})
	w := mesh.Seal(&fact.Workload{
		Name: mesh.Name{Namespace: namespace, Name: name}, UID: "uid-" + name, ServiceAccount: "sa-" + name,
		Owner: fact.Owner{Kind: "deployment", Name: "of-" + name}, Class: class, Addresses: []netip.Addr{address},
	})
	f.pods = append(f.pods, w)
	f.publish()
	if answer == nil {
		return w
	}
	listener, err := net.Listen("tcp", netip.AddrPortFrom(address, uint16(f.port)).String())
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: answer}
	t.Cleanup(func() { server.Close() })
	go server.Serve(listener)
	return w
}

// counting returns a handler of a proxy that counts a request for each time it is read, from
// a first number on.
func counting(first int) http.HandlerFunc {
	var reads atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != driver.MetricsPath {
			http.NotFound(w, r)
			return
		}
		fmt.Fprintf(w, "%s{reporter=\"destination\",response_code=\"200\",tls=\"mutual\"} %d\n", telemetry.Requests, first-1+int(reads.Add(1)))
	}
}

// summary returns what matters of a report.
func summary(report *traffic.Report) map[string]string {
	all := make(map[string]string)
	for _, pod := range report.Pods {
		text := pod.Problem
		if pod.Read {
			text = "idle"
			for _, f := range pod.Flows {
				text = fmt.Sprintf("%g requests to %s/%s of %s", f.Requests, f.Destination.Namespace, f.Destination.Workload, f.Destination.ServiceAccount)
			}
		}
		all[pod.Name.String()] = text
	}
	return all
}

func TestTraffic(t *testing.T) {
	f := newField(t)
	f.add(t, "shop", "web", "envoy", counting(100))
	f.add(t, "shop", "idle", "pipy", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "# TYPE "+telemetry.Requests+" counter") })
	f.add(t, "other", "old", "envoy", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "envoy_up 1") })
	f.add(t, "other", "away", "envoy", nil)
	f.add(t, "other", "refusing", "envoy", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) })
	f.add(t, "other", "outside", "", nil)
	f.add(t, "other", "sly", "envoy", http.RedirectHandler("http://127.0.1.1/", http.StatusFound).ServeHTTP)
	f.pods = append(f.pods,
		mesh.Seal(&fact.Workload{Name: mesh.Name{Namespace: "shop", Name: "starting"}, UID: "s", Class: "envoy"}),
		mesh.Seal(&fact.Workload{Name: mesh.Name{Namespace: "shop", Name: "ended"}, UID: "e", Class: "envoy", Ended: true}))
	f.publish()
	web := func(requests int) string { return fmt.Sprintf("%d requests to shop/of-web of sa-web", requests) }
	for _, tt := range []struct {
		name       string
		period     time.Duration
		namespaces []string
		want       map[string]string
	}{
		{"since the start", 0, nil, map[string]string{
			"shop/web": web(100), "shop/idle": "idle", "shop/starting": "the pod has no address of its own",
			"other/old": traffic.ErrNoMetrics.Error(), "other/away": "connect: connection refused",
			"other/refusing": "its metrics are refused with status 403", "other/sly": "its metrics are refused with status 302",
		}},
		{"within a period", time.Millisecond, []string{"shop"}, map[string]string{
			"shop/web": web(1), "shop/idle": "idle", "shop/starting": "the pod has no address of its own",
			"other/old": "", "other/away": "", "other/refusing": "", "other/sly": "",
		}},
	} {
		report, err := f.Traffic(t.Context(), tt.period, tt.namespaces)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, summary(report)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if want := []mesh.Name{{Namespace: "shop", Name: "web"}}; !cmp.Equal(report.Services, want) {
			t.Errorf("%s: services %v, want %v", tt.name, report.Services, want)
		}
		for _, pod := range report.Pods {
			if counted := pod.Read && tt.period > 0; counted != (pod.Seconds > 0) {
				t.Errorf("%s: %s was read for %g seconds", tt.name, pod.Name, pod.Seconds)
			}
		}
	}
}

// TestTrafficOfChangingPods has a pod start and another one end during the period.
func TestTrafficOfChangingPods(t *testing.T) {
	f := newField(t)
	later := new(fact.Snapshot)
	constant := f.add(t, "shop", "constant", "envoy", func(w http.ResponseWriter, r *http.Request) {
		f.snapshot.Store(later)
		counting(5)(w, r)
	})
	ending := f.add(t, "shop", "ending", "envoy", counting(10))
	before := f.snapshot.Load()
	started := f.add(t, "shop", "new", "envoy", counting(3))
	f.pods = []*fact.Workload{constant, started}
	f.publish()
	*later = *f.snapshot.Swap(before)
	report, err := f.Traffic(t.Context(), time.Millisecond, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"shop/constant": "idle", "shop/new": "3 requests to shop/of-new of sa-new"}
	if diff := cmp.Diff(want, summary(report)); diff != "" {
		t.Errorf("%s has ended (-want +got):\n%s", ending.Name, diff)
	}
	for _, pod := range report.Pods {
		if pod.Seconds <= 0 {
			t.Errorf("%s has no period, so it has no rates", pod.Name)
		}
	}
}

// TestTrafficLimits checks that many pods are read at once, but not too many.
func TestTrafficLimits(t *testing.T) {
	f := newField(t)
	var now, most atomic.Int64
	full := make(chan struct{})
	// It is full again whenever the next ones arrive while none ends.
	begin := sync.OnceFunc(func() { close(full) })
	for i := range concurrent + 30 {
		f.add(t, "shop", fmt.Sprintf("pod-%d", i), "envoy", func(w http.ResponseWriter, r *http.Request) {
			n := now.Add(1)
			defer now.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			if n == concurrent {
				begin()
			}
			// Without enough requests at once, the test ends with errors of the proxies.
			<-full
			counting(1)(w, r)
		})
	}
	report, err := f.Traffic(t.Context(), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range report.Pods {
		if !pod.Read {
			t.Fatalf("%s: %s", pod.Name, pod.Problem)
		}
	}
	if most.Load() != concurrent {
		t.Errorf("%d proxies were read at once, want %d", most.Load(), concurrent)
	}
}

func TestTrafficCanceled(t *testing.T) {
	f := newField(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the client has gone")
	f.add(t, "shop", "web", "envoy", func(_ http.ResponseWriter, r *http.Request) { cancel(gone); <-r.Context().Done() })
	if _, err := f.Traffic(ctx, time.Hour, nil); !errors.Is(err, gone) {
		t.Errorf("error %v, want that of the context", err)
	}
}

// TestCountsAudits has two classes whose agents name the metric, and only one of them audits.
func TestCountsAudits(t *testing.T) {
	f := newField(t)
	names := func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "# HELP %s What it would refuse.\n", telemetry.AuditDenied)
	}
	f.add(t, "shop", "audits", "envoy", names)
	f.add(t, "shop", "ignores", "null", names)
	f.add(t, "shop", "old", "envoy", counting(1))
	report, err := f.Traffic(t.Context(), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range report.Pods {
		if !pod.Read || pod.CountsAudits != (pod.Name.Name == "audits") {
			t.Errorf("%s: read %t, counts audits %t", pod.Name, pod.Read, pod.CountsAudits)
		}
	}
}

// TestKeepsInboundTLS has pods whose mode is mesh-wide, their own or their namespace's.
func TestKeepsInboundTLS(t *testing.T) {
	f := newField(t)
	f.add(t, "shop", "follows", "envoy", nil)
	f.pods = append(f.pods, mesh.Seal(&fact.Workload{Name: mesh.Name{Namespace: "shop", Name: "own"}, UID: "own", Class: "envoy", InboundTLS: mesh.Permissive}))
	f.add(t, "legacy", "of-namespace", "envoy", nil)
	f.publish()
	snapshot := *f.snapshot.Load()
	snapshot.Namespaces = mesh.TableOf(map[string]*fact.Namespace{
		"shop": mesh.Seal(&fact.Namespace{Name: "shop"}), "legacy": mesh.Seal(&fact.Namespace{Name: "legacy", InboundTLS: mesh.Permissive}),
	})
	f.snapshot.Store(&snapshot)
	report, err := f.Traffic(t.Context(), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range report.Pods {
		if pod.KeepsInboundTLS == (pod.Name.Name == "follows") {
			t.Errorf("%s keeps its mode: %t", pod.Name, pod.KeepsInboundTLS)
		}
	}
}

// TestProxyless has a pod whose class runs no proxy.
func TestProxyless(t *testing.T) {
	f := newField(t)
	f.add(t, "shop", "app", "grpc", nil)
	report, err := f.Traffic(t.Context(), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if pod := report.Pods[0]; !pod.Proxyless || !strings.Contains(pod.Problem, "class grpc run no proxy") {
		t.Errorf("proxyless %t, problem %q", pod.Proxyless, pod.Problem)
	}
}
