package inject_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/test/race"
)

// podWith returns a pod with the given number of containers, and of variables with values
// of the given length.
func podWith(containers, variables, bytes int) []byte {
	var b strings.Builder
	b.WriteString(`{"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"cart-7d9f-","labels":{"app":"cart"}},"spec":{"serviceAccountName":"cart","containers":[`)
	value := strings.Repeat("v", bytes)
	for c := range containers {
		if c > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"name":"c%[1]d","image":"shop/cart:1","ports":[{"name":"http","containerPort":%[2]d,"protocol":"TCP"}],
			"readinessProbe":{"httpGet":{"path":"/ready","port":"http","scheme":"HTTP"},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3},
			"resources":{"requests":{"cpu":"100m","memory":"64Mi"}},"terminationMessagePath":"/dev/termination-log","imagePullPolicy":"IfNotPresent","env":[`, c, 8000+c)
		for v := range variables / containers {
			if v > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `{"name":"VARIABLE_%d","value":"%s%d"}`, v, value, v)
		}
		b.WriteString("]}")
	}
	b.WriteString(`],"restartPolicy":"Always","dnsPolicy":"ClusterFirst","schedulerName":"default-scheduler"}}`)
	return []byte(b.String())
}

var benchPods = []struct {
	name string
	pod  []byte
}{
	{"small", []byte(smallPod)},
	{"containers=10", podWith(10, 100, 10)},
	{"env=2000", podWith(1, 2000, 10)},
	{"1MiB", podWith(10, 1000, 1<<10)},
}

// benchmark runs f and also reports its CPU time, which does not depend on other programs
// on the machine.
func benchmark(b *testing.B, bytes int, f func(n int)) {
	b.ReportAllocs()
	b.SetBytes(int64(bytes))
	start, n := cpuTime(b), 0
	for b.Loop() {
		f(n)
		n++
	}
	b.ReportMetric(float64(cpuTime(b)-start)/float64(n), "cpu-ns/op")
}

func cpuTime(b testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkInject measures the engine: from a pod's bytes to a patch.
func BenchmarkInject(b *testing.B) {
	w := ordinary()
	i := w.injector(b)
	for _, p := range benchPods {
		b.Run(p.name, func(b *testing.B) {
			req := w.request(string(p.pod))
			benchmark(b, len(p.pod), func(int) { mustInject(b, i, req) })
		})
	}
	b.Run("again", func(b *testing.B) {
		req := w.request(string(once(b, i, w, []byte(smallPod))))
		benchmark(b, len(req.Pod), func(int) { mustInject(b, i, req) })
	})
	b.Run("skip", func(b *testing.B) {
		req := w.request(strings.Replace(smallPod, `"spec":{`, `"spec":{"hostNetwork":true,`, 1))
		benchmark(b, len(req.Pod), func(int) {
			if r := i.Inject(b.Context(), req); r.Decision.Outcome != inject.Skip {
				b.Fatal(r.Decision)
			}
		})
	})
	b.Run("classic", func(b *testing.B) {
		w := ordinary()
		w.classic = true
		i, req := w.injector(b), w.request(smallPod)
		benchmark(b, len(req.Pod), func(int) { mustInject(b, i, req) })
	})
	// Each of these pods renders a different template text.
	b.Run("cold", func(b *testing.B) {
		const annotation = `"annotations":{"openservicemesh.io/sidecar-resource-requests-memory":"%d",`
		benchmark(b, len(smallPod), func(n int) {
			mustInject(b, i, w.request(strings.Replace(smallPod, `"annotations":{`, fmt.Sprintf(annotation, n), 1)))
		})
	})
}

func mustInject(b *testing.B, i *inject.Injector, req inject.Request) {
	if r := i.Inject(b.Context(), req); r.Decision.Outcome != inject.Inject {
		b.Fatal(r.Decision)
	}
}

// BenchmarkReview measures the webhook without a network: from a review's bytes
// to an answer's.
func BenchmarkReview(b *testing.B) {
	for _, p := range benchPods {
		b.Run(p.name, func(b *testing.B) {
			ask, size := asking(b, p.pod)
			benchmark(b, size, func(int) { ask() })
		})
	}
}

// asking returns a function that has a webhook answer the review of a pod, and the size of the
// review in bytes.
func asking(t testing.TB, pod []byte) (ask func(), size int) {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	webhook := inject.NewWebhook(ordinary().injector(t), inject.NewMetrics(prometheus.NewRegistry()), log)
	body := encode(t, creation(string(pod)))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, inject.InjectPath+"?timeout=10s", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	return func() {
		r.Body = io.NopCloser(bytes.NewReader(body))
		var rw answer
		webhook.ServeHTTP(&rw, r)
		if rw.code != 0 || rw.written < 1000 {
			t.Fatalf("the answer is %d with %d bytes", rw.code, rw.written)
		}
	}, len(body)
}

// TestPatchSize bounds the patch of a small pod, which the API server gets for each pod that
// starts. A bound may grow with what a patch has to say, but not by accident.
func TestPatchSize(t *testing.T) {
	w := ordinary()
	r := w.injector(t).Inject(t.Context(), w.request(smallPod))
	if r.Decision.Outcome != inject.Inject {
		t.Fatal(r.Decision)
	}
	if size := len(encode(t, r.Patch)); size > 10_600 {
		t.Errorf("the patch has %d bytes", size)
	} else {
		t.Logf("the patch has %d bytes", size)
	}
}

// TestReviewAllocations bounds what the answer to a review allocates. A bound may grow with what
// reviews do, but not because something is no longer shared by the pods of a class.
func TestReviewAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector drops buffers at random")
	}
	for _, tt := range []struct {
		name               string
		pod                []byte
		allocations, bytes uint64
	}{
		{"small", []byte(smallPod), 390, 46 << 10},
		// Each variable is two strings, and an element of the pod's list and of its copy.
		{"2,000 variables", podWith(1, 2000, 10), 4400, 800 << 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ask, _ := asking(t, tt.pod)
			if least := leastCost(t, 32, ask); least.allocations > tt.allocations || least.bytes > tt.bytes {
				t.Errorf("a review costs %d allocations of %d bytes, want at most %d and %d", least.allocations, least.bytes, tt.allocations, tt.bytes)
			}
		})
	}
}

// answer is a response that is counted and dropped.
type answer struct {
	header        http.Header
	code, written int
}

func (a *answer) Header() http.Header {
	if a.header == nil {
		a.header = make(http.Header)
	}
	return a.header
}
func (a *answer) WriteHeader(code int) { a.code = code }
func (a *answer) Write(p []byte) (int, error) {
	a.written += len(p)
	return len(p), nil
}

// TestCostIsLinear counts allocations, their bytes and CPU time, which do not
// depend on how busy the machine is.
func TestCostIsLinear(t *testing.T) {
	w := ordinary()
	i := w.injector(t)
	tests := map[string]func(n int) []byte{
		"variables": func(n int) []byte { return podWith(1, n, 10) },
		"variables of an injected pod": func(n int) []byte {
			return once(t, i, w, podWith(1, n, 10))
		},
		"variables of the user's own sidecar": func(n int) []byte {
			return bytes.Replace(podWith(1, n, 10), []byte(`"name":"c0"`), []byte(`"name":"outrigger-proxy"`), 1)
		},
		"variables that another webhook gave the sidecar": func(n int) []byte {
			pod := decode(t, once(t, i, w, []byte(smallPod)))
			sidecar := proxy(t, pod)
			sidecar.Env = append(sidecar.Env, decode(t, podWith(1, n, 10)).Spec.Containers[0].Env...)
			return encode(t, pod)
		},
		"containers": func(n int) []byte { return podWith(n, n, 10) },
	}
	for name, pod := range tests {
		t.Run(name, func(t *testing.T) {
			few := costOf(t, i, w.request(string(pod(500))))
			many := costOf(t, i, w.request(string(pod(4000))))
			if many.allocations > 10*few.allocations || many.bytes > 10*few.bytes {
				t.Errorf("8 times as many cost %v, one time %v", many, few)
			}
			// Comparisons allocate nothing. Linear work takes a hundredth of this.
			if many.cpu > time.Second && !race.Enabled {
				t.Errorf("4000 take %v of CPU time", many.cpu)
			}
		})
	}
}

type cost struct {
	allocations, bytes uint64
	cpu                time.Duration
}

// costOf returns the least that one of several injections costs.
func costOf(t *testing.T, i *inject.Injector, req inject.Request) cost {
	t.Helper()
	return leastCost(t, 8, func() {
		if r := i.Inject(t.Context(), req); r.Decision.Outcome != inject.Inject {
			t.Fatal(r.Decision)
		}
	})
}

// leastCost returns the least that one of n calls costs. A sync.Pool is emptied by
// the garbage collector, and at random with the race detector, so that one call alone
// may also pay for what the others reuse.
func leastCost(t *testing.T, n int, f func()) cost {
	t.Helper()
	least := cost{allocations: math.MaxUint64, bytes: math.MaxUint64, cpu: math.MaxInt64}
	for range n {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := cpuTime(t)
		f()
		used := cpuTime(t) - start
		runtime.ReadMemStats(&after)
		least.allocations = min(least.allocations, after.Mallocs-before.Mallocs)
		least.bytes = min(least.bytes, after.TotalAlloc-before.TotalAlloc)
		least.cpu = min(least.cpu, used)
	}
	return least
}
