package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	deltaMethod = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
	sotwMethod  = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
)

// maxBackoff bounds the time between two attempts to connect. Envoy's is 30 seconds, which
// would be what a restart measures.
const maxBackoff = time.Second

// proxy is one proxy, which accepts everything. It subscribes in Envoy's order: clusters,
// the endpoints that these name, listeners, and the routes that these name.
type proxy struct {
	fleet *fleet
	pod   Pod
	dial  func(context.Context) (*grpc.ClientConn, error)

	clusters, endpoints, listeners, routes *subscription
	// seen is the number of the expectation that this client has met.
	seen int64
	// served says that this client has all resources that it refers to.
	served bool
}

// subscription is what a client knows of a type. It survives a connection.
type subscription struct {
	typeURL string
	// source names the resources; nil means all of the type.
	source *subscription
	// has are the versions of the resources by name.
	has map[string]string
	// refers are the names that each resource refers to, and referred counts them.
	refers   map[string][]string
	referred map[string]int

	// The rest is of the present stream.
	asked, answered bool
	version, nonce  string
}

func newProxy(f *fleet, pod Pod) *proxy {
	c := &proxy{fleet: f, pod: pod}
	subscribe := func(typeURL string, source *subscription) *subscription {
		return &subscription{
			typeURL: typeURL, source: source, has: make(map[string]string),
			refers: make(map[string][]string), referred: make(map[string]int),
		}
	}
	c.clusters = subscribe(resourcev3.ClusterType, nil)
	c.endpoints = subscribe(resourcev3.EndpointType, c.clusters)
	c.listeners = subscribe(resourcev3.ListenerType, nil)
	c.routes = subscribe(resourcev3.RouteType, c.listeners)
	return c
}

func (c *proxy) subscriptions() []*subscription {
	return []*subscription{c.clusters, c.endpoints, c.listeners, c.routes}
}

// run connects until the context ends.
func (c *proxy) run(ctx context.Context) {
	for backoff := 50 * time.Millisecond; ctx.Err() == nil; backoff = min(2*backoff, maxBackoff) {
		began := time.Now()
		err := c.connect(ctx)
		if c.served {
			c.served = false
			c.fleet.unserved()
		}
		if ctx.Err() != nil {
			return
		}
		c.fleet.broken(err)
		if time.Since(began) > 5*time.Second {
			backoff = 50 * time.Millisecond
		}
		time.Sleep(backoff/2 + rand.N(backoff))
	}
}

// connect runs one stream until it ends.
func (c *proxy) connect(ctx context.Context) error {
	began := time.Now()
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	method := deltaMethod
	if c.fleet.SOTW {
		method = sotwMethod
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, grpc.ForceCodecV2(codec{}))
	if err != nil {
		return err
	}
	for _, s := range c.subscriptions() {
		s.asked, s.answered, s.version, s.nonce = false, false, "", ""
	}
	c.forgetOne()
	for _, s := range c.subscriptions() {
		// A proxy that comes back asks for everything at once.
		if s != c.clusters && len(s.has) == 0 {
			continue
		}
		if err := c.ask(stream, s, nil, nil); err != nil {
			return err
		}
	}
	for {
		var f frame
		if err := stream.RecvMsg(&f); err != nil {
			return err
		}
		r, err := parseResponse(f, c.fleet.SOTW)
		if err != nil {
			return err
		}
		c.fleet.received(len(f), len(r.resources)+len(r.removed))
		s := c.of(r.typeURL)
		if s == nil {
			return status.Errorf(codes.InvalidArgument, "a response of type %s was not asked for", r.typeURL)
		}
		if err := c.apply(stream, s, r); err != nil {
			return err
		}
		c.expect(f)
		if !c.served && c.complete() {
			c.served = true
			c.fleet.nowServed(time.Since(began))
		}
	}
}

// forgetOne forgets the version of one cluster. A server that has nothing new for a proxy that
// comes back does not answer, so nobody could say when it is served.
func (c *proxy) forgetOne() {
	if len(c.clusters.has) > 0 {
		c.clusters.has[slices.Min(slices.Collect(maps.Keys(c.clusters.has)))] = ""
	}
}

func (c *proxy) of(typeURL string) *subscription {
	for _, s := range c.subscriptions() {
		if s.typeURL == typeURL {
			return s
		}
	}
	return nil
}

