// Package scrape reads the metrics of proxies, from the proxies or from Prometheus. Package
// traffic gives them their meaning.
package scrape

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

const (
	// concurrent is how many proxies a Reader reads at once.
	concurrent = 50
	// answerTimeout is how long a proxy may take to answer.
	answerTimeout = 5 * time.Second
)

// Reader reads the proxies of a mesh. It is safe for concurrent use.
type Reader struct {
	snapshot func() *fact.Snapshot
	client   *http.Client
	port     int
	// slots limits the concurrent requests of all callers.
	slots chan struct{}
}

// NewReader returns a Reader of the proxies in the current Snapshot.
func NewReader(snapshot func() *fact.Snapshot) *Reader {
	return &Reader{
		snapshot: snapshot,
		port:     driver.MetricsPort,
		client: &http.Client{
			// A proxy is read rarely, and limits its connections.
			Transport: &http.Transport{DisableKeepAlives: true},
			// A pod must not make the controller request another address.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		slots: make(chan struct{}, concurrent),
	}
}

// reading is what was read of a proxy, and when.
type reading struct {
	sample traffic.Sample
	time   time.Time
	err    error
}

// Traffic reads the proxies of some namespaces, or of all, and again after a period, and
// returns what they have counted in between. With the period 0 it returns what they have
// counted since they started. The report contains all pods, and why a proxy was not read. The
// error is that of ctx.
func (r *Reader) Traffic(ctx context.Context, period time.Duration, namespaces []string) (*traffic.Report, error) {
	wanted := func(w *fact.Workload) bool {
		return len(namespaces) == 0 || slices.Contains(namespaces, w.Namespace)
	}
	var before map[string]reading
	begun := time.Now()
	if period > 0 {
		before = r.read(ctx, r.snapshot(), wanted)
		select {
		case <-time.After(time.Until(begun.Add(period))):
		case <-ctx.Done():
		}
	}
	snapshot := r.snapshot()
	after := r.read(ctx, snapshot, wanted)
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	report := &traffic.Report{Pods: []traffic.Pod{}, Services: []mesh.Name{}}
	for _, s := range snapshot.Services.All() {
		report.Services = append(report.Services, s.Name)
	}
	for _, w := range proxies(snapshot) {
		pod := traffic.Pod{Name: w.Name, UID: w.UID, Owner: w.Owner, ServiceAccount: w.ServiceAccount, Class: w.Class, Proxyless: sidecar.IsProxyless(w.Class)}
		ns, ok := snapshot.Namespaces.Get(w.Namespace)
		pod.KeepsInboundTLS = w.InboundTLS != "" || ok && ns.InboundTLS != ""
		if view, ok := snapshot.Views.Get(w.UID); ok {
			describe(&pod, view)
		}
		if wanted(w) {
			earlier, known := before[w.UID]
			if period > 0 && !known {
				// The pod is new, so the proxy has counted everything in this period.
				earlier.time = begun
			}
			count(&pod, earlier, after[w.UID])
		}
		report.Pods = append(report.Pods, pod)
	}
	slices.SortFunc(report.Pods, func(a, b traffic.Pod) int { return a.Name.Compare(b.Name) })
	slices.SortFunc(report.Services, mesh.Name.Compare)
	return report, nil
}

// describe fills in what the pod's proxy is told to accept.
func describe(pod *traffic.Pod, view *mesh.View) {
	pod.Audited = view.Inbound.Others.Audit
	if pod.InboundTLS = string(view.Inbound.TLS); view.Proxy.Plaintext {
		pod.InboundTLS = traffic.TLSDisabled
	}
}

// count fills in what was read of a pod's proxy. The earlier reading has no time if there is
// no period.
func count(pod *traffic.Pod, earlier, later reading) {
	if err := cmp.Or(later.err, earlier.err); err != nil {
		pod.Problem = err.Error()
		return
	}
	// The agent names all metrics, whether or not the proxy evaluates audited rules.
	pod.Read, pod.CountsAudits = true, later.sample.CountsAudits() && slices.Contains(sidecar.Features(pod.Class), mesh.FeatureAudit)
	pod.Flows = traffic.Flows(pod, earlier.sample, later.sample)
	if !earlier.time.IsZero() {
		pod.Seconds = later.time.Sub(earlier.time).Seconds()
	}
}

// proxies returns the pods that have a sidecar and have not ended.
func proxies(snapshot *fact.Snapshot) []*fact.Workload {
	var list []*fact.Workload
	for _, w := range snapshot.Workloads.All() {
		if w.Class != "" && !w.Ended {
			list = append(list, w)
		}
	}
	return list
}

// read reads all proxies that are wanted, by pod UID.
func (r *Reader) read(ctx context.Context, snapshot *fact.Snapshot, wanted func(*fact.Workload) bool) map[string]reading {
	var (
		mu    sync.Mutex
		group sync.WaitGroup
	)
	all := make(map[string]reading)
	for _, w := range proxies(snapshot) {
		if !wanted(w) {
			continue
		}
		group.Go(func() {
			sample, err := r.readOne(ctx, w)
			mu.Lock()
			defer mu.Unlock()
			all[w.UID] = reading{sample, time.Now(), err}
		})
	}
	group.Wait()
	return all
}

func (r *Reader) readOne(ctx context.Context, w *fact.Workload) (traffic.Sample, error) {
	switch {
	case sidecar.IsProxyless(w.Class):
		return nil, fmt.Errorf("pods of class %s run no proxy that counts", w.Class)
	case len(w.Addresses) == 0:
		return nil, errors.New("the pod has no address of its own")
	}
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, fmt.Errorf("no answer in %s", answerTimeout))
	defer cancel()
	target := url.URL{Scheme: "http", Host: net.JoinHostPort(w.Addresses[0].String(), strconv.Itoa(r.port)), Path: driver.MetricsPath}
	sample, err := r.get(ctx, target.String())
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return sample, err
}

func (r *Reader) get(ctx context.Context, target string) (traffic.Sample, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := r.client.Do(request)
	if err != nil {
		// The pod's address would hide that many have the same problem.
		if failed, ok := errors.AsType[*net.OpError](err); ok {
			err = failed.Err
		} else if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err
		}
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("its metrics are refused with status %d", response.StatusCode)
	}
	return traffic.Parse(response.Body)
}
