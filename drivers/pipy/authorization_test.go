package pipy

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dop251/goja"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// TestDecideWithoutPipy compares the scripts' decisions with those of package mesh, like
// TestDecide but without Pipy.
func TestDecideWithoutPipy(t *testing.T) {
	e := newEngine(t)
	w := generator{rand.New(rand.NewPCG(5, 6))}
	allowed := 0
	for range 60 {
		in := w.inbound()
		document := e.value(inbound(newCompiler(), in)).ToObject(e.vm)
		for range 50 {
			asked, a := w.arrival()
			head := e.value(asked.Head).ToObject(e.vm)
			if !e.call("./request.js", "clean", head, true).ToBoolean() {
				t.Fatalf("the request %+v is refused as invalid", asked.Head)
			}
			port := document.Get("ports").ToObject(e.vm).Get(strconv.Itoa(int(a.Port)))
			if port == nil {
				port = e.value(map[string]any{"protocol": "tcp"})
				e.must(port.ToObject(e.vm).Set("access", document.Get("others")))
			}
			arrival := e.value(asked).ToObject(e.vm)
			e.must(arrival.Set("request", e.call("./request.js", "requestOf", head)))
			mode := map[string]any{"permissive": in.TLS == mesh.Permissive}
			got := !goja.IsNull(e.call("./authorization.js", "decide", mode, port, arrival))
			a.Request = requestOf(asked.Head, head.Get("path").String())
			if want := in.Decide(a); got != want.Allowed {
				named, _ := in.PortOf(a.Port)
				t.Fatalf("the scripts say %v, and the mesh %+v, of %+v with %+v at\n%+v", got, want, a, a.Request, named)
			} else if got {
				allowed++
			}
		}
	}
	if allowed < 100 {
		t.Errorf("of 3000 arrivals only %d are allowed", allowed)
	}
}

// requestOf returns the request for package mesh, with the path as the proxy forwards it.
func requestOf(head requestHead, path string) *mesh.Request {
	r := &mesh.Request{Method: head.Method, Path: path, Host: head.Headers["host"], Headers: map[string][]string{}}
	for name, value := range head.Headers {
		r.Headers[name] = []string{value}
	}
	return r
}

