package behaviour

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// thiefIdentity is the identity of users/thief.
var thiefIdentity = mesh.Identity{TrustDomain: "cluster.local", Namespace: "users", ServiceAccount: "thief"}

// gates are paths that may be requested only with a header, or only below a prefix.
var gates = routeGroup("shop/gates", `
  - {name: exact, pathRegex: /gate/exact, methods: [GET], headers: [{x-tenant: "blue"}]}
  - {name: regex, pathRegex: /gate/regex, methods: [GET], headers: [{x-tenant: "bl(ue|ack)"}]}
  - {name: from, pathRegex: /gate/from, methods: [GET], headers: [{x-forwarded-for: "blue"}]}
  - {name: cookie, pathRegex: /gate/cookie, methods: [GET], headers: [{cookie: "tenant=blue"}]}
  - {name: host, pathRegex: /gate/host, methods: [GET], headers: [{host: "cart-v1.shop"}]}
  - {name: public, pathRegex: "/public/.*", methods: [GET]}
`) + trafficTarget("shop/gates", "cart-v1", "{kind: HTTPRouteGroup, name: gates}", "users/web")

// directly sends a request to a pod's port 8080 from outside the mesh, bypassing any
// client proxy: over TLS if config is set, and by HTTP/2 or HTTP/1.1.
func (w *testMesh) directly(t *testing.T, pod string, config *tls.Config, version int, target string, header http.Header) (reply, error) {
	t.Helper()
	client := w.directClient(t, pod, config, version)
	defer client.CloseIdleConnections()
	return getDirectly(client, target, header)
}

// directClient is a client for getDirectly, which keeps its connections.
func (w *testMesh) directClient(t *testing.T, pod string, config *tls.Config, version int) *http.Client {
	t.Helper()
	address := w.address(t, pod, "8080")
	protocols := new(http.Protocols)
	protocols.SetHTTP1(version == 1)
	if config != nil {
		protocols.SetHTTP2(version == 2)
	} else {
		protocols.SetUnencryptedHTTP2(version == 2)
	}
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return w.pod(t, "plain/outsider").Dial(ctx, network, address)
		},
		TLSClientConfig: config, Protocols: protocols,
	}}
}

// getDirectly sends a request, over TLS if the client has a configuration of it.
func getDirectly(client *http.Client, target string, header http.Header) (reply, error) {
	scheme := "http"
	if client.Transport.(*http.Transport).TLSClientConfig != nil {
		scheme = "https"
	}
	path, query, _ := strings.Cut(target, "?")
	response, err := client.Do(&http.Request{
		Method: http.MethodGet, Host: "cart-v1.shop", Header: header,
		URL: &url.URL{Scheme: scheme, Host: "cart-v1.shop", Opaque: path, RawQuery: query},
	})
	if err != nil {
		return reply{}, err
	}
	return readReply(response)
}

// meshTLSOf is mesh TLS of a client of cart-v1 with the certificates.
func (w *testMesh) meshTLSOf(t *testing.T, certificates ...tls.Certificate) *tls.Config {
	t.Helper()
	return &tls.Config{RootCAs: w.roots(t), ServerName: "cart-v1.shop.sa.cluster.local", Certificates: certificates}
}

