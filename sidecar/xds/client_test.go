package xds

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// deltaClient is a proxy that uses the delta protocol.
type deltaClient struct {
	t         testing.TB
	stream    discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	node      *corev3.Node
	responses chan *discoveryv3.DeltaDiscoveryResponse
	err       chan error
	fences    int
	// versions are the accepted versions by type and name.
	versions map[string]map[string]string
}

// delta connects the proxy.
func (h *harness) delta(t testing.TB, uid string) *deltaClient {
	t.Helper()
	return h.deltaOf(t, uid, proxyOf(uid).UID)
}

// deltaOf connects with the certificate of one proxy and the node id of another.
func (h *harness) deltaOf(t testing.TB, uid, node string) *deltaClient {
	t.Helper()
	conn := h.dial(t, h.ca.SignFor(proxyOf(uid), h.notAfter))
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := &deltaClient{
		t: t, stream: stream, node: &corev3.Node{Id: node, UserAgentName: "test", UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: "1"}},
		responses: make(chan *discoveryv3.DeltaDiscoveryResponse, 1024), err: make(chan error, 1),
		versions: map[string]map[string]string{},
	}
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				c.err <- err
				return
			}
			c.responses <- r
		}
	}()
	return c
}

// ask sends a request.
func (c *deltaClient) ask(r *discoveryv3.DeltaDiscoveryRequest) {
	c.t.Helper()
	r.Node, c.node = c.node, nil
	if err := c.stream.Send(r); err != nil {
		c.t.Logf("sending: %v", err)
	}
}

// subscribe subscribes to the names, or to everything if there are none.
func (c *deltaClient) subscribe(typeURL string, names ...string) {
	c.t.Helper()
	c.ask(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names})
}

// next returns the next response.
func (c *deltaClient) next() *discoveryv3.DeltaDiscoveryResponse {
	c.t.Helper()
	select {
	case r := <-c.responses:
		return r
	case err := <-c.err:
		c.t.Fatalf("the stream ended: %v", err)
	case <-time.After(20 * time.Second):
		c.t.Fatal("no response came")
	}
	return nil
}

// ends waits for the stream's end and returns its error.
func (c *deltaClient) ends() error {
	c.t.Helper()
	for {
		select {
		case <-c.responses:
		case err := <-c.err:
			return err
		case <-time.After(20 * time.Second):
			c.t.Fatal("the stream does not end")
		}
	}
}

// text formats a response as "Cluster a=1 b=2 -c".
func text(r *discoveryv3.DeltaDiscoveryResponse) string {
	words := []string{shortType(r.TypeUrl)}
	for _, resource := range r.Resources {
		words = append(words, resource.Name+"="+contentOf(resource.Resource.Value))
	}
	for _, name := range r.RemovedResources {
		words = append(words, "-"+name)
	}
	return strings.Join(words, " ")
}

func contentOf(body []byte) string {
	var c clusterv3.Cluster
	if err := proto.Unmarshal(body, &c); err != nil {
		return err.Error()
	}
	return c.AltStatName
}

// want expects the next response.
func (c *deltaClient) want(want string) *discoveryv3.DeltaDiscoveryResponse {
	c.t.Helper()
	r := c.next()
	if got := text(r); got != want {
		c.t.Fatalf("the response is %q, want %q", got, want)
	}
	return r
}

// take expects the next response and acknowledges it.
func (c *deltaClient) take(want string) {
	c.t.Helper()
	c.ack(c.want(want))
}

func (c *deltaClient) ack(r *discoveryv3.DeltaDiscoveryResponse) {
	c.t.Helper()
	versions := c.versions[r.TypeUrl]
	if versions == nil {
		versions = map[string]string{}
		c.versions[r.TypeUrl] = versions
	}
	for _, resource := range r.Resources {
		versions[resource.Name] = resource.Version
	}
	for _, name := range r.RemovedResources {
		delete(versions, name)
	}
	c.ask(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce})
}

// refuse expects the next response and rejects it.
func (c *deltaClient) refuse(want, message string) {
	c.t.Helper()
	c.nack(c.want(want), message)
}

func (c *deltaClient) nack(r *discoveryv3.DeltaDiscoveryResponse, message string) {
	c.t.Helper()
	c.ask(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce, ErrorDetail: &status.Status{Code: int32(codes.Internal), Message: message}})
}

// quiet checks that nothing more is sent: the next response answers the request made
// here.
func (c *deltaClient) quiet() {
	c.t.Helper()
	c.fences++
	name := fmt.Sprintf("fence-%d", c.fences)
	c.subscribe("type.googleapis.com/test.Fence", name)
	c.take("Fence -" + name)
}
