package haproxy

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// named returns a certificate with the names.
func (a *authority) named(cn string, dns []string, uris ...string) tls.Certificate {
	a.T.Helper()
	template := &x509.Certificate{
		KeyUsage: x509.KeyUsageDigitalSignature, Subject: pkix.Name{CommonName: cn}, DNSNames: dns,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, text := range uris {
		uri, err := url.Parse(text)
		if err != nil {
			a.T.Fatal(err)
		}
		template.URIs = append(template.URIs, uri)
	}
	return a.Sign(template, time.Hour)
}

// TestCallerNames checks that the caller is the only SPIFFE ID of its certificate, whatever
// other names it has.
func TestCallerNames(t *testing.T) {
	a := newApp(t)
	r, ca := runInbound(t, strict(a))
	long := mesh.Identity{TrustDomain: "cluster.local", Namespace: buyer.Namespace, ServiceAccount: strings.Repeat("long.", 40) + "name"}
	for name, tt := range map[string]struct {
		certificate tls.Certificate
		want        int
	}{
		"its own":                        {ca.named(buyer.CommonName(), []string{buyer.DNSName()}, buyer.String()), 200},
		"no common name":                 {ca.named("", nil, buyer.String()), 200},
		"another's common name":          {ca.named(buyer.CommonName(), []string{buyer.DNSName()}, ops.String()), 403},
		"two common names":               {ca.issue(ops, buyer.CommonName()), 403},
		"two SPIFFE IDs":                 {ca.named(buyer.CommonName(), nil, ops.String(), buyer.String()), 403},
		"two SPIFFE IDs, the other way":  {ca.named(buyer.CommonName(), nil, buyer.String(), ops.String()), 403},
		"a URI that is none, too":        {ca.named(buyer.CommonName(), nil, buyer.String(), "https://example.com/a"), 403},
		"no SPIFFE ID":                   {ca.named(buyer.CommonName(), []string{buyer.DNSName()}), 403},
		"a SPIFFE ID as a DNS name":      {ca.named(buyer.CommonName(), []string{buyer.String()}), 403},
		"a SPIFFE ID as the common name": {ca.named(buyer.String(), nil), 403},
		"a SPIFFE ID that goes on":       {ca.named(buyer.CommonName(), nil, buyer.String()+"/more"), 403},
		"a SPIFFE ID in another":         {ca.named(buyer.CommonName(), nil, "spiffe://cluster.local/ns/a/"+buyer.String()), 403},
		"a long name":                    {ca.issue(long), 403},
	} {
		t.Run(name, func(t *testing.T) {
			config := ca.as(buyer, store)
			config.Certificates = []tls.Certificate{tt.certificate}
			for _, alpn := range []string{"http/1.1", "h2"} {
				config.NextProtos = []string{alpn}
				response, _, err := ask(client(r.inbound, local(a.http), config.Clone(), alpn == "h2"), "/books/1")
				if err != nil || response.StatusCode != tt.want {
					t.Errorf("by %s the answer is %v, %v, want %d", alpn, response, err, tt.want)
				}
			}
		})
	}
}

// TestIdentityHeaders checks that the application gets no header by which a client could
// claim an identity, and one spelling of those that rules compare.
func TestIdentityHeaders(t *testing.T) {
	a := newApp(t)
	r, ca := runInbound(t, strict(a))
	claims := []string{"X-Tenant", "a", "X_Tenant", "forged", "X.tenant", "forged", "X-Outrigger-Caller", "forged", "X_Outrigger_Caller", "forged", "Content_Length", "forged", "Transfer_Encoding", "forged", "X_Other", "kept"}
	for _, name := range mesh.IdentityHeaders() {
		for _, separator := range []string{"-", "_", "."} {
			claims = append(claims, strings.ReplaceAll(name, "-", separator), "forged", strings.Replace(name, "-", separator, 1), "forged")
		}
	}
	for _, alpn := range []string{"http/1.1", "h2"} {
		response, got, err := ask(client(r.inbound, local(a.http), ca.as(buyer, store, alpn), alpn == "h2"), "/public/a", claims...)
		if err != nil || response.StatusCode != 200 {
			t.Fatalf("the answer is %v, %v", response, err)
		}
		for name, values := range got.Header {
			if strings.Contains(strings.Join(values, ","), "forged") {
				t.Errorf("by %s the application got %s: %s", alpn, name, values)
			}
		}
		if cert := got.Header.Get("X-Forwarded-Client-Cert"); cert != "URI="+buyer.String() || got.Header["X_other"] == nil {
			t.Errorf("by %s the application got %v", alpn, got.Header)
		}
	}
}

// TestSpellings checks that requests that applications could interpret differently can't
// bypass a rule.
func TestSpellings(t *testing.T) {
	a := newApp(t)
	r, ca := runInbound(t, strict(a))
	for target, want := range map[string]int{
		"/public/a": 200, "/public/a%20b": 200, "/public/a;v=1": 200, "/public/%C3%A9": 200,
		"/public/%3bv": 403, "/public/.;/a": 403, "/public/..;/a": 403, "/public/%252e": 403, "/public/%c0%af": 403, "/public/%e0%80%af": 403,
		"/public/%zz": 403, "/public/%2": 403, "/public/%0a": 403, "/public/%3f": 403, "/public/a%2fb": 403, "/public/a%5Cb": 403,
		"/admin?token=1%202": 200, "/admin?t%6fken=2&token=1%202": 403, "/admin?token=1%202&t%6Fken=2": 403, "/admin?token=1%202&%zz=1": 403,
	} {
		response, _, err := ask(client(r.inbound, local(a.http), ca.as(buyer, store), false), target, "X-Tenant", "a")
		if err != nil || response.StatusCode != want {
			t.Errorf("%s gives %v, %v, want %d", target, response, err, want)
		}
	}
}

// TestMethodsInAccessLogs checks that access logs have the method of each request, also of
// those for which HAProxy has no constant.
func TestMethodsInAccessLogs(t *testing.T) {
	a := newApp(t)
	r, ca := runInbound(t, strict(a))
	for _, method := range []string{"GET", "PATCH", "PROPFIND"} {
		c := client(r.inbound, local(a.http), ca.as(buyer, store), false)
		if _, _, err := keepAsking(c, method, "/public/logged"); err != nil {
			t.Fatal(err)
		}
		r.awaitLog(`"method":"` + method + `"`)
	}
}

// TestNumberSigns sends targets with a number sign, which some applications take for the end of
// the path. HAProxy itself refuses them, unless it is as lenient as its older versions.
func TestNumberSigns(t *testing.T) {
	a := newApp(t)
	ca, dir, f := newAuthority(t), t.TempDir(), newFixture(store)
	f.inbound.Ports = []mesh.InboundPort{{Port: a.http, Protocol: mesh.HTTP, Access: anyone}}
	ca.writeTo(dir, store)
	r := start(t, dir, f.view(), func(r *running) { r.directives = "  option accept-invalid-http-request" }).awaitReady()
	for target, want := range map[string]int{"/a": 200, "/a#b": 400, "/a#/../b": 400, "/#": 400, "/a?b#c": 400} {
		conn, err := dial(r.inbound, local(a.http))
		if err != nil {
			t.Fatal(err)
		}
		secured := tls.Client(conn, ca.as(buyer, store, "http/1.1"))
		fmt.Fprintf(secured, "GET %s HTTP/1.1\r\nHost: books.example.com\r\nConnection: close\r\n\r\n", target)
		response, err := http.ReadResponse(bufio.NewReader(secured), nil)
		if err != nil || response.StatusCode != want {
			t.Errorf("%s gets %v, %v, want %d", target, response, err, want)
		}
		conn.Close()
	}
}
