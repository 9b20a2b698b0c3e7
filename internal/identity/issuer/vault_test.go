package issuer_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer/issuertest"
	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// vaultAPI implements Vault's documented API, for answers that the real one does not give:
// wrong ones, failures and redirects. vault_real_test.go tests the real Vault.
type vaultAPI struct {
	*httptest.Server
	ca authority
	// token is the accepted one.
	token atomic.Value
	// change modifies the certificate to sign, and spoil the answer.
	change func(*x509.Certificate)
	spoil  func(map[string]any)
	// instead answers in place of Vault if it returns true.
	instead func(http.ResponseWriter, *http.Request) bool
	asked   atomic.Int32
}

const vaultToken = "hvs.s3cret-t0ken"

func newVaultAPI(t *testing.T) *vaultAPI {
	t.Helper()
	api := &vaultAPI{ca: newAuthority(t, "vault root", ecKey(t), nil, nil)}
	api.token.Store(vaultToken)
	api.Server = httptest.NewUnstartedServer(http.HandlerFunc(api.serve))
	api.Config.ErrorLog = nil
	api.StartTLS()
	t.Cleanup(api.Close)
	return api
}

func (api *vaultAPI) serve(w http.ResponseWriter, r *http.Request) {
	api.asked.Add(1)
	if api.instead != nil && api.instead(w, r) {
		return
	}
	refuse := func(status int, text string) {
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(map[string]any{"errors": []string{text}})
	}
	if r.Method != http.MethodPost || r.URL.Path != "/v1/pki/sign-verbatim/mesh" {
		refuse(http.StatusNotFound, "no handler for route "+r.URL.Path)
		return
	}
	if r.Header.Get("X-Vault-Token") != api.token.Load() {
		refuse(http.StatusForbidden, "permission denied")
		return
	}
	var body struct {
		CSR         string   `json:"csr"`
		TTL         string   `json:"ttl"`
		ExtKeyUsage []string `json:"ext_key_usage"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		refuse(http.StatusBadRequest, err.Error())
		return
	}
	ttl, err := time.ParseDuration(body.TTL)
	block, _ := pem.Decode([]byte(body.CSR))
	if err != nil || block == nil || strings.Join(body.ExtKeyUsage, " ") != "ServerAuth ClientAuth" {
		refuse(http.StatusBadRequest, "bad request")
		return
	}
	certificate, err := api.sign(block.Bytes, ttl)
	if err != nil {
		refuse(http.StatusBadRequest, err.Error())
		return
	}
	ca := strings.TrimSpace(string(api.ca.pem()))
	data := map[string]any{"certificate": strings.TrimSpace(string(certificate)), "issuing_ca": ca, "ca_chain": []string{ca}}
	if api.spoil != nil {
		api.spoil(data)
	}
	json.NewEncoder(w).Encode(map[string]any{"request_id": "1", "data": data})
}

func (api *vaultAPI) sign(csrDER []byte, ttl time.Duration) ([]byte, error) {
	csr, err := x509.ParseCertificateRequest(csrDER)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 158))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: csr.Subject, ExtraExtensions: csr.Extensions,
		NotBefore: time.Now().Add(-30 * time.Second), NotAfter: time.Now().Add(min(ttl, time.Until(api.ca.cert.NotAfter))),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		PublicKey: csr.PublicKey,
	}
	if api.change != nil {
		api.change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, api.ca.cert, template.PublicKey, api.ca.key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), err
}

// issuer returns an issuer that uses the API.
func (api *vaultAPI) issuer(t *testing.T) *issuer.Vault {
	t.Helper()
	return newVault(t, issuer.VaultOptions{Address: api.URL, Role: "mesh", RootCAs: pool(api.Certificate())})
}

func pool(certificates ...*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range certificates {
		p.AddCert(c)
	}
	return p
}

func newVault(t *testing.T, o issuer.VaultOptions) *issuer.Vault {
	t.Helper()
	if o.Token == nil {
		o.Token = func(context.Context) (string, error) { return vaultToken + "\n", nil }
	}
	v, err := issuer.NewVault(o)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// closedVault is an address where nothing listens.
func closedVault(t *testing.T) *issuer.Vault {
	t.Helper()
	server := httptest.NewServer(nil)
	server.Close()
	return newVault(t, issuer.VaultOptions{Address: server.URL, Role: "mesh"})
}

func TestVaultAPI(t *testing.T) {
	api := newVaultAPI(t)
	issuertest.Run(t, issuertest.Suite{
		Issuer: api.issuer(t), Prefix: "vault 127.0.0.1:", Unreachable: closedVault(t), Secrets: []string{vaultToken},
	})
}

// wantError checks that an error contains text and whether it wraps ErrUnavailable.
// same reports whether two lists have the same certificates.
func same(a, b []*x509.Certificate) bool { return slices.EqualFunc(a, b, (*x509.Certificate).Equal) }

func wantError(t *testing.T, chain []*x509.Certificate, err error, unavailable bool, text string) {
	t.Helper()
	if err == nil || chain != nil || !strings.Contains(err.Error(), text) {
		t.Fatalf("got %d certificates and the error %v, want one with %q", len(chain), err, text)
	}
	if errors.Is(err, issuer.ErrUnavailable) != unavailable {
		t.Errorf("is ErrUnavailable: %t, want %t: %v", !unavailable, unavailable, err)
	}
	if strings.Contains(err.Error(), vaultToken) {
		t.Errorf("the error shows the token: %v", err)
	}
}

// TestVaultLies checks that answers are verified against the request.
func TestVaultLies(t *testing.T) {
	other := ecKey(t)
	unrelated := newAuthority(t, "unrelated", ecKey(t), nil, nil)
	san := func(t *testing.T, names ...[]byte) pkix.Extension {
		body := bytes.Join(names, nil)
		return pkix.Extension{Id: []int{2, 5, 29, 17}, Value: append([]byte{0x30, byte(len(body))}, body...)}
	}
	admin, err := url.Parse("spiffe://cluster.local/ns/kube-system/sa/admin")
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		change func(*x509.Certificate)
		spoil  func(map[string]any)
		want   string
	}{
		"otherKey":  {change: func(c *x509.Certificate) { c.PublicKey = other.Public() }, want: "not for the CSR's key"},
		"otherName": {change: func(c *x509.Certificate) { c.ExtraExtensions = nil; c.DNSNames = []string{"a.b"} }, want: `DNS names ["a.b"] instead of ["bookbuyer.shop.sa.cluster.local"]`},
		"noURI": {change: func(c *x509.Certificate) {
			c.ExtraExtensions = nil
			c.DNSNames = []string{"bookbuyer.shop.sa.cluster.local"}
		}, want: `URIs [] instead of`},
		"otherURI":   {change: func(c *x509.Certificate) { c.ExtraExtensions = nil; c.URIs = []*url.URL{admin} }, want: `"spiffe://cluster.local/ns/kube-system/sa/admin"`},
		"commonName": {change: func(c *x509.Certificate) { c.Subject.CommonName = "admin" }, want: `common name "admin" instead of "bookbuyer.shop"`},
		"noUnit":     {change: func(c *x509.Certificate) { c.Subject.OrganizationalUnit = nil }, want: `organizational unit "" instead of "2f1c`},
		"organization": {change: func(c *x509.Certificate) { c.Subject.Organization = []string{"system:masters"} },
			want: "more than a common name and a unit"},
		// otherName (tag 0), which crypto/x509 ignores.
		"hiddenName": {change: func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{san(t, []byte{0x82, 1, 'a'}, []byte{0xa0, 0x0a, 0x06, 0x03, 0x2a, 0x03, 0x04, 0xa0, 0x03, 0x0c, 0x01, 'x'})}
		}, want: "alternative names besides URIs, DNS names and IP addresses"},
		"email": {change: func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{san(t, []byte{0x81, 3, 'a', '@', 'b'})}
		}, want: "alternative names besides URIs, DNS names and IP addresses"},
		"CA":       {change: func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true }, want: "is a CA certificate"},
		"noClient": {change: func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] }, want: "not usable for TLS servers and clients"},
		"noUsage":  {change: func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyAgreement }, want: "not usable for TLS servers and clients"},
		"tooLong":  {change: func(c *x509.Certificate) { c.NotAfter = c.NotAfter.Add(10 * time.Minute) }, want: "requested lifetime is 1h0m0s"},
		"expired":  {change: func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }, want: "does not verify"},
		"later":    {change: func(c *x509.Certificate) { c.NotBefore = time.Now().Add(10 * time.Minute) }, want: "does not verify"},
		"otherRoot": {spoil: func(d map[string]any) {
			d["issuing_ca"], d["ca_chain"] = string(unrelated.pem()), nil
		}, want: "does not verify"},
		"noRoot":     {spoil: func(d map[string]any) { d["issuing_ca"], d["ca_chain"] = "", nil }, want: "there is no root; configure the issuer with its complete chain"},
		"leafAsRoot": {spoil: func(d map[string]any) { d["issuing_ca"], d["ca_chain"] = d["certificate"], nil }, want: "there is no root"},
		"empty":      {spoil: func(d map[string]any) { clear(d) }, want: "it contains no certificate"},
		"noLeaf":     {spoil: func(d map[string]any) { d["certificate"] = "" }, want: "it contains no certificate"},
		"garbage":    {spoil: func(d map[string]any) { d["certificate"] = "hello" }, want: "it contains no certificate"},
		"key": {spoil: func(d map[string]any) {
			d["certificate"] = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"
		}, want: "it contains no certificate"},
		"number": {spoil: func(d map[string]any) { d["certificate"] = 7 }, want: "is not Vault's"},
	} {
		t.Run(name, func(t *testing.T) {
			api := newVaultAPI(t)
			v := api.issuer(t)
			before, err := v.Roots(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			api.change, api.spoil = tt.change, tt.spoil
			chain, err := v.Issue(t.Context(), issuertest.Workload(t))
			wantError(t, chain, err, false, tt.want)
			// The root of a wrong answer is not trusted.
			if after, err := v.Roots(t.Context()); err != nil || !same(before, after) {
				t.Errorf("the roots changed (%v):\n%s", err, pki.Encode(after...))
			}
		})
	}
}

