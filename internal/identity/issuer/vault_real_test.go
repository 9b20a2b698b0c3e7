package issuer_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer/issuertest"
	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// vaultServer is the real PKI engine of Vault. What is around it, tokens, mounts,
// sealing and HTTP, is test/issuers/vault/main.go, which follows the documented API:
// Vault's core needs the SDK of its own source tree and so does not compile from Go modules,
// and OpenBao is not available as one.
type vaultServer struct {
	Address, Token, CA string
	client             *http.Client
}

func startVault(t *testing.T) *vaultServer {
	t.Helper()
	out := start(t, filepath.Join(program(t, "vault"), "vault"))
	v := &vaultServer{}
	if err := json.NewDecoder(out).Decode(v); err != nil {
		t.Fatalf("Vault did not start: %v", err)
	}
	// It blocks unless its output is read.
	go io.Copy(io.Discard, out)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig.RootCAs = v.roots(t)
	v.client = &http.Client{Transport: transport}
	eventually(t, time.Minute, func() error {
		_, err := v.try(t.Context(), http.MethodGet, "sys/mounts", nil)
		return err
	})
	return v
}

func (v *vaultServer) roots(t *testing.T) *x509.CertPool {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(v.CA)) {
		t.Fatal("Vault's own certificate can't be read")
	}
	return roots
}

// try sends a request to Vault as its administrator.
func (v *vaultServer) try(ctx context.Context, method, path string, body any) (map[string]any, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, v.Address+"/v1/"+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-Vault-Token", v.Token)
	response, err := v.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= 300 {
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, response.Status, answer)
	}
	var content struct {
		Data, Auth map[string]any
	}
	if len(answer) > 0 {
		err = json.Unmarshal(answer, &content)
	}
	if content.Auth != nil {
		return content.Auth, err
	}
	return content.Data, err
}

func (v *vaultServer) post(t *testing.T, path string, body map[string]any) map[string]any {
	t.Helper()
	data, err := v.try(t.Context(), http.MethodPost, path, body)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// mount mounts a PKI engine with a role and returns a token with only the documented rights.
func (v *vaultServer) mount(t *testing.T, name string) (token string) {
	t.Helper()
	v.post(t, "sys/mounts/"+name, map[string]any{"type": "pki", "config": map[string]any{"max_lease_ttl": "87600h"}})
	v.post(t, name+"/roles/mesh", map[string]any{"max_ttl": "72h", "no_store": true})
	v.post(t, "sys/policies/acl/"+name, map[string]any{
		"policy": fmt.Sprintf("path %q { capabilities = [\"update\"] }", name+"/sign-verbatim/mesh"),
	})
	return v.newToken(t, name)
}

func (v *vaultServer) newToken(t *testing.T, policy string) string {
	t.Helper()
	token, ok := v.post(t, "auth/token/create", map[string]any{"policies": []string{policy}, "no_default_policy": true})["client_token"].(string)
	if !ok {
		t.Fatal("Vault gave no token")
	}
	return token
}

func (v *vaultServer) issuer(t *testing.T, mount, role string, token func() string) *issuer.Vault {
	t.Helper()
	return newVault(t, issuer.VaultOptions{Address: v.Address, Mount: mount, Role: role, RootCAs: v.roots(t),
		Token: func(context.Context) (string, error) { return token(), nil }})
}

// TestVault runs everything on one server.
func TestVault(t *testing.T) {
	v := startVault(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"Root", v.root}, {"Intermediate", v.intermediate}, {"Token", v.newTokens}, {"Refused", v.refused}, {"Ends", v.ends},
		// Last, since it cannot be unsealed again.
		{"Sealed", v.sealed},
	} {
		t.Run(test.name, test.run)
	}
}

func (v *vaultServer) root(t *testing.T) {
	token := v.mount(t, "pki")
	v.post(t, "pki/root/generate/internal", map[string]any{"common_name": "vault root", "ttl": "8760h", "key_type": "ec"})
	issuertest.Run(t, issuertest.Suite{
		Issuer: v.issuer(t, "pki", "mesh", func() string { return token }), Prefix: "vault 127.0.0.1:",
		Unreachable: closedVault(t), Secrets: []string{token},
	})
}