// testRepeatedHeaders sends headers that rules compare in one and in several lines.
func testRepeatedHeaders(t *testing.T, w *testMesh) {
	w.apply(t, "gates.yaml", gates)
	config := w.meshTLSOf(t, w.certificate(t, webIdentity))
	good := map[string]string{"X-Tenant": `blue|black`, "X-Forwarded-For": "blue", "Cookie": "tenant=blue"}
	ask := func(version int, path, name string, values ...string) (reply, error) {
		return w.directly(t, "shop/cart-v1", config.Clone(), version, path, http.Header{name: values})
	}
	for version := 1; version <= 2; version++ {
		for path, one := range map[string][2]string{
			"/gate/exact": {"X-Tenant", "blue"}, "/gate/regex": {"X-Tenant", "black"}, "/gate/from": {"X-Forwarded-For", "blue"}, "/gate/cookie": {"Cookie", "tenant=blue"}, "/gate/host": {"X-A", "b"},
		} {
			w.repeat(t, fmt.Sprintf("%s with one %s by HTTP/%d", path, one[0], version), ok, func() (reply, error) {
				return ask(version, path, one[0], one[1])
			})
		}
		for _, tt := range []struct {
			path, name string
			values     []string
		}{
			{"/gate/exact", "X-Tenant", []string{"red", "blue"}},
			{"/gate/exact", "X-Tenant", []string{"blue", "red"}},
			{"/gate/exact", "X-Tenant", []string{"", "blue"}},
			{"/gate/exact", "X-Tenant", []string{"red,blue"}},
			{"/gate/exact", "X-Tenant", []string{"blue,red"}},
			{"/gate/regex", "X-Tenant", []string{"red", "black"}},
			{"/gate/regex", "X-Tenant", []string{"black", "red"}},
			{"/gate/regex", "X-Tenant", []string{"red", "blue", "black"}},
			{"/gate/regex", "X-Tenant", []string{"red, black"}},
			{"/gate/from", "X-Forwarded-For", []string{"red", "blue"}},
			{"/gate/from", "X-Forwarded-For", []string{"blue", "red"}},
			{"/gate/from", "X-Forwarded-For", []string{"red,blue"}},
			{"/gate/cookie", "Cookie", []string{"tenant=red", "tenant=blue"}},
			{"/gate/cookie", "Cookie", []string{"tenant=blue", "tenant=red"}},
			{"/gate/cookie", "Cookie", []string{"tenant=red; tenant=blue"}},
		} {
			r, err := ask(version, tt.path, tt.name, tt.values...)
			if err != nil || r.Status != http.StatusOK {
				continue
			}
			lines := r.answer.Header[tt.name]
			if len(lines) != 1 || !regexp.MustCompile(`^(?:`+good[tt.name]+`)$`).MatchString(lines[0]) {
				t.Errorf("by HTTP/%d %s allows %q, and the application gets %q", version, tt.path, tt.values, lines)
			}
		}
		r, err := w.directly(t, "shop/cart-v1", config.Clone(), version, "/gate/exact", http.Header{"X-Tenant": {"blue"}, "X_tenant": {"red"}, "X_other": {"kept"}})
		if err != nil || r.Status != http.StatusOK {
			t.Errorf("with another spelling beside it the answer is %d, %v", r.Status, err)
		}
		if r.answer.Header["X_tenant"] != nil || r.answer.Header["X_other"] == nil {
			t.Errorf("by HTTP/%d the application gets %v", version, r.answer.Header)
		}
	}
}

