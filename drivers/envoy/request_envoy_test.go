package envoy

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// judged is a workload whose rules compare headers, parameters and paths.
func judged(p *app) inboundCase {
	header := func(path, name string, m mesh.StringMatch) mesh.HTTPMatch {
		return mesh.HTTPMatch{Path: mesh.StringMatch{Exact: path}, Headers: []mesh.KeyMatch{{Name: name, StringMatch: m}}}
	}
	return inboundCase{inbound: mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{{Port: p.http, Protocol: mesh.HTTP, Access: rules(
		rule("bookstore/buy", []mesh.HTTPMatch{
			header("/exact", "x-tenant", mesh.StringMatch{Exact: "blue"}),
			header("/regex", "x-tenant", mesh.StringMatch{Regex: "bl.*"}),
			header("/there", "x-tenant", mesh.StringMatch{Present: true}),
			header("/from", "x-forwarded-for", mesh.StringMatch{Exact: "blue"}),
			header("/cookie", "cookie", mesh.StringMatch{Exact: "a=b"}),
			header("/host", "host", mesh.StringMatch{Exact: "books.example.com"}),
			{Path: mesh.StringMatch{Exact: "/query"}, Query: []mesh.KeyMatch{{Name: "token", StringMatch: mesh.StringMatch{Exact: "1"}}}},
			{Path: mesh.StringMatch{Exact: "/query"}, Query: []mesh.KeyMatch{{Name: "word", StringMatch: mesh.StringMatch{Exact: "a b c&"}}}},
			{Path: mesh.StringMatch{Prefix: "/public"}},
			{Path: mesh.StringMatch{Exact: "/open"}},
		}, buyer),
	)}}}}
}

// TestRealRepeatedHeaders repeats a header: the rules compare it as the application
// gets it, which is one line.
func TestRealRepeatedHeaders(t *testing.T) {
	e := runInbound(t, judged)
	for name, tt := range map[string]struct {
		path, header string
		values       []string
		want         int
	}{
		"exact":                       {"/exact", "X-Tenant", []string{"blue"}, 200},
		"exact, last":                 {"/exact", "X-Tenant", []string{"red", "blue"}, 403},
		"exact, first":                {"/exact", "X-Tenant", []string{"blue", "red"}, 403},
		"exact, after an empty one":   {"/exact", "X-Tenant", []string{"", "blue"}, 403},
		"exact, joined":               {"/exact", "X-Tenant", []string{"red,blue"}, 403},
		"regex":                       {"/regex", "X-Tenant", []string{"blue"}, 200},
		"regex, last":                 {"/regex", "X-Tenant", []string{"red", "blue"}, 403},
		"regex that means a list":     {"/regex", "X-Tenant", []string{"blue", "red"}, 200},
		"presence":                    {"/there", "X-Tenant", []string{"red", "blue"}, 200},
		"of Envoy's own":              {"/from", "X-Forwarded-For", []string{"blue"}, 200},
		"of Envoy's own, last":        {"/from", "X-Forwarded-For", []string{"red", "blue"}, 403},
		"of Envoy's own, first":       {"/from", "X-Forwarded-For", []string{"blue", "red"}, 403},
		"of Envoy's own, joined":      {"/from", "X-Forwarded-For", []string{"red,blue"}, 403},
		"cookie":                      {"/cookie", "Cookie", []string{"a=b"}, 200},
		"cookie, last":                {"/cookie", "Cookie", []string{"z=1", "a=b"}, 403},
		"no header":                   {"/exact", "X-Other", []string{"blue"}, 403},
		"one in another spelling":     {"/exact", "X_Tenant", []string{"blue"}, 403},
		"that another rule asks for":  {"/open", "X-Tenant", []string{"red", "blue"}, 200},
		"the host, which there is of": {"/host", "X-A", []string{"b"}, 200},
	} {
		for _, alpn := range []string{"http/1.1", "h2"} {
			t.Run(name+" "+alpn, func(t *testing.T) {
				var header []string
				for _, value := range tt.values {
					header = append(header, tt.header, value)
				}
				response, got, err := e.ask(e.http, e.as(buyer, alpn), tt.path, header...)
				if err != nil || response.StatusCode != tt.want {
					t.Fatalf("the answer is %v, %v, want %d", response, err, tt.want)
				}
				if lines := got.Header[tt.header]; tt.want == http.StatusOK && len(lines) != 1 && tt.path != "/there" {
					t.Errorf("the application got %q", lines)
				}
			})
		}
	}
	t.Run("another spelling beside", func(t *testing.T) {
		response, got, err := e.ask(e.http, e.as(buyer), "/exact", "X-Tenant", "blue", "X_Tenant", "red", "x.tenant", "red", "X_Other", "a")
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("the answer is %v, %v", response, err)
		}
		for name, values := range got.Header {
			if strings.Contains(values[0], "red") {
				t.Errorf("the application got %s: %s", name, values)
			}
		}
		if got.Header["X_other"] == nil {
			t.Errorf("an unrelated header is missing in %v", got.Header)
		}
	})
}