func TestVaultStatus(t *testing.T) {
	for name, tt := range map[string]struct {
		status      int
		unavailable bool
		want        string
	}{
		"refused": {400, false, "it refused (400 Bad Request): because"},
		"token":   {403, false, "it refused the token (403 Forbidden): because"},
		"mount":   {404, false, "it refused (404 Not Found): because"},
		"limit":   {429, true, "it answered 429 Too Many Requests: because"},
		"standby": {473, true, "it answered 473"},
		"broken":  {500, true, "it answered 500"},
		"sealed":  {503, true, "it answered 503 Service Unavailable: because"},
	} {
		t.Run(name, func(t *testing.T) {
			api := newVaultAPI(t)
			api.instead = func(w http.ResponseWriter, _ *http.Request) bool {
				w.WriteHeader(tt.status)
				w.Write([]byte(`{"errors":["because"]}`))
				return true
			}
			v := api.issuer(t)
			chain, err := v.Issue(t.Context(), issuertest.Workload(t))
			wantError(t, chain, err, tt.unavailable, tt.want)
			roots, err := v.Roots(t.Context())
			wantError(t, roots, err, tt.unavailable, tt.want)
		})
	}
}

// TestVaultToken checks that a refused token is read again, once.
func TestVaultToken(t *testing.T) {
	api := newVaultAPI(t)
	current, reads := vaultToken, 0
	v := newVault(t, issuer.VaultOptions{Address: api.URL, Role: "mesh", RootCAs: pool(api.Certificate()),
		Token: func(context.Context) (string, error) {
			reads++
			if current == "" {
				return "", errors.New("the Secret is gone")
			}
			return current, nil
		}})
	for range 3 {
		if _, err := v.Issue(t.Context(), issuertest.Workload(t)); err != nil {
			t.Fatal(err)
		}
	}
	if reads != 1 {
		t.Errorf("the token was read %d times for three certificates", reads)
	}
	api.token.Store("next")
	asked := api.asked.Load()
	chain, err := v.Issue(t.Context(), issuertest.Workload(t))
	wantError(t, chain, err, false, "it refused the token")
	if n := api.asked.Load() - asked; n != 1 {
		t.Errorf("a token that is refused was tried %d times", n)
	}
	current = "next"
	if _, err := v.Issue(t.Context(), issuertest.Workload(t)); err != nil {
		t.Errorf("with the new token: %v", err)
	}
	api.token.Store("third")
	current = ""
	chain, err = v.Issue(t.Context(), issuertest.Workload(t))
	wantError(t, chain, err, false, "reading its token: the Secret is gone")
}

