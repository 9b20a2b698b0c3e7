package pipy

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// arrivalInput is an arrival in the form of the scripts.
type arrivalInput struct {
	Port       uint16      `json:"port"`
	Source     string      `json:"source"`
	Security   string      `json:"security"`
	ServerName string      `json:"serverName"`
	Peer       string      `json:"peer"`
	Head       requestHead `json:"head"`
}

type requestHead struct {
	Method   string            `json:"method"`
	Path     string            `json:"path"`
	Protocol string            `json:"protocol"`
	Headers  map[string]string `json:"headers"`
}

const decideScript = `
import { clean, requestOf } from './request.js'
import { decide } from './authorization.js'
var input = JSON.parse(os.readFile(os.env.TEST_DIR + '/input.json').toString())
var output = input.map(c => c.Arrivals.map(
  function (a) {
    if (!clean(a.head, true)) return { bad: true }
    var port = c.Document.ports[a.port + ''] || { protocol: 'tcp', access: c.Document.others }
    var request = port.protocol === 'http' ? requestOf(a.head) : undefined
    return { allowed: decide({ permissive: c.Document.permissive }, port, { ...a, request }), path: a.head.path }
  }
))
`

// generator generates Inbounds and arrivals from a small vocabulary, so that many match.
type generator struct{ *rand.Rand }

func pick[T any](w generator, of ...T) T { return of[w.IntN(len(of))] }

func some[T any](w generator, most int, one func() T) []T {
	out := make([]T, 0, most)
	for range w.IntN(most + 1) {
		out = append(out, one())
	}
	return out
}

func (w generator) identity() mesh.Identity {
	return pick(w, buyer, ops, store, account("ops", "admin.x"), account("", "nobody"), account(buyer.Namespace, ""), account("", ""))
}

func (w generator) text() mesh.StringMatch {
	return pick(w, mesh.StringMatch{Exact: "a"}, mesh.StringMatch{Prefix: "a"}, mesh.StringMatch{Regex: "[ab]+"}, mesh.StringMatch{Present: true}, mesh.StringMatch{}, mesh.StringMatch{Regex: "("})
}

func (w generator) key(names ...string) func() mesh.KeyMatch {
	return func() mesh.KeyMatch { return mesh.KeyMatch{Name: pick(w, names...), StringMatch: w.text()} }
}

func (w generator) match() mesh.HTTPMatch {
	if w.IntN(4) == 0 {
		return mesh.HTTPMatch{}
	}
	return mesh.HTTPMatch{
		Path: pick(w, mesh.StringMatch{}, mesh.StringMatch{Exact: "/a"}, mesh.StringMatch{Prefix: "/a"}, mesh.StringMatch{Prefix: "/a/"}, mesh.StringMatch{Prefix: "/"},
			mesh.StringMatch{Regex: "/a/.*"}, mesh.StringMatch{Regex: "/[ab]"}, mesh.StringMatch{Regex: "["}, mesh.StringMatch{Present: true}),
		Methods: pick(w, nil, []string{"GET"}, []string{"GET", "POST"}),
		Headers: some(w, 1, w.key("x", "host", "cookie")),
		Query:   some(w, 1, w.key("q", "r")),
	}
}

func (w generator) ingress() mesh.Ingress {
	return mesh.Ingress{
		Origin: drivertest.Origin("IngressBackend", "ingress"), TLS: w.IntN(2) == 0, SkipClientCert: w.IntN(2) == 0,
		SNIHosts:     pick(w, nil, []string{"a.example.com"}, []string{"*.example.com"}, []string{"B.example.com", "a.test"}, []string{"*.sa.cluster.local"}),
		Ranges:       pick(w, nil, prefixes("10.0.0.0/8"), prefixes("10.1.0.0/16", "2001:db8::/32"), prefixes("0.0.0.0/0")),
		AnyPrincipal: w.IntN(4) == 0, Principals: some(w, 2, w.identity), Requests: some(w, 2, w.match),
	}
}

func (w generator) access() mesh.Access {
	a := mesh.Access{Anyone: w.IntN(4) == 0, Audit: w.IntN(4) == 0, Rules: some(w, 3, func() mesh.Permission {
		return mesh.Permission{Origin: drivertest.Origin("TrafficTarget", "rule"), Sources: some(w, 2, w.identity), Except: some(w, 1, w.identity), Requests: some(w, 2, w.match)}
	})}
	if w.IntN(2) == 0 {
		a.Denials = some(w, 2, func() mesh.Denial {
			return mesh.Denial{Origin: drivertest.Origin("AccessPolicy", "denial"), Everyone: w.IntN(3) == 0, Sources: some(w, 2, w.identity), Except: some(w, 1, w.identity), Requests: some(w, 2, w.match)}
		})
	}
	return a
}

