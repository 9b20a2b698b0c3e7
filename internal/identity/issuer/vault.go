package issuer

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

const (
	// vaultTimeout is how long one answer may take.
	vaultTimeout = 15 * time.Second
	// maxVaultAnswer is far more than a chain of certificates needs.
	maxVaultAnswer = 1 << 20
)

// VaultOptions say where Vault is and what may be used of it.
type VaultOptions struct {
	// Address is Vault's URL without a path, https://vault.example.com:8200. With http
	// everybody on the way reads the token.
	Address string
	// Mount is where the PKI secrets engine is mounted; pki if empty.
	Mount string
	// Role is the engine's role. Its lives, its issuer and whether it stores
	// certificates count.
	Role string
	// Token returns the token to use. It is called before the first request, and again
	// when Vault has refused the token that was last returned.
	Token func(ctx context.Context) (string, error)
	// RootCAs verify Vault's own certificate; nil is the system's.
	RootCAs *x509.CertPool
}

// Vault has certificates signed by a PKI secrets engine of HashiCorp Vault or OpenBao,
// through sign-verbatim/<role>: the plain sign/<role> drops the subject's unit, which
// names the pod. So the CSR must ask for exactly the request's names, and the token
// needs the capability "update" on <mount>/sign-verbatim/<role> and nothing else.
//
// It is one POST, so there is no client library behind it.
type Vault struct {
	options VaultOptions
	url     string
	client  *http.Client
	remote  *remote

	mu    sync.Mutex
	token string
}

var _ Issuer = (*Vault)(nil)

// String says which Vault and role it is, for logs and errors.
func (v *Vault) String() string { return v.remote.name }

// NewVault returns the issuer. It asks nothing of Vault yet.
func NewVault(o VaultOptions) (*Vault, error) {
	o.Mount = strings.Trim(cmp.Or(o.Mount, "pki"), "/")
	u, err := url.Parse(o.Address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" {
		// Not the address itself, which may hold a password.
		return nil, errors.New("vault: the address is not of the form https://<host>:<port>")
	}
	if o.Role == "" || strings.ContainsAny(o.Role, "/?#%") || o.Mount == "" || strings.ContainsAny(o.Mount, "?#%") || o.Token == nil {
		return nil, fmt.Errorf("vault: a token, a mount and a role without special characters are needed, not %q and %q", o.Mount, o.Role)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: o.RootCAs, MinVersion: tls.VersionTLS12}
	v := &Vault{
		options: o,
		url:     u.Scheme + "://" + u.Host + "/v1/" + o.Mount + "/sign-verbatim/" + o.Role,
		client:  &http.Client{Transport: transport, Timeout: vaultTimeout, CheckRedirect: checkRedirect},
	}
	v.remote = newRemote(fmt.Sprintf("vault %s, %s/%s", u.Host, o.Mount, o.Role), v.sign)
	return v, nil
}

// checkRedirect lets a standby send us to the active node, with the token, but not out
// of TLS.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > 2 || via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
		return errors.New("it redirects too often, or out of TLS")
	}
	return nil
}

// Issue has Vault sign the CSR. An answer that is not what was asked for is an error.
func (v *Vault) Issue(ctx context.Context, req Request) ([]byte, error) {
	return v.remote.issue(ctx, req)
}

// Roots returns the root in the chain (ca_chain, issuing_ca) that Vault sends with each
// certificate, and earlier ones as long as certificates of theirs are valid. Where it
// has heard of none for ten minutes, it has a certificate signed that nobody uses.
func (v *Vault) Roots(ctx context.Context) ([]byte, error) { return v.remote.roots(ctx) }

type vaultRequest struct {
	CSR         string   `json:"csr"`
	TTL         string   `json:"ttl"`
	Format      string   `json:"format"`
	KeyUsage    []string `json:"key_usage"`
	ExtKeyUsage []string `json:"ext_key_usage"`
}

type vaultAnswer struct {
	Data struct {
		Certificate string   `json:"certificate"`
		IssuingCA   string   `json:"issuing_ca"`
		CAChain     []string `json:"ca_chain"`
	} `json:"data"`
	Errors []string `json:"errors"`
}

