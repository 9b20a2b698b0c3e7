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
	// vaultTimeout is the timeout of one request.
	vaultTimeout = 15 * time.Second
	// maxVaultAnswer limits the size of an answer, in bytes; a chain needs far less.
	maxVaultAnswer = 1 << 20
)

// VaultOptions configure a Vault.
type VaultOptions struct {
	// Address is Vault's URL without a path, such as https://vault.example.com:8200. With
	// http, the token is sent in plain text.
	Address string
	// Mount is the path where the PKI secrets engine is mounted; empty means pki.
	Mount string
	// Role is the engine's role. It determines the lifetimes, the issuer and whether
	// certificates are stored.
	Role string
	// Token returns the token to use. It is called before the first request and after Vault
	// has refused the last token.
	Token func(ctx context.Context) (string, error)
	// RootCAs verify Vault's own certificate; nil means the system's roots.
	RootCAs *x509.CertPool
}

// Vault issues certificates through a PKI secrets engine of HashiCorp Vault or OpenBao, at
// sign-verbatim/<role>, because sign/<role> drops the subject's unit, which names the pod.
// So the CSR must ask for exactly the request's names. The token only needs the capability
// "update" on <mount>/sign-verbatim/<role>. The root is the one in ca_chain or issuing_ca.
//
// A single POST request needs no client library.
type Vault struct {
	*remote
	options VaultOptions
	url     string
	client  *http.Client

	mu    sync.Mutex
	token string
}

var _ Issuer = (*Vault)(nil)

// NewVault returns the issuer. It sends no requests.
func NewVault(o VaultOptions) (*Vault, error) {
	o.Mount = strings.Trim(cmp.Or(o.Mount, "pki"), "/")
	u, err := url.Parse(o.Address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" {
		// The address itself may contain a password.
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

// checkRedirect follows the redirect of a standby to the active node, with the token, unless
// it leaves TLS.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > 2 || via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
		return errors.New("it redirects too often, or from https to http")
	}
	return nil
}

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

// sign gets one request signed, with a new token if Vault refuses the current one.
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
		return answer{}, fmt.Errorf("encoding the request: %w", err)
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

// currentToken returns the cached token. If there is none, or if it is the refused one, it
// reads the token again.
func (v *Vault) currentToken(ctx context.Context, refused string) (string, error) {
	v.mu.Lock()
	token := v.token
	v.mu.Unlock()
	if token != "" && token != refused {
		return token, nil
	}
	// Do not hold the lock: reading may be slow, and other callers have their own deadlines.
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
		return answer{}, 0, fmt.Errorf("encoding the request: %w", err)
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
	var body vaultAnswer
	notJSON := json.Unmarshal(text, &body)
	if response.StatusCode != http.StatusOK {
		return answer{}, response.StatusCode, statusError(response, body.Errors)
	}
	if notJSON != nil {
		return answer{}, response.StatusCode, fmt.Errorf("its answer is not Vault's: %w", notJSON)
	}
	if !strings.Contains(body.Data.Certificate, "-----BEGIN CERTIFICATE-----") {
		return answer{}, response.StatusCode, errors.New("its answer is not Vault's: it contains no certificate")
	}
	ca := strings.Join(append(body.Data.CAChain, body.Data.IssuingCA), "\n")
	return answer{certificates: []byte(body.Data.Certificate + "\n" + ca), ca: []byte(ca)}, response.StatusCode, nil
}

// unreachable returns the error for a failed connection.
func (v *Vault) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ended(ctx)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// statusError returns the error for an answer's status. It wraps ErrUnavailable if a retry
// may help.
func statusError(response *http.Response, messages []string) error {
	text := strings.Join(strings.Fields(strings.Join(messages, "; ")), " ")
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