// TestRealIdentityHeaders checks that the application gets no header in which a client
// claims an identity, in any spelling.
func TestRealIdentityHeaders(t *testing.T) {
	e := runInbound(t, judged)
	for _, alpn := range []string{"http/1.1", "h2"} {
		var claims []string
		for _, name := range mesh.IdentityHeaders() {
			for _, separator := range []string{"-", "_", "."} {
				claims = append(claims, strings.ReplaceAll(name, "-", separator), "forged", strings.Replace(name, "-", separator, 1), "forged")
			}
		}
		response, got, err := e.ask(e.http, e.as(buyer, alpn), "/open", claims...)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("the answer is %v, %v", response, err)
		}
		for name, values := range got.Header {
			if strings.Contains(strings.Join(values, ","), "forged") {
				t.Errorf("by %s the application got %s: %s", alpn, name, values)
			}
		}
		if cert := got.Header.Get("X-Forwarded-Client-Cert"); !strings.HasSuffix(cert, "URI="+buyer.String()) {
			t.Errorf("by %s the application gets the certificate header %q", alpn, cert)
		}
	}
}

// TestRealCallerNames checks that the caller is the only SPIFFE ID of its certificate.
func TestRealCallerNames(t *testing.T) {
	e := runInbound(t, judged)
	for name, tt := range map[string]struct {
		cn   string
		dns  []string
		uris []string
		want int
	}{
		"its own":                        {buyer.CommonName(), []string{buyer.DNSName()}, []string{buyer.String()}, 200},
		"another's common name":          {buyer.CommonName(), []string{ops.DNSName()}, []string{ops.String()}, 403},
		"another's DNS name":             {ops.CommonName(), []string{buyer.DNSName()}, []string{ops.String()}, 403},
		"two SPIFFE IDs":                 {buyer.CommonName(), []string{buyer.DNSName()}, []string{ops.String(), buyer.String()}, 403},
		"two SPIFFE IDs, the other way":  {buyer.CommonName(), []string{buyer.DNSName()}, []string{buyer.String(), ops.String()}, 403},
		"a URI that is none, too":        {buyer.CommonName(), []string{buyer.DNSName()}, []string{buyer.String(), "https://example.com/a"}, 403},
		"no SPIFFE ID":                   {buyer.CommonName(), []string{buyer.DNSName()}, nil, 403},
		"a SPIFFE ID as a DNS name":      {buyer.CommonName(), []string{buyer.String()}, nil, 403},
		"a SPIFFE ID as the common name": {buyer.String(), nil, nil, 403},
	} {
		t.Run(name, func(t *testing.T) {
			config := e.as(buyer)
			config.Certificates = []tls.Certificate{e.ca.named(tt.cn, tt.dns, tt.uris)}
			response, _, err := e.ask(e.http, config, "/open")
			got := 403
			if err == nil {
				got = response.StatusCode
			}
			if got != tt.want {
				t.Errorf("the answer is %d, %v, want %d", got, err, tt.want)
			}
		})
	}
}

// named issues a certificate with the names.
func (a *authority) named(cn string, dns, uris []string) tls.Certificate {
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

// TestRealSpellings checks that rules reject what applications could read differently
// and could use to bypass them.
func TestRealSpellings(t *testing.T) {
	e := runInbound(t, judged)
	for target, want := range map[string]int{
		"/query?token=1":           200,
		"/query?a=b&token=1&c":     200,
		"/query?token=1&a=%26%3d":  200,
		"/query?token=2":           403,
		"/query?token=1&token=2":   403,
		"/query?t%6fken=2&token=1": 403,
		"/query?token=1&t%6Fken=2": 403,
		"/query?t%6fken=1":         403,
		"/query?token=1&%74oken=2": 403,
		"/query?token=1;token=2":   403,
		"/query?word=a%20%62+c%26": 200,
		"/query?word=a+b+c&":       403,
		"/query?a=1;token=1":       403,
		"/query?token=%31":         200,
		"/query?+token=1":          403,
		"/query?token=1&%zz=2":     403,
		"/public/a":                200,
		"/public/a%20b":            200,
		"/public/a;v=1":            200,
		"/public/%C3%A9":           200,
		"/public/%3Bv":             403,
		"/public/%3bv":             403,
		"/public/..;/a":            403,
		"/public/.;/a":             200,
		"/public/..%3b/a":          403,
		"/public/%252e%252e/a":     403,
		"/public/%25":              403,
		"/public/%2fa":             403,
		"/public/%5ca":             403,
		"/public/%c0%af..":         403,
		"/public/%C0%AE%C0%AE/a":   403,
		"/public/%e0%80%af":        403,
		"/public/%f0%80%80%af":     403,
		"/public/%zz":              403,
		"/public/%2":               403,
		"/public/%":                403,
		"/public/%0a":              403,
		"/public/%7f":              403,
		"/public/%u002fa":          403,
		"/public/%00":              400,
		"/public/../open":          200,
		"/public/..%2Fopen":        403,
		"/public/a%2e%2e":          200,
		"/public//a":               200,
	} {
		t.Run(target, func(t *testing.T) {
			response, _, err := e.ask(e.http, e.as(buyer), target)
			if err != nil || response.StatusCode != want && !(want == 403 && response.StatusCode == 400) {
				t.Errorf("%s gives %v, %v, want %d", target, response, err, want)
			}
		})
	}
}
