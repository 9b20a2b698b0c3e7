package root_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/identity/root"
)

// patience is longer than the 30 seconds after which the roots of external issuers are read again.
const patience = 45 * time.Second

// eventually waits until a condition returns "". Otherwise it returns what is missing.
func eventually(t *testing.T, missing func() string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for pause := 10 * time.Millisecond; ; pause = min(pause*3/2, time.Second/2) {
		why := missing()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(why)
		}
		time.Sleep(pause)
	}
}

// recorder is a Manager that records the trust.
type recorder struct {
	mu    sync.Mutex
	trust *issuer.Trust
	uses  int
	// next receives the same trust.
	next root.Manager
}

func (m *recorder) SetTrust(trust *issuer.Trust) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trust = trust
	m.uses++
	if m.next != nil {
		m.next.SetTrust(trust)
	}
}

// pass makes the recorder pass the trust on to another Manager.
func (m *recorder) pass(next root.Manager) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next = next
	if m.trust != nil {
		next.SetTrust(m.trust)
	}
}

// now returns the names of the signing root and of all trusted ones, sorted.
func (m *recorder) now(t *testing.T) (signing string, trusted []string) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.trust == nil {
		return "", nil
	}
	for _, c := range m.trust.Roots {
		trusted = append(trusted, c.Subject.CommonName)
	}
	slices.Sort(trusted)
	leaf := issue(t, m.trust.Signing)
	return leaf.Issuer.CommonName, trusted
}

func (m *recorder) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.uses
}

// want waits until the named root signs and exactly the named ones are trusted.
func (m *recorder) want(t *testing.T, signing string, trusted ...string) {
	t.Helper()
	slices.Sort(trusted)
	eventually(t, func() string {
		s, all := m.now(t)
		if s == signing && slices.Equal(all, trusted) {
			return ""
		}
		return fmt.Sprintf("%q signs and %q are trusted, want %q and %q", s, all, signing, trusted)
	})
}

// issue lets an issuer sign for a workload. Its error is the issuer's name.
func issue(t *testing.T, i issuer.Issuer) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr := request(t, key)
	chain, err := i.Issue(t.Context(), issuer.Request{CSR: csr, CommonName: "a.b", DNSNames: []string{"a.b.sa.cluster.local"}, Life: time.Hour})
	if err != nil {
		return &x509.Certificate{Issuer: pkix.Name{CommonName: err.Error()}}
	}
	return chain[0]
}

func request(t *testing.T, key *ecdsa.PrivateKey) *x509.CertificateRequest {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

func parse(t *testing.T, text []byte) []*x509.Certificate {
	t.Helper()
	var all []*x509.Certificate
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			return all
		}
		text = rest
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
}

// ca is a root for tests.
type ca struct{ cert, key []byte }

// newCA creates a root that expires at a time.
func newCA(t *testing.T, name string, end time.Time) ca {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: end,
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return ca{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
	}
}

func goodCA(t *testing.T, name string) ca { return newCA(t, name, time.Now().Add(365*24*time.Hour)) }

func (c ca) data() map[string][]byte { return map[string][]byte{"ca.crt": c.cert, "ca.key": c.key} }

// lines is a log that a test can read.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// running is a Roots that runs until the test ends or stop is called.
type running struct {
	*root.Roots
	*recorder
	log  *lines
	stop func()
}

func run(t *testing.T, opts root.Options) *running {
	t.Helper()
	r := &running{recorder: &recorder{}, log: &lines{}}
	opts.Manager = r.recorder
	opts.Log = slog.New(slog.NewTextHandler(r.log, nil))
	if opts.Propagation == 0 {
		opts.Propagation = time.Hour
	}
	if opts.Namespace == "" {
		opts.Namespace = "osm-system"
	}
	roots, err := root.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	r.Roots = roots
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		roots.Run(ctx)
		close(ended)
	}()
	r.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Error("Run does not end")
		}
		if strings.Contains(r.log.String(), "PRIVATE KEY") {
			t.Error("a key is in the log")
		}
	})
	t.Cleanup(r.stop)
	return r
}

// problem waits for a Problem that begins like this.
func (r *running) problem(t *testing.T, want string) {
	t.Helper()
	eventually(t, func() string {
		var all []string
		for _, p := range r.Problems() {
			if strings.HasPrefix(p.String(), want) {
				return ""
			}
			all = append(all, p.String())
		}
		return fmt.Sprintf("there is no Problem that begins %q, but %q; %v", want, all, r.Fault())
	})
}

func (r *running) noProblems(t *testing.T) {
	t.Helper()
	eventually(t, func() string {
		if all := r.Problems(); len(all) > 0 {
			return fmt.Sprintf("there are Problems: %v", all)
		}
		return ""
	})
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