// testIdentityHeaders claims an identity on every path into the mesh.
func testIdentityHeaders(t *testing.T, w *testMesh) {
	claims := http.Header{}
	for _, name := range mesh.IdentityHeaders() {
		for _, separator := range []string{"-", "_"} {
			claims.Set(strings.ReplaceAll(name, "-", separator), "forged")
			claims.Set(strings.Replace(name, "-", separator, 1), "forged")
		}
	}
	for _, name := range []string{"x-forwarded-client_cert", "x-outrigger-caller", "x_outrigger_caller", "content_length", "transfer_encoding", "transfer.encoding"} {
		claims.Set(name, "forged")
	}
	check := func(way string, config *tls.Config) {
		t.Helper()
		for version := 1; version <= 2; version++ {
			if way != "mesh TLS" && version == 2 && config != nil {
				// HTTP/2 support of an outside client does not imply that of the application.
				continue
			}
			got := w.repeat(t, fmt.Sprintf("a request by %s and HTTP/%d", way, version), ok, func() (reply, error) {
				return w.directly(t, "shop/cart-v1", config.Clone(), version, "/cart", claims.Clone())
			})
			for name, values := range got.answer.Header {
				if strings.Contains(strings.Join(values, ","), "forged") {
					t.Errorf("by %s and HTTP/%d the application gets %s: %s", way, version, name, values)
				}
			}
		}
	}
	check("mesh TLS", w.meshTLSOf(t, w.certificate(t, webIdentity)))
	outsider := w.pod(t, "plain/outsider").Addresses()[0].String()
	if w.has(w.Server, mesh.FeatureIngress) {
		t.Run("ingress in plaintext", func(t *testing.T) {
			w.apply(t, "ingress.yaml", ingress("cart-v1", "http", "", "{kind: IPRange, name: "+outsider+"/32}"))
			check("ingress in plaintext", nil)
		})
	}
	if w.has(w.Server, mesh.FeatureIngressTLS) {
		t.Run("ingress by TLS", func(t *testing.T) {
			w.apply(t, "ingress.yaml", ingress("cart-v1", "https", "    tls: {skipClientCertValidation: true, sniHosts: [in.example.com]}\n", "{kind: IPRange, name: "+outsider+"/32}"))
			check("ingress by TLS", ingressTLS())
		})
	}
	if w.has(w.Server, mesh.FeaturePermissiveTLS) {
		t.Run("permissive", func(t *testing.T) {
			w.configure(t, "inboundTLSMode: Permissive", "")
			w.set(t, "mesh.yaml", strings.Replace(meshConfig("inboundTLSMode: Permissive", ""), "PolicyMode: false", "PolicyMode: true", 1))
			check("permissive plaintext", nil)
		})
		// Later rows need the rules.
		w.eventually(t, func() error {
			for range 5 {
				if r, err := w.directly(t, "shop/cart-v1", w.meshTLSOf(t, w.certificate(t, thiefIdentity)), 1, "/cart", nil); err != nil || r.Status != http.StatusForbidden {
					return fmt.Errorf("after it the thief gets %d, %v, want 403", r.Status, err)
				}
			}
			return nil
		})
	}
}

// testCallerNames uses certificates of the mesh's own root with several names.
func testCallerNames(t *testing.T, w *testMesh) {
	thief := thiefIdentity
	ask := func(cn string, dns []string, uris ...string) (reply, error) {
		return w.directly(t, "shop/cart-v1", w.meshTLSOf(t, w.named(t, cn, dns, uris...)), 1, "/cart", nil)
	}
	web := webIdentity
	w.repeat(t, "web with its own names", ok, func() (reply, error) {
		return ask(web.CommonName(), []string{web.DNSName()}, web.String())
	})
	for name, call := range map[string]func() (reply, error){
		"web's common name":         func() (reply, error) { return ask(web.CommonName(), []string{thief.DNSName()}, thief.String()) },
		"web's DNS name":            func() (reply, error) { return ask(thief.CommonName(), []string{web.DNSName()}, thief.String()) },
		"web's common and DNS name": func() (reply, error) { return ask(web.CommonName(), []string{web.DNSName()}, thief.String()) },
		"both SPIFFE IDs": func() (reply, error) {
			return ask(web.CommonName(), []string{web.DNSName()}, thief.String(), web.String())
		},
		"both SPIFFE IDs, web's first": func() (reply, error) {
			return ask(web.CommonName(), []string{web.DNSName()}, web.String(), thief.String())
		},
		"web's names and no SPIFFE ID":   func() (reply, error) { return ask(web.CommonName(), []string{web.DNSName()}) },
		"web's SPIFFE ID as a DNS name":  func() (reply, error) { return ask(web.CommonName(), []string{web.String()}) },
		"web's SPIFFE ID as common name": func() (reply, error) { return ask(web.String(), nil) },
	} {
		if r, err := call(); err == nil && r.Status != http.StatusForbidden {
			t.Errorf("a certificate with %s gets %d", name, r.Status)
		}
	}
	// A name of an account is no pattern.
	account := func(name string) func() (reply, error) {
		id := web
		id.ServiceAccount = name
		return func() (reply, error) { return ask(id.CommonName(), []string{id.DNSName()}, id.String()) }
	}
	w.apply(t, "dotted.yaml", trafficTarget("shop/dotted", "cart-v1", "{kind: HTTPRouteGroup, name: cart}", "users/w.b"))
	w.repeat(t, "w.b", ok, account("w.b"))
	for _, name := range []string{"wxb", "w-b", "w", "b", "w.b.w.b", "a.w.b"} {
		if r, err := account(name)(); err == nil && r.Status != http.StatusForbidden {
			t.Errorf("the account %s gets %d where w.b is allowed", name, r.Status)
		}
	}
}