// TestVaultDeadline checks that a Vault without an answer does not block callers.
func TestVaultDeadline(t *testing.T) {
	api := newVaultAPI(t)
	api.instead = func(_ http.ResponseWriter, r *http.Request) bool {
		// Only then does a server notice that its client has disconnected.
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
		return true
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	chain, err := api.issuer(t).Issue(ctx, issuertest.Workload(t))
	wantError(t, chain, err, true, "it did not answer in time")
	if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took > 5*time.Second {
		t.Errorf("after %s: %v", took, err)
	}
}

// TestVaultTLS checks that the token is never sent to an unverified server or without TLS.
func TestVaultTLS(t *testing.T) {
	api := newVaultAPI(t)
	v := newVault(t, issuer.VaultOptions{Address: api.URL, Role: "mesh", RootCAs: x509.NewCertPool()})
	chain, err := v.Issue(t.Context(), issuertest.Workload(t))
	wantError(t, chain, err, true, "certificate signed by unknown authority")
	if api.asked.Load() != 0 {
		t.Error("a server that does not verify was asked")
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); !ok {
		t.Errorf("the error does not say what is wrong with the certificate: %v", err)
	}

	// A standby redirects to the active node, also with the token.
	standby := newVaultAPI(t)
	standby.instead = func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, api.URL+r.URL.Path, http.StatusTemporaryRedirect)
		return true
	}
	v = newVault(t, issuer.VaultOptions{Address: standby.URL, Role: "mesh", RootCAs: pool(api.Certificate(), standby.Certificate())})
	req := issuertest.Workload(t)
	chain, err = v.Issue(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	issuertest.Check(t, req, chain, []*x509.Certificate{api.ca.cert})

	eavesdropper := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("plain HTTP got the token %q", r.Header.Get("X-Vault-Token"))
	}))
	t.Cleanup(eavesdropper.Close)
	standby.instead = func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, eavesdropper.URL+r.URL.Path, http.StatusTemporaryRedirect)
		return true
	}
	chain, err = v.Issue(t.Context(), issuertest.Workload(t))
	wantError(t, chain, err, true, "from https to http")
}

