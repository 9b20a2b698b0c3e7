package explain

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestExplain asks questions about the shop. The verdict stands here, and the words
// in testdata; UPDATE=1 writes them.
func TestExplain(t *testing.T) {
	const goldenFile = "testdata/explanations.txtar"
	archive, err := txtar.ParseFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	golden := make(map[string][]byte)
	for _, file := range archive.Files {
		golden[file.Name] = file.Data
	}
	written := &txtar.Archive{Comment: archive.Comment}
	for _, tt := range []struct {
		name       string
		permissive bool
		audited    bool
		from, to   string
		request    string
		headers    []string
		want       Verdict
	}{
		{name: "rule", from: "shop/desk-1", to: "shop/cart:80", request: "GET /books?page=1", want: Allowed},
		{name: "service account", from: "shop/desk", to: "shop/cart:http", request: "GET /books", want: Allowed},
		{name: "first port", from: "shop/desk", to: "shop/cart", request: "GET /books", want: Allowed},
		{name: "by name", from: "shop/desk", to: "cart.shop.svc.cluster.local", request: "GET /books", want: Allowed},
		{name: "by address", from: "shop/desk", to: "10.1.0.1:80", request: "GET /books", want: Allowed},
		{name: "route with a match", from: "shop/desk", to: "shop/cart", request: "GET /books", headers: []string{"X-Canary=1"}, want: Allowed},
		{name: "wrong path", from: "shop/desk-1", to: "shop/cart", request: "GET /admin", want: Denied},
		{name: "path with dot segments", from: "shop/desk-1", to: "shop/cart", request: "GET /x/../books/%2e/1", want: Allowed},
		{name: "dot segments out of the path", from: "shop/desk-1", to: "shop/cart", request: "GET /books/../admin", want: Denied},
		{name: "path without one meaning", from: "shop/desk-1", to: "shop/cart", request: "GET /books/%2e%2e;/admin", want: Denied},
		{name: "wrong method", from: "shop/desk-1", to: "shop/cart", request: "POST /books", want: Denied},
		{name: "wrong source", from: "shop/guest", to: "shop/cart", request: "GET /books", want: Denied},
		{name: "permissive policy", permissive: true, from: "shop/thief", to: "shop/cart", request: "GET /admin", want: Allowed},
		{name: "audit, allowed", audited: true, from: "shop/desk", to: "shop/cart", request: "GET /books", want: Allowed},
		{name: "audit, wrong path", audited: true, from: "shop/desk", to: "shop/cart", request: "GET /admin", want: Allowed},
		{name: "audit, connection", audited: true, from: "shop/desk", to: "shop/cart", want: Allowed},
		{name: "audit, connection of another source", audited: true, from: "shop/thief", to: "shop/cart", want: Allowed},
		{name: "not known, egress open", from: "shop/thief", to: "shop/cart", request: "GET /books", want: Denied},
		{name: "not known, egress closed", from: "shop/locked", to: "shop/cart", request: "GET /books", want: Denied},
		{name: "limited to other services", permissive: true, from: "shop/narrow", to: "shop/cart", request: "GET /books", want: Denied},
		{name: "on demand", from: "shop/lazy", to: "shop/cart", request: "GET /books", want: Mixed},
		{name: "on demand, by address", from: "shop/lazy", to: "10.0.0.22:5432", request: "GET /", want: Mixed},
		{name: "on demand, out of the mesh", from: "shop/lazy", to: "10.0.99.1:80", request: "GET /", want: Denied},
		{name: "no such port", from: "shop/desk", to: "shop/cart:99", request: "GET /", want: Unreachable},
		{name: "port without workloads", permissive: true, from: "shop/desk", to: "shop/cart:admin", request: "GET /", want: Denied},
		{name: "headless", from: "shop/cart-v1-1", to: "shop/db", request: "GET /", want: Mixed},
		{name: "headless, by address", from: "shop/cart-v1-1", to: "10.0.0.22:5432", request: "GET /", want: Denied},
		{name: "headless with many endpoints", permissive: true, from: "shop/desk-1", to: "shop/many", request: "GET /", want: Allowed},
		{name: "two service accounts", permissive: true, from: "shop/cart-v1-1", to: "shop/two", request: "GET /", want: Allowed},
		{name: "endpoint without a sidecar", from: "shop/desk-1", to: "shop/stock", request: "GET /", want: Allowed},
		{name: "no endpoint", from: "shop/desk-1", to: "shop/empty", request: "GET /", want: Unreachable},
		{name: "caller without a sidecar", from: "shop/legacy", to: "shop/cart", request: "GET /books", want: Denied},
		{name: "plaintext to a port without IngressBackends", from: "shop/thief", to: "shop/db-0:5432", want: Denied},
		{name: "caller without mesh TLS", from: "shop/old", to: "shop/cart", request: "GET /books", want: Denied},
		{name: "ingress", from: "shop/old", to: "shop/cart", request: "GET /public/1", want: Allowed},
		{name: "pod", from: "shop/thief", to: "shop/cart-v1-1", request: "GET /", want: Denied},
		{name: "pod, egress closed", from: "shop/locked", to: "shop/cart-v1-1:8080", request: "GET /", want: Denied},
		{name: "pod without a sidecar", from: "shop/thief", to: "shop/legacy:80", request: "GET /", want: Allowed},
		{name: "pod that has ended", from: "shop/thief", to: "shop/gone", request: "GET /", want: Unreachable},
		{name: "external name", from: "shop/desk-1", to: "shop/mail", request: "GET /", want: Allowed},
		{name: "egress host", from: "shop/desk-1", to: "www.example", request: "GET /books", want: Allowed},
		{name: "egress host, wrong path", from: "shop/desk-1", to: "www.example", request: "GET /", want: Mixed},
		{name: "egress, another host", from: "shop/desk-1", to: "www.test:80", request: "GET /", want: Mixed},
		{name: "egress, another host by server name", from: "shop/desk-1", to: "www.test:443", request: "GET /", want: Denied},
		{name: "egress host by all addresses", from: "shop/desk-1", to: "www.test:8443", request: "GET /", want: Allowed},
		{name: "egress host by some addresses", from: "shop/desk-1", to: "www.test:5432", request: "GET /", want: Mixed},
		{name: "egress, another port", from: "shop/desk-1", to: "www.example:8080", request: "GET /", want: Denied},
		{name: "egress by server name", from: "shop/desk-1", to: "pay.example:443", request: "GET /", want: Allowed},
		{name: "egress to a range", from: "shop/desk-1", to: "203.0.113.9:80", request: "GET /", want: Allowed},
		{name: "egress open", from: "shop/thief", to: "www.example", request: "GET /", want: Allowed},
		{name: "egress closed", from: "shop/locked", to: "[2001:db8::1]:22", request: "GET /", want: Denied},
		{name: "in the caller's namespace", from: "shop/desk", to: "cart", request: "GET /books", want: Allowed},
		{name: "in the caller's namespace, with a port", from: "shop/desk", to: "cart:80", request: "GET /books", want: Allowed},
		{name: "by name and namespace", from: "shop/desk", to: "cart.shop:80", request: "GET /books", want: Allowed},
		{name: "by name, namespace and svc", from: "shop/desk", to: "cart.shop.svc:80", request: "GET /books", want: Allowed},
		{name: "not known, without a sidecar", from: "shop/thief", to: "shop/bare", request: "GET /", want: Allowed},
		{name: "not known, headless without a sidecar", from: "shop/thief", to: "shop/bare-0", request: "GET /", want: Allowed},
		{name: "without a sidecar on both sides", from: "shop/legacy", to: "shop/bare", request: "GET /", want: Allowed},
		{name: "service outside the mesh, egress open", from: "shop/thief", to: "outside/api", request: "GET /", want: Allowed},
		{name: "service outside the mesh, egress closed", from: "shop/locked", to: "outside/api:14001", request: "GET /", want: Denied},
		{name: "namespace outside the mesh", from: "shop/locked", to: "outside/unknown:80", request: "GET /", want: Denied},
		{name: "namespace that is not known, egress open", from: "shop/thief", to: "mall/cart", request: "GET /", want: Allowed},
		{name: "connection", from: "shop/cart-v1-1", to: "shop/db", want: Mixed},
		{name: "connection to http", from: "shop/desk", to: "shop/cart", want: Mixed},
		{name: "connection to http, wrong source", from: "shop/thief", to: "shop/cart", want: Denied},
		{name: "connection to http, permissive policy", permissive: true, from: "shop/desk", to: "shop/cart", want: Allowed},
		{name: "connection to an egress host", from: "shop/desk", to: "www.example:8081", want: Mixed},
		{name: "egress without a sidecar", from: "shop/legacy", to: "www.example", request: "GET /", want: Allowed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			method, path, _ := strings.Cut(tt.request, " ")
			q, err := NewQuestion(tt.from, tt.to, method, path, tt.headers)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := Explain(shop(tt.permissive, tt.audited), surroundingFacts(), source.Policies(), q)
			if err != nil {
				t.Fatal(err)
			}
			if answer.Verdict != tt.want {
				t.Errorf("the verdict is %s, want %s", answer.Verdict, tt.want)
			}
			var got strings.Builder
			if err := answer.WriteText(&got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(golden[tt.name]), got.String()); diff != "" && os.Getenv("UPDATE") == "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			written.Files = append(written.Files, txtar.File{Name: tt.name, Data: []byte(got.String())})
		})
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(goldenFile, txtar.Format(written), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestExplainNothing asks a mesh that is empty, and for everything that can be asked.
func TestExplainNothing(t *testing.T) {
	empty := &fact.Snapshot{Settings: mesh.Seal(&mesh.Settings{})}
	for _, to := range []string{"a/b", "a/b:80", "host", "host:1", "10.0.0.1", "[::1]:80", "a.b"} {
		q, err := NewQuestion("a/b", to, "get", "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Explain(empty, nil, nil, q); err == nil {
			t.Errorf("%s: %+v", to, got)
		}
	}
}

// TestExplainNoAnswer asks about things that don't exist.
func TestExplainNoAnswer(t *testing.T) {
	for _, tt := range []struct{ from, to, want string }{
		{"shop/desk", "shop/card", "TO shop/card: the mesh has neither a service nor a pod shop/card; the services there are shop/bare, "},
		{"shop/thief", "shop/card", "TO shop/card: the mesh has neither"},
		{"shop/legacy", "shop/card", "TO shop/card: the mesh has neither"},
		{"shop/thief", "card", "TO card: the mesh has neither a service nor a pod shop/card; "},
		{"shop/thief", "card.shop", "TO card.shop: the mesh has neither a service nor a pod shop/card; "},
		{"shop/thief", "new/card", "TO new/card: the mesh has neither a service nor a pod new/card; it has no service in namespace new"},
		{"shop/locked", "mall/cart", "TO mall/cart: there is no namespace mall, and no Egress matches cart.mall, port 80"},
		{"shop/locked", "cart.mall.svc:81", "TO cart.mall.svc:81: there is no namespace mall, and no Egress matches cart.mall.svc, port 81"},
		{"shop/thief", "mall/cart:http", "TO mall/cart:http: the port of a target outside the mesh must be a number"},
		{"shop/desk", "shop/cart:htpp", "TO shop/cart:htpp: service shop/cart has no port called htpp; its ports are 80 (http), 81 (admin)"},
		{"shop/thief", "shop/legacy", "TO shop/legacy: pod shop/legacy has no named port; use its number as shop/legacy:PORT"},
		{"shop/thief", "shop/legacy:htpp", `TO shop/legacy:htpp: pod shop/legacy has no named port "htpp"; use its number as shop/legacy:PORT`},
		{"shop/nobody", "shop/cart", "FROM shop/nobody: the mesh has no pod of that name, and none with that service account; the workloads there, and their service accounts, are "},
		{"mall/nobody", "shop/cart", "FROM mall/nobody: the mesh has no pod of that name, and none with that service account; the mesh has no workload in namespace mall"},
	} {
		q, err := NewQuestion(tt.from, tt.to, "GET", "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Explain(shop(false, false), surroundingFacts(), source.Policies(), q); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s to %s: %+v, error %v, want %s", tt.from, tt.to, got, err, tt.want)
		}
	}
}

func TestNewQuestion(t *testing.T) {
	for _, tt := range []struct{ to, want string }{
		{"a/b", "a/b"}, {"a/b:80", "a/b:80"}, {"a/b:http", "a/b:http"}, {"Host.Example", "host.example"}, {"host:81", "host:81"},
		{"10.0.0.1", "10.0.0.1"}, {"::1", "::1"}, {"[::1]:80", "[::1]:80"}, {"::ffff:10.0.0.1", "10.0.0.1"},
	} {
		q, err := NewQuestion("a/b", tt.to, "get", "/a?b", []string{"Host=h", "X-A=1=2", "x-a=3"})
		if err != nil || q.To.String() != tt.want {
			t.Errorf("%s: %s, %v, want %s", tt.to, q.To, err, tt.want)
		}
		want := mesh.Request{Method: "GET", Host: "h", Path: "/a?b", Headers: map[string][]string{"x-a": {"1=2", "3"}}}
		if diff := cmp.Diff(want, q.Request); diff != "" {
			t.Errorf("the request (-want +got):\n%s", diff)
		}
	}
	for _, tt := range []struct {
		from, to, method, path, header string
		want                           string
	}{
		{"b", "a/b", "GET", "/", "", `FROM "b": write it as NAMESPACE/NAME`},
		{"a/b/c", "a/b", "GET", "/", "", `FROM "a/b/c": write it as NAMESPACE/NAME`},
		{"a/", "a/b", "GET", "/", "", `FROM "a/": write it as NAMESPACE/NAME`},
		{"a/b", "a/", "GET", "/", "", `TO "a/": write it as NAMESPACE/NAME`},
		{"a/b", "", "GET", "/", "", `TO "": write it as NAMESPACE/NAME, HOST or ADDRESS, optionally with :PORT`},
		{"a/b", "a/b:", "GET", "/", "", `TO "a/b:": "" is not a port`},
		{"a/b", "a/b:70000", "GET", "/", "", `TO "a/b:70000": "70000" is not a port`},
		{"a/b", "a/b:0", "GET", "/", "", `TO "a/b:0": "0" is not a port`},
		{"a/b", "10.0.0.1:0", "GET", "/", "", `TO "10.0.0.1:0": "0" is not a port`},
		{"a/b", "https://www.example/a?b", "GET", "/", "", `TO "https://www.example/a?b": it is a URL; write it as www.example:443, and the rest as PATH`},
		{"a/b", "http://cart.shop:8080", "GET", "/", "", `TO "http://cart.shop:8080": it is a URL; write it as cart.shop:8080, and the rest as PATH`},
		{"a/b", "a/b", "", "", "a=b", "headers require a request; add its METHOD and PATH"},
		{"a/b", "host:http", "GET", "/", "", `TO "host:http": the port of a host must be a number`},
		{"a/b", "a/b", "", "/", "", `METHOD "": write one such as GET`},
		{"a/b", "a/b", "/", "GET", "", `METHOD "/": write one such as GET`},
		{"a/b", "a/b", "GET", "a", "", `PATH "a": it must begin with a slash`},
		{"a/b", "a/b", "GET", "/", "a", `header "a": write it as name=value`},
	} {
		var headers []string
		if tt.header != "" {
			headers = []string{tt.header}
		}
		if _, err := NewQuestion(tt.from, tt.to, tt.method, tt.path, headers); err == nil || err.Error() != tt.want {
			t.Errorf("%q %q %q %q %q: error %v, want %s", tt.from, tt.to, tt.method, tt.path, tt.header, err, tt.want)
		}
	}
}

// FuzzNewQuestion asks that no question panics, and that what is read is written as
// it was read.
func FuzzNewQuestion(f *testing.F) {
	f.Add("shop/desk", "shop/cart:80", "GET", "/a", "a=b")
	f.Add("shop/desk", "cart", "", "", "")
	f.Add("shop/legacy", "[::1%eth0]:80", "GET", "/%zz?", "=")
	snapshots := []*fact.Snapshot{shop(true, false), shop(false, false)}
	f.Fuzz(func(t *testing.T, from, to, method, path, header string) {
		var headers []string
		if header != "" {
			headers = []string{header}
		}
		q, err := NewQuestion(from, to, method, path, headers)
		if err != nil {
			return
		}
		if again, err := parseTarget(q.To.String()); err != nil || again != q.To {
			t.Errorf("%q is written as %q and then read as %+v, %v", to, q.To, again, err)
		}
		for _, s := range snapshots {
			// The error names what is missing.
			_, _ = Explain(s, surroundingFacts(), source.Policies(), q)
		}
	})
}
