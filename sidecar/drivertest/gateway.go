package drivertest

import (
	"context"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Gateway is a gateway in front of servers of the mesh, for the tests of a driver. They start the
// real proxy with its View, and Check what clients outside the mesh get.
type Gateway struct {
	// Proxy is the gateway's.
	Proxy mesh.Proxy
	// Server is the identity of a server of the mesh, and TLS its configuration.
	Server mesh.Identity
	TLS    *tls.Config
	// Listen returns a listener at an address that the proxy can call.
	Listen func() (net.Listener, error)
	// Dial connects to a port of the proxy, like a client.
	Dial func(ctx context.Context, port uint16) (net.Conn, error)
	// Client is the address of the clients, as the proxy sees it.
	Client netip.Addr
	// Dial6 and Client6 are those for IPv6, if the Proxy has such an address.
	Dial6   func(ctx context.Context, port uint16) (net.Conn, error)
	Client6 netip.Addr

	// ports are those of the gateway: two for HTTP, one for TCP, and one for HTTP with the many hosts
	// of the Destination.
	ports [4]uint16
	many  *mesh.Destination
}

// Forwarded is a request that has reached a server of a Gateway.
type Forwarded struct {
	By, Proto, Method, Path, Host string
	Header                        http.Header
}

// View starts the servers, which run until the test ends, and returns the View of the gateway: its
// ports with the hosts and routes that Check asks for.
func (g *Gateway) View(t testing.TB) *mesh.View {
	t.Helper()
	for _, port := range []*uint16{&g.ports[0], &g.ports[1], &g.ports[2], &g.ports[3]} {
		listener, err := net.Listen("tcp", "0.0.0.0:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		*port = uint16(listener.Addr().(*net.TCPAddr).Port)
	}
	d := empty()
	d.proxy = g.Proxy
	d.proxy.Gateway = true
	d.settings.AccessLog = mesh.FullAccessLog()
	closed, err := g.Listen()
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for name, at := range map[string]struct {
		address net.Addr
		server  string
	}{
		"cart": {g.serve(t, "cart", true), g.Server.DNSName()}, "plain": {g.serve(t, "plain", false), ""}, "closed": {closed.Addr(), g.Server.DNSName()},
	} {
		to := at.address.(*net.TCPAddr).AddrPort()
		service := servicePort(name, 80)
		d.backends = append(d.backends, &mesh.Backend{Name: service.String(), Service: service, Protocol: mesh.HTTP1, Endpoints: []mesh.Endpoint{
			{Addresses: []netip.Addr{to.Addr().Unmap()}, Port: to.Port(), ServerName: at.server, Workload: "shop/" + name},
		}})
	}
	called := *d.backends[slices.IndexFunc(d.backends, func(b *mesh.Backend) bool { return b.Service.Name.Name == "cart" })]
	called.Name, called.Protocol = called.Name+"/grpc", mesh.GRPC
	d.backends = append(d.backends, &called)
	to := func(name string, weight uint32) mesh.WeightedBackend {
		return mesh.WeightedBackend{Backend: servicePort(name, 80).String(), Weight: weight}
	}
	prefix := func(path string) mesh.HTTPMatch { return mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: path}} }
	changed := to("cart", 1)
	changed.Request = mesh.HeaderChanges{Set: []mesh.Header{{Name: "x-edge", Value: "1"}}, Remove: []string{"x-drop"}}
	const exact, shop, wild = "cart.example.com", "*.shop.example.com", "*.example.com"
	first := gatewayPort(g.ports[0], exact, shop, wild, mesh.AnyHost)
	first.Routes = []mesh.Route{
		{Host: exact, Match: prefix("/cart"), Backends: []mesh.WeightedBackend{to("cart", 1)}},
		{Host: exact, Match: prefix("/set"), Backends: []mesh.WeightedBackend{changed}},
		{Host: exact, Match: prefix("/old"), Redirect: &mesh.Redirect{Scheme: "https", Host: "new.example.com", Path: mesh.PathChange{Prefix: "/new"}, Status: 301}},
		{Host: exact, Match: prefix("/split"), Backends: []mesh.WeightedBackend{to("cart", 1), to("closed", 1)}},
		{Host: exact, Match: prefix("/closed"), Backends: []mesh.WeightedBackend{to("closed", 1)}},
		{Host: exact, Match: prefix("/calls"), Backends: []mesh.WeightedBackend{{Backend: called.Name, Weight: 1}}},
		{Host: exact, Match: prefix("/lost"), Backends: []mesh.WeightedBackend{{Weight: 1}}},
		{Host: shop, Backends: []mesh.WeightedBackend{to("plain", 1)}},
		{Host: mesh.AnyHost, Match: prefix("/any"), Backends: []mesh.WeightedBackend{to("cart", 1)}},
	}
	second := gatewayPort(g.ports[1], "only.example.com")
	second.Routes = []mesh.Route{{Host: "only.example.com", Backends: []mesh.WeightedBackend{to("cart", 1)}}}
	for _, destination := range []*mesh.Destination{first, second} {
		for i := range destination.Routes {
			destination.Routes[i].Origin = Origin("HTTPRoute", fmt.Sprintf("shop/r%d", i))
		}
	}
	echo := servicePort("echo", 7)
	at := g.echo(t).(*net.TCPAddr).AddrPort()
	d.backends = append(d.backends, &mesh.Backend{Name: echo.String(), Service: echo, Protocol: mesh.TCP, Endpoints: []mesh.Endpoint{
		{Addresses: []netip.Addr{at.Addr().Unmap()}, Port: at.Port(), Workload: "shop/echo"},
	}})
	third := gatewayPort(g.ports[2])
	third.Protocol, third.Backends = mesh.TCP, []mesh.WeightedBackend{{Backend: echo.String(), Weight: 1}}
	g.many = gatewayPort(g.ports[3], manyHosts()...)
	for i, host := range g.many.Hosts {
		// Some hosts have no route.
		if marked := to("plain", 1); i%5 > 0 {
			marked.Request.Set = []mesh.Header{{Name: "x-host", Value: host}}
			g.many.Routes = append(g.many.Routes, mesh.Route{Host: host, Backends: []mesh.WeightedBackend{marked}})
		}
	}
	d.destinations = []*mesh.Destination{first, second, third, g.many}
	if slices.ContainsFunc(g.Proxy.Addresses, netip.Addr.Is6) {
		for _, destination := range d.destinations {
			destination.Addresses = append(destination.Addresses, netip.IPv6Unspecified())
		}
	}
	return d.view()
}