// TestVaultNewRoot checks that after a change of Vault's CA the old root stays while its
// certificates are valid.
func TestVaultNewRoot(t *testing.T) {
	api := newVaultAPI(t)
	v := api.issuer(t)
	first, req := api.ca, issuertest.Workload(t)
	chain, err := v.Issue(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	api.ca = newAuthority(t, "second root", ecKey(t), nil, nil)
	again := issuertest.Workload(t)
	secondChain, err := v.Issue(t.Context(), again)
	if err != nil {
		t.Fatal(err)
	}
	roots, err := v.Roots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range []authority{first, api.ca} {
		if !slices.ContainsFunc(roots, root.cert.Equal) {
			t.Errorf("%s is missing in the roots", root.cert.Subject)
		}
	}
	issuertest.Check(t, req, chain, roots)
	issuertest.Check(t, again, secondChain, roots)
}

// TestVaultEnds checks that no certificate outlives its CA, even if the issuer allows it.
func TestVaultEnds(t *testing.T) {
	api := newVaultAPI(t)
	end := time.Now().Add(20 * time.Minute).Truncate(time.Second)
	api.ca = newAuthority(t, "short", ecKey(t), nil, func(c *x509.Certificate) { c.NotAfter = end })
	asked := time.Hour
	api.change = func(c *x509.Certificate) { c.NotAfter = time.Now().Add(asked); asked = 19 * time.Minute }
	req := issuertest.Workload(t)
	chain, err := api.issuer(t).Issue(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	issuertest.Check(t, req, chain, []*x509.Certificate{api.ca.cert})

	asked = time.Hour
	api.change = func(c *x509.Certificate) { c.NotAfter = end.Add(time.Minute) }
	chain, err = api.issuer(t).Issue(t.Context(), issuertest.Workload(t))
	wantError(t, chain, err, false, "its own CA expires at "+end.UTC().Format(time.RFC3339))
}

func TestNewVault(t *testing.T) {
	token := func(context.Context) (string, error) { return "x", nil }
	for name, o := range map[string]issuer.VaultOptions{
		"noAddress":   {Role: "mesh", Token: token},
		"noScheme":    {Address: "vault:8200", Role: "mesh", Token: token},
		"otherScheme": {Address: "ftp://vault", Role: "mesh", Token: token},
		"path":        {Address: "https://vault/v1", Role: "mesh", Token: token},
		"user":        {Address: "https://me:pass@vault", Role: "mesh", Token: token},
		"noRole":      {Address: "https://vault", Token: token},
		"pathAsRole":  {Address: "https://vault", Role: "../../sys/seal", Token: token},
		"noToken":     {Address: "https://vault", Role: "mesh"},
	} {
		if _, err := issuer.NewVault(o); err == nil || !strings.HasPrefix(err.Error(), "vault: ") || strings.Contains(err.Error(), "pass@") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := issuer.NewVault(issuer.VaultOptions{Address: "https://[2001:db8::1]:8200/", Mount: "/team/pki/", Role: "mesh", Token: token}); err != nil {
		t.Error(err)
	}
}

// TestVaultVerbatim checks that a CSR with other names than the request is never sent, since
// Vault signs CSRs unchanged.
func TestVaultVerbatim(t *testing.T) {
	api := newVaultAPI(t)
	v := api.issuer(t)
	for name, template := range map[string]*x509.CertificateRequest{
		"otherName": {DNSNames: []string{"admin.kube-system.sa.cluster.local"}},
		"extension": {ExtraExtensions: []pkix.Extension{{Id: []int{2, 5, 29, 19}, Value: []byte{0x30, 0x03, 0x01, 0x01, 0xff}}}},
	} {
		req := issuertest.Workload(t)
		want := "the CSR does not match the request"
		if name == "extension" {
			template.Subject, template.URIs, template.DNSNames = req.CSR.Subject, req.CSR.URIs, req.CSR.DNSNames
			want = "it asks for the extension 2.5.29.19"
		}
		req.CSR = issuertest.Sign(t, ecKey(t), template)
		chain, err := v.Issue(t.Context(), req)
		wantError(t, chain, err, false, want)
	}
	if n := api.asked.Load(); n != 0 {
		t.Errorf("Vault was asked %d times", n)
	}
}
