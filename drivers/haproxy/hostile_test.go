package haproxy

import (
	"net/http"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// tokens are the characters of names of headers.
const tokens = "x!#$%&'*+-.^_`|~y"

// TestNamesOfHeaders checks that every name that Gateway API allows is only a name, in changes
// and in conditions, and that no value ends the request.
func TestNamesOfHeaders(t *testing.T) {
	ca := newAuthority(t)
	p := newPeer(t, ca, store)
	p.answer = func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set(tokens+"-gone", "a")
		return false
	}
	const smuggled = `\r\nx-pad a\r\n\r\nDELETE\ /smuggled\ HTTP/1.1\r\nhost:\ forged\r\nx-end:\ 1 #'`
	f := newFixture(buyer)
	d := f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, p.address))
	changes := mesh.HeaderChanges{
		Set: []mesh.Header{{Name: "'", Value: smuggled}, {Name: "x#", Value: "100% %[src]"}}, Add: []mesh.Header{{Name: tokens, Value: "b"}}, Remove: []string{tokens + "-gone"},
	}
	to := d.Routes[0].Backends
	to[0].Request, to[0].Response = changes, mesh.HeaderChanges{Set: changes.Set, Remove: changes.Remove}
	many := strings.TrimSuffix(strings.Repeat("x-header-of-an-application, ", 600), ", ")
	d.Routes = []mesh.Route{
		{Match: mesh.HTTPMatch{Headers: []mesh.KeyMatch{{Name: "x'#", StringMatch: mesh.StringMatch{Exact: "'#"}}}, Query: []mesh.KeyMatch{{Name: "$top", StringMatch: mesh.StringMatch{Exact: "5"}}}}, Backends: to},
		{CORS: &mesh.CORS{Origin: mesh.StringMatch{Present: true}, Headers: many, Expose: many}, Backends: []mesh.WeightedBackend{{Backend: to[0].Backend, Weight: 1}}},
	}
	r := runOutbound(t, ca, f)
	for _, h2 := range []bool{false, true} {
		c := client(r.outbound, storeAddress, nil, h2)
		before := p.requests.Load()
		response, got, err := keepAsking(c, "GET", "/?$top=5", "x'#", "'#", tokens, "a", tokens+"-gone", "a")
		if err != nil || response.StatusCode != 200 {
			t.Fatalf("the answer is %v, %v", response, err)
		}
		lower := map[string]string{}
		for name, values := range got.Header {
			lower[strings.ToLower(name)] = strings.Join(values, "|")
		}
		for name, want := range map[string]string{"'": smuggled, "x#": "100% %[src]", tokens: "a,b", tokens + "-gone": ""} {
			if lower[name] != want {
				t.Errorf("h2 %v: the server got %s: %s, want %s", h2, name, lower[name], want)
			}
		}
		if response.Header.Get("'") != smuggled || response.Header.Get(tokens+"-gone") != "" {
			t.Errorf("h2 %v: the client got %v", h2, response.Header)
		}
		if n := p.requests.Load() - before; n != 1 {
			t.Errorf("h2 %v: the server got %d requests, want 1", h2, n)
		}
		request, _ := http.NewRequest("OPTIONS", "http://books.example.com/", nil)
		request.Header.Set("Origin", "https://a.example")
		request.Header.Set("Access-Control-Request-Method", "GET")
		if response, err = c.Do(request); err != nil || response.StatusCode != 204 || response.Header.Get("Access-Control-Allow-Headers") != many {
			t.Errorf("h2 %v: the answer to a preflight request is %.300v, %v", h2, response, err)
		}
		c.CloseIdleConnections()
	}
}