// named issues a certificate of the mesh's root with the names.
func (w *testMesh) named(t *testing.T, cn string, dns []string, uris ...string) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: cn}, DNSNames: dns, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, text := range uris {
		uri, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = append(template.URIs, uri)
	}
	return w.root(t).Sign(template, time.Hour)
}

// testSpellings requests paths that some applications read differently.
func testSpellings(t *testing.T, w *testMesh) {
	w.apply(t, "gates.yaml", gates)
	config := w.meshTLSOf(t, w.certificate(t, webIdentity))
	ask := func(target string) (reply, error) {
		return w.directly(t, "shop/cart-v1", config.Clone(), 1, target, nil)
	}
	for _, target := range []string{"/public/a", "/public/a%20b;v=1", "/public/%C3%A9?x=%2f;"} {
		w.repeat(t, target, ok, func() (reply, error) { return ask(target) })
	}
	ambiguous := regexp.MustCompile(mesh.AmbiguousPath)
	for _, path := range []string{
		"../hidden", "./../hidden", "%2e%2e/hidden", "%2E./hidden", "..%2fhidden", "..%2Fhidden", "..%5chidden", "..\\hidden", "..%255chidden", "%252e%252e%252fhidden",
		"..;/hidden", ".;/hidden", "..;a=b/hidden", "..%3b/hidden", "..%3B/hidden", "%3bhidden", "a%3fb", "a%23b", "a%25b", "a%00b", "a%0d%0ab", "a%7fb",
		"%c0%ae%c0%ae/hidden", "%C0%AFhidden", "%e0%80%afhidden", "%f0%80%80%afhidden", "%f8%80%80%80%afhidden", "%zz", "%", "%2", "%u002fhidden", "//hidden", "a//b",
	} {
		r, err := ask("/public/" + path)
		if err != nil || r.Status != http.StatusOK {
			continue
		}
		if got, _, _ := strings.Cut(r.Target, "?"); !strings.HasPrefix(got, "/public/") || ambiguous.MatchString(got) {
			t.Errorf("/public/%s is allowed, and the application gets %s", path, got)
		}
	}
	if n := w.apps["shop/cart-v1"].count("/hidden"); n != 0 {
		t.Errorf("the application got %d requests that nobody may send", n)
	}
}

// testRepeatedRoutes sends headers in several lines through the client's proxy, which
// chooses the route.
func testRepeatedRoutes(t *testing.T, w *testMesh) {
	w.apply(t, "testers.yaml", testers)
	tester := request{url: cart, header: http.Header{"X-Tester": {"yes"}}}
	w.ask(t, "users/web", tester, isFrom("cart-v2"))
	for _, values := range [][]string{{"yes", "no"}, {"no", "yes"}, {"yes,no"}, {"no,yes"}, {"", "yes"}} {
		// Other requests reach either version.
		asTester := true
		var lines []string
		for range 24 {
			r, err := w.send(w.pod(t, "users/web"), request{url: cart, header: http.Header{"X-Tester": values}})
			if err != nil || r.Status != http.StatusOK {
				t.Fatalf("with %q the answer is %d, %v", values, r.Status, err)
			}
			asTester = asTester && r.Pod == "cart-v2"
			lines = r.answer.Header["X-Tester"]
		}
		if asTester && (len(lines) != 1 || lines[0] != "yes") {
			t.Errorf("with %q the request is sent as a tester's, and the server gets %q", values, lines)
		}
	}
}
