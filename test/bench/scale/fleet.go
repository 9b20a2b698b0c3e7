package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Pod is a pod whose proxy the fleet simulates.
type Pod struct {
	Namespace, Name, UID, ServiceAccount, Address, Token string
}

// Setup is what a fleet needs to know of a control plane.
type Setup struct {
	// Config is the address of the discovery service or of the repository, and Identity that
	// of the signing service.
	Config, Identity string
	// ServerName is the name in the control plane's certificates, and Roots verify them.
	ServerName string
	Roots      []byte
	// Protocol is one of the protocols below.
	Protocol string
	// Istio says that clients are sidecars of Istio, and that istiod signs their certificates.
	Istio bool
	// Visible is how many services each client sees.
	Visible int
	Pods    []Pod
}

// The protocols by which proxies get their configuration.
const (
	// protocolDelta is the incremental variant of the aggregated discovery service, and
	// protocolSOTW the one with the state of the world.
	protocolDelta = "delta"
	protocolSOTW  = "sotw"
	// protocolFiles is that of the file repository.
	protocolFiles = "files"
)

// Order is a command for the fleet. Each is answered with one Report.
type Order struct {
	// Do is one of the orders below.
	Do string
	// Markers are for expect: the bytes of which an acknowledged response must contain one.
	Markers [][]byte `json:",omitempty"`
	// Count is how many clients must have met the expectation, or must be served.
	Count int `json:",omitempty"`
	// Seconds is how long to wait at most.
	Seconds int `json:",omitempty"`
	// Clients are the numbers of the clients that are meant; none means all.
	Clients []int `json:",omitempty"`
	// Pods are those that start, and Within the time in which they do, for certify.
	Pods   []Pod         `json:",omitempty"`
	Within time.Duration `json:",omitempty"`
}

// The orders.
const (
	// doSign obtains certificates for all clients.
	doSign = "sign"
	// doCertify lets the agents of other pods obtain certificates, each when its pod starts.
	doCertify = "certify"
	// doConnect connects the clients at once and waits until all are served.
	doConnect = "connect"
	// doLeave ends the connections of the clients.
	doLeave = "leave"
	// doExpect sets what the clients are expected to acknowledge.
	doExpect = "expect"
	// doAwait waits until as many clients as expected have done so.
	doAwait = "await"
	// doServed waits until all clients are served.
	doServed = "served"
	// doReconnect ends all connections and waits until all clients are served again.
	doReconnect = "reconnect"
	// doStall lets the clients stop to read from their connections, and doResume lets them
	// go on.
	doStall  = "stall"
	doResume = "resume"
	// doCount returns what was received since the last report.
	doCount = "count"
)

// Report answers an Order.
type Report struct {
	Error string `json:",omitempty"`
	// At are the times at which the expectation was met, sorted.
	At []time.Time `json:",omitempty"`
	// Took are the durations of the order's steps, sorted: of each client's certificate or of
	// its first configuration.
	Took []time.Duration `json:",omitempty"`
	// Failed counts the attempts to obtain a certificate that were repeated, by their errors.
	Failed map[string]int64 `json:",omitempty"`
	// Responses, Resources and Bytes were received since the last report.
	Responses, Resources, Bytes int64
	// Resent are those of the Resources that the clients had already, by name. The ones that
	// they have asked for again do not count.
	Resent int64
	// Broken counts the connections that have ended, and Why is the last one's error.
	Broken int64
	Why    string `json:",omitempty"`
}

// fleet are the clients, in a process of their own.
type fleet struct {
	Setup
	subjects *subjects
	texts    texts
	clients  []*sidecar
	expected atomic.Pointer[expectation]
	numbers  int64

	responses, resources, bytes, resent, breaks atomic.Int64

	mu      sync.Mutex
	count   int // of served clients
	took    []time.Duration
	why     string
	changed chan struct{}
}

// expectation is what the clients are expected to acknowledge.
type expectation struct {
	number  int64
	markers [][]byte
	count   int
	mu      sync.Mutex
	at      []time.Time
	done    chan struct{}
}

func (e *expectation) met(at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at = append(e.at, at)
	if len(e.at) == e.count {
		close(e.done)
	}
}

