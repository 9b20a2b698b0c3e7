package haproxy

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// runGateway runs the HAProxy of a gateway.
func runGateway(t *testing.T) (*drivertest.Gateway, *mesh.View, *running) {
	t.Helper()
	edge := identity("edge", "web")
	ca, dir := newAuthority(t), t.TempDir()
	ca.writeTo(dir, edge)
	g := &drivertest.Gateway{
		Proxy:  newFixture(edge).proxy,
		Server: store, TLS: serverTLS(ca, store, nil),
		Listen: func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") },
		Dial: func(ctx context.Context, port uint16) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", local(port))
		},
		Client: netip.MustParseAddr("127.0.0.1"),
		Dial6: func(ctx context.Context, port uint16) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("[::1]:%d", port))
		},
		Client6: netip.IPv6Loopback(),
	}
	g.Proxy.Addresses = append(g.Proxy.Addresses, netip.IPv6Loopback())
	view := g.View(t)
	return g, view, start(t, dir, view).awaitReady()
}

// TestGateway has a real HAProxy handle requests of clients outside the mesh.
func TestGateway(t *testing.T) {
	g, _, r := runGateway(t)
	g.Check(t)
	config, err := os.ReadFile(filepath.Join(r.dir, configFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{":15001", ":15003", "passthrough", "backend app"} {
		if strings.Contains(string(config), text) {
			t.Errorf("the configuration has %q", text)
		}
	}
}

// TestGatewayReload changes the routes while clients keep their connections, which the stopping
// process still has. The server gets the client's address once, and the current routes apply.
func TestGatewayReload(t *testing.T) {
	g, next, r := runGateway(t)
	clients := map[string]*http.Client{"HTTP/1.1": g.HTTPClient(0, false), "HTTP/2": g.HTTPClient(0, true)}
	for round := range 3 {
		for name, c := range clients {
			for target, want := range map[string]int{"/cart": 200, "/new": map[bool]int{false: 404, true: 200}[round == 2]} {
				response, got, err := g.Ask(c, "cart.example.com", target, "X-Forwarded-For", "192.0.2.7")
				if err != nil || response.StatusCode != want {
					t.Fatalf("round %d: %s by %s: %v, %v, want %d", round, target, name, response, err, want)
				}
				if from := strings.Join(got.Header.Values("X-Forwarded-For"), ","); want == 200 && strings.ReplaceAll(from, " ", "") != "192.0.2.7,127.0.0.1" {
					t.Errorf("round %d by %s: the server gets the address %q", round, name, from)
				}
			}
		}
		if round == 1 {
			next = withRoute(next, "/new")
			r.configure(next)
		}
		if round < 2 {
			r.reload()
		}
	}
}

// withRoute returns the View of a gateway with another path of its first host.
func withRoute(view *mesh.View, prefix string) *mesh.View {
	destinations := map[string]*mesh.Destination{}
	for name, d := range view.Outbound.Destinations.All() {
		changed := *d
		changed.Sealed = mesh.Sealed{}
		for _, r := range d.Routes {
			if r.Match.Path.Prefix == "/cart" {
				r.Match.Path.Prefix = prefix
				changed.Routes = append(slices.Clip(changed.Routes), r)
			}
		}
		destinations[name] = mesh.Seal(&changed)
	}
	return mesh.NewView(view.Proxy, view.Settings, view.Inbound, mesh.NewOutbound("*", mesh.TableOf(destinations), view.Outbound.Backends), view.Egress)
}