// TestAmbiguousPaths compares which paths are ambiguous in the scripts and in package mesh.
func TestAmbiguousPaths(t *testing.T) {
	e := newEngine(t)
	ambiguous := regexp.MustCompile(mesh.AmbiguousPath)
	parts := []string{"/", "/", ".", "..", ";", "a", "%", "%2", "%5c", "%5C", "%2f", "%2F", "%3b", "%25", "%2e", "%00", "%1f", "%20", "%7f", "%23", "%3F", "%c0", "%C1", "%c2", "%e0", "%80", "%9f", "%a0", "%f0", "%f8", "%fc", "%fd", "%zz", "%a", `\`, "#", "é"}
	r := rand.New(rand.NewPCG(7, 8))
	seen := map[bool]int{}
	for range 20_000 {
		path := "/"
		for range r.IntN(5) {
			path += parts[r.IntN(len(parts))]
		}
		want := ambiguous.MatchString(path)
		seen[want]++
		if got := e.call("./match.js", "isAmbiguous", path).ToBoolean(); got != want {
			t.Fatalf("the scripts say %t of %s, and the mesh %t", got, path, want)
		}
	}
	if seen[true] < 1000 || seen[false] < 1000 {
		t.Errorf("the paths are %v", seen)
	}
}

// TestRefusedSpellings checks that a rule with a prefix matches none of these paths.
func TestRefusedSpellings(t *testing.T) {
	e := newEngine(t)
	condition := map[string]any{"path": map[string]any{"prefix": "/public"}}
	for path, want := range map[string]bool{
		"/public/a": true, "/public/a%20b": true, "/public/a;b": true, "/public/%5c": false, "/public/%5C": false, "/public/%2f": false, "/public/..;/a": false, "/public/.;a": false,
		"/public/%3b": false, "/public/%25": false, "/public/%c0%af": false, "/public/%e0%80%af": false, "/public/%zz": false, "/public/%": false,
	} {
		request := map[string]any{"path": path, "query": "", "headers": map[string]any{}}
		if got := e.call("./match.js", "permits", condition, request).ToBoolean(); got != want {
			t.Errorf("%s is permitted: %t", path, got)
		}
		if !e.call("./match.js", "matches", condition, request).ToBoolean() {
			t.Errorf("%s does not match", path)
		}
	}
}

// TestCallers checks that the caller is the only SPIFFE ID of its certificate.
func TestCallers(t *testing.T) {
	e := newEngine(t)
	root := newAuthority(t)
	member := func(names ...string) string {
		text := string(encodePEM("CERTIFICATE", root.issue(t, names...).Certificate[0]))
		certificate := e.vm.NewObject()
		e.must(certificate.Set("toPEM", func() string { return text }))
		return e.call("./authorization.js", "identityOf", certificate, trustDomain).String()
	}
	long := account("bookbuyer", strings.Repeat("a.", 100)+"b")
	for name, tt := range map[string]struct {
		names []string
		want  string
	}{
		"its own":                           {[]string{buyer.DNSName(), buyer.String()}, buyer.String()},
		"no DNS name":                       {[]string{buyer.String()}, buyer.String()},
		"a long name":                       {[]string{long.DNSName(), long.String()}, long.String()},
		"another's DNS name":                {[]string{buyer.DNSName(), ops.String()}, ops.String()},
		"several DNS names":                 {[]string{buyer.DNSName(), ops.DNSName(), ops.String()}, ops.String()},
		"two SPIFFE IDs":                    {[]string{buyer.String(), ops.String()}, ""},
		"one SPIFFE ID twice":               {[]string{buyer.String(), buyer.String()}, ""},
		"a URI that is none, too":           {[]string{buyer.String(), "https://example.com/a"}, ""},
		"no URI":                            {[]string{buyer.DNSName()}, ""},
		"two DNS names of the mesh":         {[]string{buyer.DNSName(), ops.DNSName()}, ""},
		"another trust domain":              {[]string{"spiffe://example.com/ns/bookbuyer/sa/book.buyer"}, ""},
		"a trust domain that goes on":       {[]string{"spiffe://cluster.local.example.com/ns/a/sa/b"}, ""},
		"no workload":                       {[]string{"spiffe://cluster.local/ns/a"}, ""},
		"another kind of name":              {[]string{"spiffe://cluster.local/ns/a/pod/b"}, ""},
		"more behind it":                    {[]string{buyer.String() + "/more"}, ""},
		"an empty service account":          {[]string{"spiffe://cluster.local/ns/a/sa/"}, ""},
		"characters that end a header line": {[]string{buyer.String() + ";URI=" + ops.String()}, ""},
	} {
		if got := member(tt.names...); got != tt.want {
			t.Errorf("%s: the caller is %q, want %q", name, got, tt.want)
		}
	}
	if got := e.call("./authorization.js", "identityOf", nil, trustDomain).String(); got != "" {
		t.Errorf("without a certificate the caller is %q", got)
	}
}

// FuzzCertificate parses arbitrary bytes as a certificate: a URI must be part of them, and
// nothing may fail.
func FuzzCertificate(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0x30, 0x84, 1, 1, 1, 1})
	f.Add([]byte{0x30, 0x80})
	f.Add([]byte{0x30, 0x06, 0x30, 0x04, 0xa3, 0x02, 0x30, 0x00})
	f.Fuzz(func(t *testing.T, der []byte) {
		e := newEngine(t)
		if got := e.call("./certificate.js", "uriOf", string(encodePEM("CERTIFICATE", der))).String(); got != "" && !strings.Contains(string(der), got) {
			t.Errorf("%q is found in %x", got, der)
		}
	})
}

// TestMeshTLSByServerName checks that a caller by mesh TLS is a peer, and that no ingress
// rule for server names admits it.
func TestMeshTLSByServerName(t *testing.T) {
	e := newEngine(t)
	for name, tt := range map[string]struct {
		hosts []string
		skip  bool
		want  bool
	}{
		"no hosts": {nil, false, true}, "no hosts, without certificates": {nil, true, false},
		"its name": {[]string{store.DNSName()}, false, false}, "all names": {[]string{"*.sa.cluster.local"}, false, false}, "others": {[]string{"a.example.com"}, false, false},
	} {
		rule := mesh.Ingress{Origin: drivertest.Origin("IngressBackend", "ingress"), TLS: true, SNIHosts: tt.hosts, SkipClientCert: tt.skip, Ranges: prefixes("10.0.0.0/8"), Requests: anyRequest}
		in := mesh.Seal(&mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{{Port: 80, Protocol: mesh.HTTP, Ingress: []mesh.Ingress{rule}}}})
		arrival := map[string]any{"security": "mesh TLS", "serverName": store.DNSName(), "source": "10.1.2.3", "peer": buyer.String(), "request": map[string]any{"path": "/", "query": "", "headers": map[string]any{}}}
		port := e.value(inbound(newCompiler(), in)).ToObject(e.vm).Get("ports").ToObject(e.vm).Get("80")
		if got := !goja.IsNull(e.call("./authorization.js", "decide", map[string]any{}, port, arrival)); got != tt.want {
			t.Errorf("%s: the caller is admitted: %t", name, got)
		}
	}
}

// TestCleanHeaders checks that headers by which a client could claim an identity are
// removed in every spelling, and that one spelling is left of those that rules compare.
func TestCleanHeaders(t *testing.T) {
	e := newEngine(t)
	var claims []string
	e.must(e.vm.ExportTo(e.module("./request.js").Get("claims"), &claims))
	if !slices.Equal(claims, mesh.IdentityHeaders()) {
		t.Errorf("the scripts remove %q, want %q", claims, mesh.IdentityHeaders())
	}
	var framing []string
	e.must(e.vm.ExportTo(e.module("./request.js").Get("framing"), &framing))
	if !slices.Equal(framing, mesh.FramingHeaders()) {
		t.Errorf("the scripts keep one spelling of %q, want %q", framing, mesh.FramingHeaders())
	}
	headers := map[string]any{"content_length": "forged", "transfer_encoding": "forged", "x_outrigger_caller": "forged", "x-outrigger.caller": "forged", "xoutrigger-caller": "kept", "host": "a", "x-tenant": "kept", "x_tenant": "forged", "x.tenant": "forged", "x_other": "kept", "xtenant": "kept", "x_envoy_internal": "forged"}
	for _, name := range claims {
		for _, separator := range []string{"-", "_", "."} {
			headers[strings.ReplaceAll(name, "-", separator)] = "forged"
			headers[strings.Replace(name, "-", separator, 1)] = "forged"
		}
	}
	for _, protocol := range []string{"HTTP/1.1", ""} {
		head := e.value(map[string]any{"method": "GET", "path": "/", "protocol": protocol, "headers": headers}).ToObject(e.vm)
		if !e.call("./request.js", "clean", head, true).ToBoolean() {
			t.Fatal("the request is refused")
		}
		e.call("./request.js", "dropSpellings", head, []string{"x-tenant"})
		content, err := json.Marshal(head.Get("headers"))
		e.must(err)
		if text := string(content); strings.Contains(text, "forged") || strings.Count(text, "kept") != 4 {
			t.Errorf("the remaining headers are %s", text)
		}
	}
}

// TestCapitalLetters checks that header names with capital letters are refused: HTTP/2
// forbids them, and they would bypass all comparisons.
func TestCapitalLetters(t *testing.T) {
	e := newEngine(t)
	for _, name := range []string{"X-Forwarded-Client-Cert", "X-Tenant", "Transfer-Encoding", "x-tenanT"} {
		head := e.value(map[string]any{"method": "GET", "path": "/", "headers": map[string]any{"host": "a", name: "forged"}}).ToObject(e.vm)
		if e.call("./request.js", "clean", head, true).ToBoolean() {
			t.Errorf("a request with the header %s is accepted", name)
		}
	}
}

// TestManyNames checks that a request is judged alike however often its header and its host were
// seen before, and how many others meanwhile.
func TestManyNames(t *testing.T) {
	e := newEngine(t)
	long := strings.Repeat("x", 1000)
	for range 2 {
		for host, want := range map[string]bool{"a.example": true, "a b": false, long: true, long + "/": false} {
			for name, valid := range map[string]bool{"x-a": true, "x-A": false, "x a": false, long: true, long + ":": false} {
				for range 2 {
					head := e.value(map[string]any{"method": "GET", "path": "/", "headers": map[string]any{"host": host, name: "b"}}).ToObject(e.vm)
					if got := e.call("./request.js", "clean", head, true).ToBoolean(); got != (want && valid) {
						t.Errorf("a request with the host %.20q of %d bytes and the header %.20q of %d bytes is accepted: %t", host, len(host), name, len(name), got)
					}
				}
			}
		}
		for i := range 5000 {
			head := e.value(map[string]any{"method": "GET", "path": "/", "headers": map[string]any{"host": fmt.Sprint("host", i), fmt.Sprint("name", i): "b"}}).ToObject(e.vm)
			if !e.call("./request.js", "clean", head, true).ToBoolean() {
				t.Fatalf("the request %d is refused", i)
			}
		}
	}
}

// TestSeveralLines checks conditions on several lines of a header, which Pipy keeps only
// for cookies. With HTTP/2 these are one cookie.
func TestSeveralLines(t *testing.T) {
	e := newEngine(t)
	for protocol, want := range map[string]bool{"HTTP/1.1": false, "": true} {
		head := e.value(map[string]any{"method": "GET", "path": "/", "protocol": protocol, "headers": map[string]any{"host": "a", "cookie": []string{"a=1", "b=2"}}}).ToObject(e.vm)
		if !e.call("./request.js", "clean", head, true).ToBoolean() {
			t.Fatal("the request is refused")
		}
		asked := e.call("./request.js", "requestOf", head)
		for _, m := range []mesh.StringMatch{{Exact: "a=1; b=2"}, {Regex: "a=.*"}, {Prefix: "a"}} {
			condition := newCompiler().request(mesh.HTTPMatch{Headers: []mesh.KeyMatch{{Name: "cookie", StringMatch: m}}})
			if got := e.call("./match.js", "permits", condition, asked).ToBoolean(); got != want {
				t.Errorf("%+v permits cookies by %q: %t", m, protocol, got)
			}
		}
		present := newCompiler().request(mesh.HTTPMatch{Headers: []mesh.KeyMatch{{Name: "cookie", StringMatch: mesh.StringMatch{Present: true}}}})
		if !e.call("./match.js", "permits", present, asked).ToBoolean() {
			t.Errorf("with %q the cookies are missing", protocol)
		}
	}
}