func (w generator) inbound() *mesh.Inbound {
	in := &mesh.Inbound{TLS: pick(w, mesh.Strict, mesh.Permissive), Others: w.access()}
	for i, protocol := range []mesh.Protocol{mesh.HTTP, mesh.GRPC, mesh.TCP, mesh.TCPServerFirst} {
		in.Ports = append(in.Ports, mesh.InboundPort{Port: uint16(i + 1), Protocol: protocol, Access: w.access(), Ingress: some(w, 2, w.ingress)})
	}
	return mesh.Seal(in)
}

// arrival returns an arrival for the script and for Decide.
func (w generator) arrival() (arrivalInput, mesh.Arrival) {
	a := mesh.Arrival{
		Port: uint16(1 + w.IntN(5)), Source: pick(w, netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("10.2.2.3"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")),
		Security: pick(w, mesh.Plaintext, mesh.MeshTLS, mesh.OtherTLS),
	}
	switch a.Security {
	case mesh.MeshTLS:
		a.ServerName = store.DNSName()
	case mesh.OtherTLS:
		a.ServerName = pick(w, "a.example.com", "A.Example.com", "b.example.com", "example.com", "a.test", "")
	}
	if a.Security != mesh.Plaintext && w.IntN(3) > 0 {
		a.Peer = pick(w, buyer, ops, store)
	}
	head := requestHead{
		Method: pick(w, "GET", "POST", "PUT"), Protocol: "HTTP/1.1",
		Path:    pick(w, "/", "/a", "/a/", "/a/b", "/b", "/ab", "/a/../b", "/a//b", "/a/%2e%2E/a", "/a%2Fb", "/a/..;/b", "/A", "//a") + pick(w, "", "", "?q=a", "?q=b&q=a", "?r=%61b", "?q", "?q=a;r=b", "?%71=a", "?x=1&r=a+b", "?q=%zz"),
		Headers: map[string]string{"host": pick(w, "a", "ab", "b:80", "c")},
	}
	for _, name := range []string{"x", "cookie"} {
		if w.IntN(2) == 0 {
			head.Headers[name] = pick(w, "a", "ab", "c", "", "c, a", "c,d")
		}
	}
	in := arrivalInput{Port: a.Port, Source: a.Source.String(), Security: string(a.Security), ServerName: a.ServerName, Head: head}
	if a.Peer.Validate() == nil {
		in.Peer = a.Peer.String()
	}
	return in, a
}

// TestDecide compares the decisions of the scripts in a real Pipy with those of package
// mesh.
func TestDecide(t *testing.T) {
	w := generator{rand.New(rand.NewPCG(3, 4))}
	type group struct {
		Document json.RawMessage
		Arrivals []arrivalInput
	}
	var input []group
	var inbounds []*mesh.Inbound
	var arrivals [][]mesh.Arrival
	for range 400 {
		in := w.inbound()
		document, err := json.Marshal(inbound(newCompiler(), in))
		if err != nil {
			t.Fatal(err)
		}
		g, list := group{Document: document}, []mesh.Arrival(nil)
		for range 50 {
			asked, a := w.arrival()
			g.Arrivals, list = append(g.Arrivals, asked), append(list, a)
		}
		input, inbounds, arrivals = append(input, g), append(inbounds, in), append(arrivals, list)
	}
	var output [][]struct {
		Bad     bool
		Allowed *string
		Path    string
	}
	runScript(t, decideScript, input, &output)
	allowed := 0
	for i, in := range inbounds {
		for j, a := range arrivals[i] {
			head, got := input[i].Arrivals[j].Head, output[i][j]
			if got.Bad {
				t.Fatalf("the request %+v is refused as invalid", head)
			}
			a.Request = &mesh.Request{Method: head.Method, Path: got.Path, Host: head.Headers["host"], Headers: map[string][]string{}}
			for name, value := range head.Headers {
				a.Request.Headers[name] = []string{value}
			}
			want := in.Decide(a)
			if want.Allowed {
				allowed++
			}
			if (got.Allowed != nil) == want.Allowed {
				continue
			}
			port, _ := in.PortOf(a.Port)
			t.Fatalf("the scripts say %v, and the mesh %+v, of %+v with %+v at\n%s", got.Allowed != nil, want, a, a.Request, fmt.Sprintf("%+v", port))
		}
	}
	t.Logf("of %d arrivals the mesh allows %d", 400*50, allowed)
}