// apply stores the resources, acknowledges them and asks for what they refer to.
func (c *proxy) apply(stream grpc.ClientStream, s *subscription, r *response) error {
	var added, removed []string
	refer := func(name string, to []string) {
		if slices.Equal(s.refers[name], to) {
			return
		}
		for _, n := range to {
			if s.referred[n]++; s.referred[n] == 1 {
				added = append(added, n)
			}
		}
		for _, n := range s.refers[name] {
			if s.referred[n]--; s.referred[n] == 0 {
				delete(s.referred, n)
				removed = append(removed, n)
			}
		}
		s.refers[name] = to
		if len(to) == 0 {
			delete(s.refers, name)
		}
	}
	gone := r.removed
	if c.fleet.SOTW && s.source == nil {
		gone = slices.Collect(maps.Keys(s.has))
	}
	kept := make(map[string]bool)
	for _, resource := range r.resources {
		name, version := resource.name, resource.version
		if s.source == nil || c.fleet.SOTW {
			known, err := c.fleet.subjects.find(s.typeURL, resource.value)
			if err != nil {
				return fmt.Errorf("%s %s: %w", s.typeURL, resource.name, err)
			}
			name = known.name
			if !c.fleet.SOTW {
				name = resource.name
			}
			refer(name, known.refers)
		}
		kept[name] = true
		s.has[c.fleet.intern(name)] = c.fleet.intern(version)
	}
	for _, name := range gone {
		if !kept[name] {
			delete(s.has, name)
			refer(name, nil)
		}
	}
	s.answered, s.nonce, s.version = true, r.nonce, r.version
	if err := c.acknowledge(stream, s); err != nil {
		return err
	}
	for _, next := range c.subscriptions() {
		switch {
		case next.source == s && (!next.asked || len(added)+len(removed) > 0):
			for _, name := range removed {
				delete(next.has, name)
			}
			if err := c.ask(stream, next, added, removed); err != nil {
				return err
			}
		case next == c.listeners && !next.asked && s == c.clusters:
			if err := c.ask(stream, next, nil, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// ask subscribes to a type, or changes which of its resources are subscribed to.
func (c *proxy) ask(stream grpc.ClientStream, s *subscription, added, removed []string) error {
	first := !s.asked
	if s.source != nil && first {
		added, removed = slices.Collect(maps.Keys(s.source.referred)), nil
		if len(added) == 0 {
			s.answered = true
			return nil
		}
	}
	s.asked = true
	if c.fleet.SOTW {
		return stream.SendMsg(&discoveryv3.DiscoveryRequest{
			Node: c.node(), TypeUrl: s.typeURL, ResourceNames: s.names(), VersionInfo: s.version, ResponseNonce: s.nonce,
		})
	}
	r := &discoveryv3.DeltaDiscoveryRequest{Node: c.node(), TypeUrl: s.typeURL, ResourceNamesSubscribe: added, ResourceNamesUnsubscribe: removed}
	if first {
		r.InitialResourceVersions = maps.Clone(s.has)
	}
	return stream.SendMsg(r)
}

func (s *subscription) names() []string {
	if s.source == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(s.source.referred))
}

func (c *proxy) acknowledge(stream grpc.ClientStream, s *subscription) error {
	var m proto.Message = &discoveryv3.DeltaDiscoveryRequest{TypeUrl: s.typeURL, ResponseNonce: s.nonce}
	if c.fleet.SOTW {
		m = &discoveryv3.DiscoveryRequest{TypeUrl: s.typeURL, ResourceNames: s.names(), VersionInfo: s.version, ResponseNonce: s.nonce}
	}
	return stream.SendMsg(m)
}

// complete reports whether the client has all that it refers to.
func (c *proxy) complete() bool {
	for _, s := range c.subscriptions() {
		switch {
		case s == c.clusters && !s.answered, s.source == nil && !s.answered && len(s.has) == 0:
			return false
		case s.source != nil && len(s.has) < len(s.source.referred):
			return false
		}
	}
	return true
}

// expect notes that the client has acknowledged what is expected.
func (c *proxy) expect(f frame) {
	e := c.fleet.expected.Load()
	if e == nil || c.seen == e.number {
		return
	}
	for _, marker := range e.markers {
		if bytes.Contains(f, marker) {
			c.seen = e.number
			e.met(time.Now())
			return
		}
	}
}

func (c *proxy) node() *corev3.Node {
	return c.fleet.node(c.pod)
}
