package xds

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"runtime"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
	"github.com/outrigger-mesh/outrigger/test/fleet"
	"github.com/outrigger-mesh/outrigger/test/race"
)

func TestMain(m *testing.M) { fleet.Main(m, run) }

// run is a proxy that accepts everything.
func run(address string, ca drivertest.TestAuthority, number int, connected func()) error {
	proxy := proxyOf(fmt.Sprint("p", number))
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: ca.Pool(), Certificates: []tls.Certificate{ca.SignFor(proxy, time.Hour)}, ServerName: "controller",
	})))
	if err != nil {
		return err
	}
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(context.Background())
	if err != nil {
		return err
	}
	connected()
	for _, typeURL := range []string{clusters, listeners} {
		_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: proxy.UID}, TypeUrl: typeURL})
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		if r.TypeUrl == clusters {
			ask := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpoints}
			for _, resource := range r.Resources {
				ask.ResourceNamesSubscribe = append(ask.ResourceNamesSubscribe, resource.Name+"@"+contentOf(resource.Resource.Value))
			}
			_ = stream.Send(ask)
		}
		_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce})
	}
}

// services returns a Config of n services that all proxies share.
func services(n int) Config {
	s := state{clusters: {}, endpoints: {}, listeners: {}}
	for i := range n {
		name := fmt.Sprintf("shop/service-%d:80", i)
		s[clusters][name], s[endpoints][name+"@1"], s[listeners][name] = "1", "1", "1"
	}
	return s.config(nil)
}

// withEndpoint returns the Config with one endpoint changed.
func withEndpoint(config Config, content string) Config {
	name := "shop/service-7:80@1"
	next := slices.Clone(config)
	next[2] = config[2].With(mesh.Change[*Resource]{Name: name, Value: resourceOf(endpoints, name, content)})
	return next
}

// TestThousandStreams limits the cost of a changed endpoint that a thousand proxies
// see, and the memory of idle proxies. The proxies run in another process.
func TestThousandStreams(t *testing.T) {
	if race.Enabled {
		t.Skip("it measures")
	}
	c := newCore(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := c.server(t, t.Context(), time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	const manyServices = 300
	config := services(manyServices)
	set := func(config Config) {
		for i := range fleet.Size {
			c.put(proxyOf(fmt.Sprint("p", i)), config)
		}
	}
	set(config)
	before := fleet.Memory()

	check := fleet.Start(t, listener.Addr().String(), c.ca.Authority)
	acked := func(n int) func() bool {
		return func() bool {
			check()
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.acks >= n
		}
	}
	began := fleet.CPU()
	eventually(t, "all proxies run their first View", acked(fleet.Size))
	t.Logf("connecting %d proxies with %d services: %s of CPU", fleet.Size, manyServices, fleet.CPU()-began)

	idle := (fleet.Memory() - before) / fleet.Size
	t.Logf("an idle stream: %d KiB", idle>>10)
	if limit := uint64(80 << 10); idle > limit {
		t.Errorf("an idle stream takes %d bytes, more than %d", idle, limit)
	}

	var costs []time.Duration
	var allocations uint64
	for round := range 5 {
		next := withEndpoint(config, fmt.Sprint("v", round))
		c.mu.Lock()
		responses, size := c.responses, c.size
		c.mu.Unlock()
		var m, n runtime.MemStats
		runtime.ReadMemStats(&m)
		began, at := fleet.CPU(), time.Now()
		set(next)
		eventually(t, "all proxies run the next View", acked(fleet.Size*(round+2)))
		cost := fleet.CPU() - began
		runtime.ReadMemStats(&n)
		costs, allocations = append(costs, cost), n.Mallocs-m.Mallocs
		c.mu.Lock()
		responses, size = c.responses-responses, c.size-size
		c.mu.Unlock()
		t.Logf("a changed endpoint: %s, %s of CPU, %d allocations and %d bytes a proxy", time.Since(at), cost, allocations/fleet.Size, size/fleet.Size)
		if responses != fleet.Size || size > 400*fleet.Size {
			t.Errorf("it takes %d responses of %d bytes", responses, size)
		}
	}
	if best := slices.Min(costs); best > 300*time.Millisecond {
		t.Errorf("a change costs %s of CPU, more than 300 ms", best)
	}
	if each := allocations / fleet.Size; each > 250 {
		t.Errorf("a change costs %d allocations a proxy", each)
	}
}

// BenchmarkChange changes one endpoint that a thousand proxies see, without a network.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{100, 3000} {
		b.Run(fmt.Sprintf("services-%d", n), func(b *testing.B) {
			c := newCore(b)
			server := c.server(b, b.Context(), time.Minute)
			config := services(n)
			var streams []*stream
			send := func(s *stream, r request) {
				if err := s.handle(r); err != nil {
					b.Fatal(err)
				}
			}
			pump := func(s *stream) {
				var unanswered []request
				for {
					if _, err := s.sendPending(func(*response) error {
						for t := range s.all {
							if t.flight != nil {
								unanswered = append(unanswered, request{typeURL: t.URL, nonce: t.flight.nonce})
							}
						}
						return nil
					}); err != nil {
						b.Fatal(err)
					}
					if len(unanswered) == 0 {
						return
					}
					for _, r := range unanswered {
						send(s, r)
					}
					unanswered = unanswered[:0]
				}
			}
			var views [2][]*mesh.View
			states := [2]Config{withEndpoint(config, "v0"), withEndpoint(config, "v1")}
			for i := range fleet.Size {
				proxy := proxyOf(fmt.Sprint("p", i))
				s := newStream(server, false, driver.Peer{ProxyUID: proxy.UID, Identity: proxy.Identity}, time.Now())
				s.conn = quietConnection{}
				for j := range views {
					views[j] = append(views[j], c.put(proxy, states[j]))
				}
				s.retarget(views[1][i], c.translate(views[1][i]), time.Time{})
				names := config[2].Names()
				for _, t := range testTypes {
					r := request{typeURL: t.URL}
					if t.Named {
						r.subscribe = names
					}
					send(s, r)
				}
				pump(s)
				streams = append(streams, s)
			}
			b.ReportAllocs()
			for round := 0; b.Loop(); round++ {
				for i, s := range streams {
					c.SetView(s.peer.ProxyUID, views[round%2][i])
					s.notify(false, time.Now())
					pump(s)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/fleet.Size, "ns/proxy")
		})
	}
}

type quietConnection struct{}

func (quietConnection) Sent(string, int, int)     {}
func (quietConnection) Acked(string, time.Time)   {}
func (quietConnection) Rejected(driver.Rejection) {}
func (quietConnection) SetVersion(string)         {}
func (quietConnection) Close()                    {}
