package envoy

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// hostile are texts that mean something to Envoy, or that it rejects somewhere. Objects are
// JSON, so there is none that is not UTF-8.
var hostile = []string{
	"", "a", "*", "x!y", "x'y", "x%y", "%HOSTNAME%", "%", "%%", "x\\y", "a b", "x\n", "\x00", "é", ":path", "host", "/a?b", "/a#b", "a*b",
	"(", "[", "a)(b", `\p{L}{999}`, ".{1000}.{1000}.{1000}", "A.Example.", "a,b", "]", "')%%CEL(", strings.Repeat("a", 20_000), strings.Repeat("%", 9_000),
}

// hostileView is RandomView with the settings of the mesh, which are no text of a user's.
func hostileView(text string, seed uint64) *mesh.View {
	v := drivertest.RandomView(text, seed)
	return mesh.NewView(v.Proxy, settings(), v.Inbound, v.Outbound, v.Egress)
}

// FuzzTranslate fills every field of a View with a text: nothing may panic, and every resource
// must satisfy Envoy's rules for its fields.
func FuzzTranslate(f *testing.F) {
	for i, text := range hostile {
		for seed := range uint64(2) {
			f.Add(text, uint64(i)*2+seed)
		}
	}
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		config := NewTranslator().Config(hostileView(text, seed))
		for _, typeURL := range types {
			for name, r := range config.table(typeURL).All() {
				message, err := r.Message()
				if err != nil {
					t.Fatalf("%s %s: %v", typeURL, name, err)
				}
				validate(t, typeURL+" "+name, message.ProtoReflect())
			}
		}
	})
}

// TestCheckHostile has a real Envoy validate such Views.
func TestCheckHostile(t *testing.T) {
	for i, text := range hostile {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			if err := check(t, hostileView(text, uint64(i))); err != nil {
				t.Errorf("with %.40q: %s", text, lastOf(err))
			}
		})
	}
}

// lastOf returns the end of an error, where Envoy says what it rejects.
func lastOf(err error) string {
	text := err.Error()
	return text[max(0, len(text)-1000):]
}

// hostileRoutes is a Destination whose routes have hostile texts, and a last one that answers.
func hostileRoutes() fixture {
	b := backend(port("shop", 80), mesh.HTTP)
	header := func(path, name, value string) mesh.HTTPMatch {
		return mesh.HTTPMatch{Path: mesh.StringMatch{Exact: path}, Headers: []mesh.KeyMatch{{Name: name, StringMatch: mesh.StringMatch{Exact: value}}}}
	}
	cors := func(path, headers string) mesh.Route {
		return mesh.Route{Match: mesh.HTTPMatch{Path: mesh.StringMatch{Exact: path}}, Backends: shares(b), CORS: &mesh.CORS{
			Origin: mesh.StringMatch{Present: true}, Headers: headers, Methods: headers, Expose: headers,
		}}
	}
	to := func(m mesh.HTTPMatch, path string) mesh.Route {
		return mesh.Route{Match: m, Redirect: &mesh.Redirect{Status: 302, Path: mesh.PathChange{Full: path}}}
	}
	d := destination(b.Service, mesh.HTTP, "10.96.0.1", b)
	d.Routes = []mesh.Route{
		cors("/cors", "%HOSTNAME%, x%y"), cors("/long", strings.Repeat("%", 9_000)),
		to(mesh.HTTPMatch{Path: mesh.StringMatch{Regex: `\p{L}{1000}{9}`}}, "/regex"),
	}
	for _, name := range []string{"x!y", "x'y", "x%y", "x|y"} {
		d.Routes = append(d.Routes, to(header("/header", name, "1"), "/"+fmt.Sprintf("%x", name)))
	}
	d.Routes = append(d.Routes, to(header("/header", ":path", "/header"), "/path"), to(mesh.HTTPMatch{}, "/rest"))
	return fixture{scope: "*", destinations: []*mesh.Destination{d}, backends: []*mesh.Backend{b}}
}

// TestRealHostileRoutes checks that such texts mean what they say, and that the other routes of
// the Destination work.
func TestRealHostileRoutes(t *testing.T) {
	dir := t.TempDir()
	newAuthority(t).writeTo(dir, buyer)
	e := startEnvoy(t, hostileRoutes().view(), dir, outboundListener)
	client := &http.Client{
		Transport:     &http.Transport{DialContext: e.dialer("10.96.0.1:80")},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	ask := func(method, path string, headers map[string]string) *http.Response {
		t.Helper()
		request, err := http.NewRequest(method, "http://shop"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(request.Header, asHeader(headers))
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response
	}
	preflight := map[string]string{"Origin": "http://a", "Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "x"}
	if got := ask("OPTIONS", "/cors", preflight); got.Header.Get("Access-Control-Allow-Headers") != "%HOSTNAME%, x%y" {
		t.Errorf("the answer to a preflight request is %s %v", got.Status, got.Header)
	}
	if got := ask("OPTIONS", "/long", preflight); got.StatusCode != 500 {
		t.Errorf("a route that Envoy would reject answers %s", got.Status)
	}
	for _, name := range []string{"x!y", "x'y", "x%y", "x|y"} {
		for values, want := range map[string]string{"1": fmt.Sprintf("/%x", name), "2": "/rest", "2 1": "/rest"} {
			request, _ := http.NewRequest("GET", "http://shop/header", nil)
			request.Header[name] = strings.Fields(values)
			response, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if got := response.Header.Get("Location"); !strings.HasSuffix(got, want) {
				t.Errorf("with %s: %s the redirect is to %q, want %s", name, values, got, want)
			}
		}
	}
	if got := ask("GET", "/header", nil).Header.Get("Location"); !strings.HasSuffix(got, "/rest") {
		t.Errorf("without a header the redirect is to %q", got)
	}
}

func asHeader(headers map[string]string) http.Header {
	out := http.Header{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		out.Set(name, headers[name])
	}
	return out
}
