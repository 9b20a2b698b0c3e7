package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Pod is a pod whose proxy the fleet simulates.
type Pod struct {
	Namespace, Name, UID, ServiceAccount, Address, Token string
}

// Setup is what a fleet needs to know of a control plane.
type Setup struct {
	// Config is the address of the discovery service, and Identity that of the signing
	// service.
	Config, Identity string
	// ServerName is the name in the control plane's certificates, and Roots verify them.
	ServerName string
	Roots      []byte
	// SOTW selects the protocol with the state of the world.
	SOTW bool
	// Istio says that clients are sidecars of Istio, which authenticate with their token.
	Istio bool
	Pods  []Pod
}

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
}

// The orders.
const (
	// doSign obtains certificates for all clients.
	doSign = "sign"
	// doConnect connects all clients at once and waits until they are served.
	doConnect = "connect"
	// doExpect sets what the clients are expected to acknowledge.
	doExpect = "expect"
	// doAwait waits until as many clients as expected have done so.
	doAwait = "await"
	// doServed waits until all clients are served.
	doServed = "served"
	// doReconnect ends all connections and waits until all clients are served again.
	doReconnect = "reconnect"
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
	// Responses, Resources and Bytes were received since the last report.
	Responses, Resources, Bytes int64
	// Broken counts the connections that have ended, and Why is the last one's error.
	Broken int64
	Why    string `json:",omitempty"`
}

// fleet are the clients, in a process of their own.
type fleet struct {
	Setup
	subjects *subjects
	clients  []*proxy
	expected atomic.Pointer[expectation]
	numbers  int64

	responses, resources, bytes, breaks atomic.Int64

	mu      sync.Mutex
	count   int // of served clients
	took    []time.Duration
	why     string
	changed chan struct{}
	stop    context.CancelFunc
	running sync.WaitGroup
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
	decoder := json.NewDecoder(bufio.NewReader(in))
	encoder := json.NewEncoder(out)
	f := &fleet{subjects: newSubjects(), changed: make(chan struct{})}
	if err := decoder.Decode(&f.Setup); err != nil {
		return err
	}
	for _, pod := range f.Pods {
		f.clients = append(f.clients, newProxy(f, pod))
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
	switch o.Do {
	case doSign:
		r.Took, err = f.sign()
	case doConnect:
		f.start()
		r.Took, err = f.await(wait)
	case doServed:
		r.Took, err = f.await(wait)
	case doReconnect:
		f.stop()
		f.running.Wait()
		f.start()
		r.Took, err = f.await(wait)
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

// start connects all clients, at once.
func (f *fleet) start() {
	f.mu.Lock()
	f.count, f.took = 0, nil
	f.mu.Unlock()
	var ctx context.Context
	ctx, f.stop = context.WithCancel(context.Background())
	for _, c := range f.clients {
		f.running.Go(func() { c.run(ctx) })
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

func (f *fleet) received(bytes, resources int) {
	f.responses.Add(1)
	f.resources.Add(int64(resources))
	f.bytes.Add(int64(bytes))
}

// intern returns one copy of equal strings.
func (f *fleet) intern(text string) string { return unique.Make(text).Value() }

// node is the client's description of itself.
func (f *fleet) node(pod Pod) *corev3.Node {
	if !f.Istio {
		return &corev3.Node{Id: pod.UID}
	}
	metadata, _ := structpb.NewStruct(map[string]any{
		"NAMESPACE": pod.Namespace, "NAME": pod.Name, "SERVICE_ACCOUNT": pod.ServiceAccount, "CLUSTER_ID": "Kubernetes",
		"ISTIO_VERSION": "1.31.0", "INSTANCE_IPS": pod.Address, "MESH_ID": "cluster.local",
	})
	return &corev3.Node{
		Id:       fmt.Sprintf("sidecar~%s~%s.%s~%s.svc.cluster.local", pod.Address, pod.Name, pod.Namespace, pod.Namespace),
		Metadata: metadata,
	}
}

// sign obtains a certificate for each client from the signing service, each over a
// connection of its own as agents do, 16 at a time.
func (f *fleet) sign() ([]time.Duration, error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(f.Roots)
	took := make([]time.Duration, len(f.clients))
	var group errgroup.Group
	group.SetLimit(16)
	for i, c := range f.clients {
		group.Go(func() error {
			settings := &tls.Config{RootCAs: roots, ServerName: f.ServerName, MinVersion: tls.VersionTLS12}
			var options []grpc.DialOption
			if f.Istio {
				options = append(options, grpc.WithPerRPCCredentials(bearer(c.pod.Token)))
			} else {
				began := time.Now()
				certificate, err := f.signFor(c.pod, settings)
				if err != nil {
					return fmt.Errorf("%s: %w", c.pod.Name, err)
				}
				took[i] = time.Since(began)
				settings = settings.Clone()
				settings.Certificates = []tls.Certificate{*certificate}
			}
			options = append(options, grpc.WithTransportCredentials(credentials.NewTLS(settings)),
				grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
			c.dial = func(context.Context) (*grpc.ClientConn, error) { return grpc.NewClient(f.Config, options...) }
			return nil
		})
	}
	err := group.Wait()
	slices.Sort(took)
	return took, err
}

type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }

func (f *fleet) signFor(pod Pod, settings *tls.Config) (*tls.Certificate, error) {
	identity := mesh.Identity{TrustDomain: "cluster.local", Namespace: pod.Namespace, ServiceAccount: pod.ServiceAccount}
	key, err := pki.NewKey()
	if err != nil {
		return nil, err
	}
	names := pki.Names{CommonName: identity.CommonName(), Unit: pod.UID, URIs: []string{identity.String()}, DNS: []string{identity.DNSName()}}
	der, err := names.Request(key)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(f.Identity, grpc.WithTransportCredentials(credentials.NewTLS(settings)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+pod.Token)
	answer, err := identityv1.NewIdentityClient(conn).Sign(ctx, &identityv1.SignRequest{Csr: der}, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	return certificateOf(answer.GetChain(), key)
}

func certificateOf(chain []byte, key *ecdsa.PrivateKey) (*tls.Certificate, error) {
	parsed, err := pki.Parse(chain)
	if err != nil {
		return nil, err
	}
	out := &tls.Certificate{PrivateKey: key, Leaf: parsed[0]}
	for _, c := range parsed {
		out.Certificate = append(out.Certificate, c.Raw)
	}
	return out, nil
}