func (v *vaultServer) intermediate(t *testing.T) {
	root := newAuthority(t, "company", ecKey(t), nil, nil)
	token := v.mount(t, "team/pki")
	csrPEM, ok := v.post(t, "team/pki/intermediate/generate/internal", map[string]any{"common_name": "vault middle", "key_type": "rsa"})["csr"].(string)
	if !ok {
		t.Fatal("Vault gave no CSR")
	}
	block, _ := pem.Decode([]byte(csrPEM))
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	middle := signCA(t, csr, root)
	i := v.issuer(t, "team/pki", "mesh", func() string { return token })

	v.post(t, "team/pki/intermediate/set-signed", map[string]any{"certificate": string(middle)})
	chain, err := i.Issue(t.Context(), issuertest.Workload(t))
	wantError(t, chain, err, false, "there is no root; configure the issuer with its complete chain")

	v.post(t, "team/pki/intermediate/set-signed", map[string]any{"certificate": string(middle) + string(root.pem())})
	issuertest.Run(t, issuertest.Suite{Issuer: i, Prefix: "vault 127.0.0.1:", Secrets: []string{token}})
	if roots, err := i.Roots(t.Context()); err != nil || !same(roots, []*x509.Certificate{root.cert}) {
		t.Errorf("the roots are %s (%v)", pki.Encode(roots...), err)
	}
}

// newTokens tests a token that is replaced in its Secret and revoked.
func (v *vaultServer) newTokens(t *testing.T) {
	token := v.mount(t, "rotated")
	v.post(t, "rotated/root/generate/internal", map[string]any{"common_name": "rotated root", "ttl": "8760h", "key_type": "ec"})
	i := v.issuer(t, "rotated", "mesh", func() string { return token })
	if _, err := i.Issue(t.Context(), issuertest.Workload(t)); err != nil {
		t.Fatal(err)
	}
	old := token
	v.post(t, "auth/token/revoke", map[string]any{"token": old})
	chain, err := i.Issue(t.Context(), issuertest.Workload(t))
	wantError(t, chain, err, false, "it refused the token (403 Forbidden)")
	if strings.Contains(err.Error(), old) {
		t.Error("the error shows the token")
	}
	token = v.newToken(t, "rotated")
	if _, err := i.Issue(t.Context(), issuertest.Workload(t)); err != nil {
		t.Errorf("with a new token: %v", err)
	}
}

// refused tests errors that a retry does not fix.
func (v *vaultServer) refused(t *testing.T) {
	token := func() string { return v.Token }
	chain, err := v.issuer(t, "pki", "nobody", token).Issue(t.Context(), issuertest.Workload(t))
	wantError(t, chain, err, false, "unknown role: nobody")
	chain, err = v.issuer(t, "nowhere", "mesh", token).Issue(t.Context(), issuertest.Workload(t))
	wantError(t, chain, err, false, "no handler for route")
	v.post(t, "sys/mounts/empty", map[string]any{"type": "pki"})
	v.post(t, "empty/roles/mesh", map[string]any{})
	chain, err = v.issuer(t, "empty", "mesh", token).Issue(t.Context(), issuertest.Workload(t))
	wantError(t, chain, err, err != nil && strings.Contains(err.Error(), "500"), "default issuer")
}

// ends checks that, once the roots are known, the requested lifetime does not exceed the
// CA's, which Vault would refuse.
func (v *vaultServer) ends(t *testing.T) {
	token := v.mount(t, "short")
	v.post(t, "short/root/generate/internal", map[string]any{"common_name": "short root", "ttl": "2h", "key_type": "ec"})
	i := v.issuer(t, "short", "mesh", func() string { return token })
	roots, err := i.Roots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	req := issuertest.Workload(t)
	req.Life = 24 * time.Hour
	chain, err := i.Issue(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if leaf := issuertest.Check(t, req, chain, roots); time.Until(leaf.NotAfter) < time.Hour {
		t.Errorf("the certificate ends at %s already", leaf.NotAfter)
	}
}

func (v *vaultServer) sealed(t *testing.T) {
	token := func() string { return v.Token }
	known := v.issuer(t, "pki", "mesh", token)
	before, err := known.Roots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	v.post(t, "sys/seal", nil)
	i := v.issuer(t, "pki", "mesh", token)
	chain, err := i.Issue(t.Context(), issuertest.Workload(t))
	wantError(t, chain, err, true, "it answered 503 Service Unavailable: Vault is sealed")
	roots, err := i.Roots(t.Context())
	wantError(t, roots, err, true, "Vault is sealed")
	// The known roots are still returned.
	if after, err := known.Roots(t.Context()); err != nil || !same(before, after) {
		t.Errorf("with Vault sealed, the roots are (%v)\n%s", err, pki.Encode(after...))
	}
}