// runFleet reads a Setup and then Orders from the input, one JSON value each, until it ends.
func runFleet(in io.Reader, out io.Writer) error {
	// Collecting the garbage of all clients in one process is work that no proxy has. Three
	// thousand proxies of a permissive mesh would fill the machine's memory with it, though.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(8 << 30)
	decoder := json.NewDecoder(bufio.NewReader(in))
	encoder := json.NewEncoder(out)
	f := &fleet{subjects: newSubjects(), texts: texts{of: make(map[string]string)}, changed: make(chan struct{})}
	if err := decoder.Decode(&f.Setup); err != nil {
		return err
	}
	for i, pod := range f.Pods {
		f.clients = append(f.clients, newSidecar(f, i, pod))
	}
	for {
		var order Order
		if err := decoder.Decode(&order); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		report := &Report{}
		if err := f.obey(&order, report); err != nil {
			report.Error = err.Error()
		}
		report.Responses, report.Resources, report.Bytes = f.responses.Swap(0), f.resources.Swap(0), f.bytes.Swap(0)
		report.Resent = f.resent.Swap(0)
		f.mu.Lock()
		report.Broken, report.Why = f.breaks.Swap(0), f.why
		f.mu.Unlock()
		if err := encoder.Encode(report); err != nil {
			return err
		}
	}
}

func (f *fleet) obey(o *Order, r *Report) (err error) {
	wait := time.Duration(o.Seconds) * time.Second
	clients := f.chosen(o.Clients)
	switch o.Do {
	case doSign:
		r.Took, err = f.sign()
	case doCertify:
		r.Took, r.Failed, err = f.certify(o.Pods, o.Within, wait)
	case doConnect:
		f.start(clients)
		r.Took, err = f.await(wait)
	case doLeave:
		stop(clients)
	case doServed:
		r.Took, err = f.await(wait)
	case doReconnect:
		stop(clients)
		f.start(clients)
		r.Took, err = f.await(wait)
	case doStall:
		for _, c := range clients {
			c.gate.shut()
		}
	case doResume:
		for _, c := range clients {
			c.gate.open()
		}
	case doExpect:
		f.numbers++
		f.expected.Store(&expectation{number: f.numbers, markers: o.Markers, count: o.Count, done: make(chan struct{})})
	case doAwait:
		e := f.expected.Load()
		select {
		case <-e.done:
		case <-time.After(wait):
			err = fmt.Errorf("not all %d clients have acknowledged it", e.count)
		}
		e.mu.Lock()
		r.At = slices.SortedFunc(slices.Values(e.at), time.Time.Compare)
		e.mu.Unlock()
	case doCount:
	default:
		err = fmt.Errorf("there is no order %q", o.Do)
	}
	return err
}

// chosen returns the clients with the numbers, or all if there are none.
func (f *fleet) chosen(numbers []int) []*sidecar {
	if len(numbers) == 0 {
		return f.clients
	}
	clients := make([]*sidecar, len(numbers))
	for i, n := range numbers {
		clients[i] = f.clients[n]
	}
	return clients
}

// start connects the clients, at once.
func (f *fleet) start(clients []*sidecar) {
	f.mu.Lock()
	f.took = nil
	f.mu.Unlock()
	for _, c := range clients {
		c.start()
	}
}

// stop ends the connections of the clients.
func stop(clients []*sidecar) {
	for _, c := range clients {
		c.cancel()
	}
	for _, c := range clients {
		c.running.Wait()
	}
}

// await waits until all clients are served, and returns how long that took for each.
func (f *fleet) await(wait time.Duration) ([]time.Duration, error) {
	timeout := time.After(wait)
	for {
		f.mu.Lock()
		count, changed, why := f.count, f.changed, f.why
		f.mu.Unlock()
		if count == len(f.clients) {
			f.mu.Lock()
			defer f.mu.Unlock()
			took := slices.Sorted(slices.Values(f.took))
			f.took = nil
			return took, nil
		}
		select {
		case <-changed:
		case <-timeout:
			return nil, fmt.Errorf("only %d of %d clients are served; the last error was %s", count, len(f.clients), why)
		}
	}
}

func (f *fleet) nowServed(took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	f.took = append(f.took, took)
	f.notify()
}

func (f *fleet) unserved() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count--
	f.notify()
}

func (f *fleet) notify() {
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fleet) broken(err error) {
	f.breaks.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.why = err.Error()
}

func (f *fleet) received(bytes, resources, resent int) {
	f.responses.Add(1)
	f.resources.Add(int64(resources))
	f.bytes.Add(int64(bytes))
	f.resent.Add(int64(resent))
}