// sign has one request signed, if need be with a new token.
func (v *Vault) sign(ctx context.Context, req Request) (answer, error) {
	body := vaultRequest{
		CSR:         string(pki.EncodeRequest(req.CSR.Raw)),
		TTL:         fmt.Sprintf("%ds", max(1, int64(req.Life/time.Second))),
		Format:      "pem",
		KeyUsage:    []string{"DigitalSignature"},
		ExtKeyUsage: []string{"ServerAuth", "ClientAuth"},
	}
	if _, ok := req.CSR.PublicKey.(*rsa.PublicKey); ok {
		body.KeyUsage = append(body.KeyUsage, "KeyEncipherment")
	}
	content, err := json.Marshal(body)
	if err != nil {
		return answer{}, fmt.Errorf("writing the request: %w", err)
	}
	token, err := v.currentToken(ctx, "")
	if err != nil {
		return answer{}, err
	}
	a, status, err := v.post(ctx, token, content)
	if status != http.StatusForbidden {
		return a, err
	}
	// The token may have been replaced since it was read.
	again, readErr := v.currentToken(ctx, token)
	if readErr != nil {
		return answer{}, readErr
	}
	if again != token {
		a, _, err = v.post(ctx, again, content)
	}
	return a, err
}

// currentToken returns the token, read again if it is the one that was refused.
func (v *Vault) currentToken(ctx context.Context, refused string) (string, error) {
	v.mu.Lock()
	token := v.token
	v.mu.Unlock()
	if token != "" && token != refused {
		return token, nil
	}
	// Not under the lock: who reads may take his time, and others have their own end.
	token, err := v.options.Token(ctx)
	if ctx.Err() != nil {
		return "", ended(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("reading its token: %w", err)
	}
	if token = strings.TrimSpace(token); token == "" {
		return "", errors.New("reading its token: it is empty")
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.token = token
	return token, nil
}

func (v *Vault) post(ctx context.Context, token string, content []byte) (answer, int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, v.url, bytes.NewReader(content))
	if err != nil {
		return answer{}, 0, fmt.Errorf("writing the request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Vault-Request", "true")
	req.Header.Set("X-Vault-Token", token)
	response, err := v.client.Do(req)
	if err != nil {
		return answer{}, 0, v.unreachable(ctx, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxVaultAnswer))
	if err != nil {
		return answer{}, 0, v.unreachable(ctx, err)
	}
	var said vaultAnswer
	notJSON := json.Unmarshal(text, &said)
	if response.StatusCode != http.StatusOK {
		return answer{}, response.StatusCode, statusError(response, said.Errors)
	}
	if notJSON != nil {
		return answer{}, response.StatusCode, fmt.Errorf("its answer is not that of Vault: %w", notJSON)
	}
	if !strings.Contains(said.Data.Certificate, "-----BEGIN CERTIFICATE-----") {
		return answer{}, response.StatusCode, errors.New("its answer is not that of Vault: it holds no certificate")
	}
	ca := strings.Join(append(said.Data.CAChain, said.Data.IssuingCA), "\n")
	return answer{certificates: []byte(said.Data.Certificate + "\n" + ca), ca: []byte(ca)}, response.StatusCode, nil
}

// unreachable is an error of the way to Vault.
func (v *Vault) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ended(ctx)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// statusError tells what Vault will go on refusing from what another try may help.
func statusError(response *http.Response, says []string) error {
	text := strings.Join(strings.Fields(strings.Join(says, "; ")), " ")
	if len(text) > 500 {
		text = text[:500] + "..."
	}
	if text == "" {
		text = "without a reason"
	}
	switch response.StatusCode {
	case http.StatusForbidden:
		return fmt.Errorf("it refused the token (%s): %s; the token needs \"update\" on the path", response.Status, text)
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge:
		return fmt.Errorf("it refused (%s): %s", response.Status, text)
	}
	return fmt.Errorf("%w: it answered %s: %s", ErrUnavailable, response.Status, text)
}
