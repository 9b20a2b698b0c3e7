package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	deltaMethod = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
	sotwMethod  = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
)

// proxy is a client of the discovery service. It subscribes in Envoy's order: clusters, the
// endpoints that these name, listeners, and the routes that these name.
type proxy struct {
	*sidecar
	clusters, endpoints, listeners, routes *subscription
	// forgotten is the cluster that it asks for again when it comes back.
	forgotten string
}

// subscription is what a client knows of a type. It survives a connection.
type subscription struct {
	typeURL string
	// source names the resources; nil means all of the type.
	source *subscription
	// has are the versions of the resources by name. The discovery service with the state of
	// the world gives none.
	has map[string]string
	// refers are the names that each resource refers to, and referred counts them; both are nil
	// for endpoints and routes, which refer to nothing.
	refers   map[string][]string
	referred map[string]int

	// The rest is of the present stream.
	asked, answered bool
	version, nonce  string
}

func newProxy(of *sidecar) *proxy {
	c := &proxy{sidecar: of}
	// Growing them would be a tenth of the work of all clients.
	n := of.fleet.Visible
	subscribe := func(typeURL string, source *subscription) *subscription {
		s := &subscription{typeURL: typeURL, source: source, has: make(map[string]string, n)}
		if source == nil {
			s.refers, s.referred = make(map[string][]string, n), make(map[string]int, n)
		}
		return s
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

// connect runs one stream until it ends.
func (c *proxy) connect(ctx context.Context) error {
	conn, err := grpc.NewClient(c.fleet.Config, grpc.WithTransportCredentials(credentials.NewTLS(c.tls)), grpc.WithContextDialer(c.dial),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	method := deltaMethod
	if c.sotw() {
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
		f := frames.Get().(*frame)
		if err := stream.RecvMsg(f); err != nil {
			return err
		}
		if err := c.read(stream, *f); err != nil {
			return err
		}
		frames.Put(f)
	}
}

// read processes a response.
func (c *proxy) read(stream grpc.ClientStream, f frame) error {
	r, err := c.fleet.texts.parseResponse(f, c.sotw())
	if err != nil {
		return err
	}
	s := c.of(r.typeURL)
	if s == nil {
		return status.Errorf(codes.InvalidArgument, "a response of type %s was not asked for", r.typeURL)
	}
	resent, err := c.apply(stream, s, r)
	if err != nil {
		return err
	}
	c.fleet.received(len(f), len(r.resources)+len(r.removed), resent)
	c.expect(f)
	if c.complete() {
		c.nowServed()
	}
	return nil
}

// forgetOne forgets the version of one cluster. A server that has nothing new for a proxy that
// comes back does not answer, so nobody could say when it is served.
func (c *proxy) forgetOne() {
	if len(c.clusters.has) > 0 {
		c.forgotten = slices.Min(slices.Collect(maps.Keys(c.clusters.has)))
		c.clusters.has[c.forgotten] = ""
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

// apply stores the resources, acknowledges them and asks for what they refer to. It returns
// how many of them the client had already.
func (c *proxy) apply(stream grpc.ClientStream, s *subscription, r *response) (int, error) {
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
	if c.sotw() && s.source == nil {
		gone = slices.Collect(maps.Keys(s.has))
	}
	kept, resent := make(map[string]bool), 0
	for _, resource := range r.resources {
		name := resource.name
		if s.source == nil || c.sotw() {
			subject, err := c.fleet.subjects.find(s.typeURL, resource.value)
			if err != nil {
				return 0, fmt.Errorf("%s %s: %w", s.typeURL, resource.name, err)
			}
			if c.sotw() {
				name = subject.name
			}
			refer(name, subject.refers)
		}
		if len(gone) > 0 {
			kept[name] = true
		}
		if _, had := s.has[name]; had && (s != c.clusters || name != c.forgotten) {
			resent++
		}
		s.has[name] = resource.version
	}
	for _, name := range gone {
		if !kept[name] {
			delete(s.has, name)
			refer(name, nil)
		}
	}
	s.answered, s.nonce, s.version = true, r.nonce, r.version
	if err := c.acknowledge(stream, s); err != nil {
		return 0, err
	}
	for _, next := range c.subscriptions() {
		switch {
		case next.source == s && (!next.asked || len(added)+len(removed) > 0):
			for _, name := range removed {
				delete(next.has, name)
			}
			if err := c.ask(stream, next, added, removed); err != nil {
				return 0, err
			}
		case next == c.listeners && !next.asked && s == c.clusters:
			if err := c.ask(stream, next, nil, nil); err != nil {
				return 0, err
			}
		}
	}
	return resent, nil
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
	if c.sotw() {
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
	if c.sotw() {
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

func (c *proxy) sotw() bool { return c.fleet.Protocol == protocolSOTW }

// node is the client's description of itself.
func (c *proxy) node() *corev3.Node {
	if !c.fleet.Istio {
		return &corev3.Node{Id: c.pod.UID}
	}
	fields, _ := structpb.NewStruct(map[string]any{
		"NAMESPACE": c.pod.Namespace, "NAME": c.pod.Name, "SERVICE_ACCOUNT": c.pod.ServiceAccount, "CLUSTER_ID": "Kubernetes",
		"ISTIO_VERSION": "1.31.0", "INSTANCE_IPS": c.pod.Address, "MESH_ID": "cluster.local",
		"LABELS": map[string]any{"app": c.pod.ServiceAccount},
	})
	return &corev3.Node{
		Id:       fmt.Sprintf("sidecar~%s~%s.%s~%s.svc.cluster.local", c.pod.Address, c.pod.Name, c.pod.Namespace, c.pod.Namespace),
		Metadata: fields,
	}
}