// gatewayPort returns a port of a gateway at all addresses.
func gatewayPort(number uint16, hosts ...string) *mesh.Destination {
	port := mesh.ServicePort{Name: mesh.Name{Namespace: "edge", Name: "web"}, Port: number}
	return &mesh.Destination{
		Name: "gateway/" + port.String(), Service: port, Origins: []mesh.Origin{Origin("Gateway", "edge/web")},
		Addresses: []netip.Addr{netip.IPv4Unspecified()}, Port: number, Protocol: mesh.HTTP, Listens: true, Hosts: hosts,
	}
}

// serve runs a server that describes the requests that it gets, and echoes WebSockets.
func (g *Gateway) serve(t testing.TB, name string, secure bool) net.Addr {
	t.Helper()
	listener, err := g.Listen()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/cart/slow" {
			time.Sleep(300 * time.Millisecond)
		}
		if r.Header.Get("Upgrade") != "websocket" {
			_ = json.NewEncoder(w).Encode(Forwarded{name, r.Proto, r.Method, r.RequestURI, r.Host, r.Header})
			return
		}
		accept := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		w.Header().Set("Sec-WebSocket-Accept", base64.StdEncoding.EncodeToString(accept[:]))
		w.WriteHeader(http.StatusSwitchingProtocols)
		if conn, buffered, err := http.NewResponseController(w).Hijack(); err == nil {
			defer conn.Close()
			_, _ = io.Copy(conn, buffered)
		}
	}))
	server.Listener.Close()
	server.Listener, server.EnableHTTP2 = listener, secure
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	if secure {
		server.TLS = g.TLS.Clone()
		server.TLS.NextProtos = []string{"h2", "http/1.1"}
		server.StartTLS()
	} else {
		server.Config.Protocols = new(http.Protocols)
		server.Config.Protocols.SetHTTP1(true)
		server.Config.Protocols.SetUnencryptedHTTP2(true)
		server.Start()
	}
	t.Cleanup(server.Close)
	return listener.Addr()
}

// echo runs a server that sends back what it gets.
func (g *Gateway) echo(t testing.TB) net.Addr {
	t.Helper()
	listener, err := g.Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return listener.Addr()
}

// HTTPClient returns a client of the first or second port, 0 or 1, that speaks HTTP/1.1, or HTTP/2
// from the first byte on. It follows no redirects.
func (g *Gateway) HTTPClient(port int, h2 bool) *http.Client {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return g.Dial(ctx, g.ports[port]) },
		Protocols:   new(http.Protocols), DisableCompression: true,
	}
	transport.Protocols.SetHTTP1(!h2)
	transport.Protocols.SetUnencryptedHTTP2(h2)
	return &http.Client{
		Timeout: 20 * time.Second, Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Ask sends a request with the headers, names and values in turn. Forwarded is what the server got,
// if the status is 200.
func (g *Gateway) Ask(c *http.Client, host, target string, header ...string) (*http.Response, Forwarded, error) {
	var got Forwarded
	request, err := http.NewRequest(http.MethodGet, "http://gateway"+target, nil)
	if err != nil {
		return nil, got, err
	}
	request.Host = host
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Add(header[i], header[i+1])
	}
	response, err := c.Do(request)
	if err != nil {
		return nil, got, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode == http.StatusOK {
		err = json.Unmarshal(body, &got)
	}
	return response, got, err
}

// manyHosts returns hosts and wildcards of which many match the same names.
func manyHosts() []string {
	random := rand.New(rand.NewPCG(1, 2))
	var hosts []string
	for range 40 {
		host := randomName(random)
		if random.IntN(2) == 0 {
			host = "*." + host
		}
		hosts = append(hosts, host)
	}
	slices.SortFunc(hosts, mesh.CompareHosts)
	return slices.Compact(hosts)
}

// randomName returns a random name of few labels.
func randomName(random *rand.Rand) string {
	labels := make([]string, 1+random.IntN(4))
	for i := range labels {
		labels[i] = []string{"a", "b", "ab", "a-b", "0"}[random.IntN(5)]
	}
	return strings.Join(labels, ".")
}
