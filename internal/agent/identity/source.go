package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"google.golang.org/grpc"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Options say whose identity a Source has, where it comes from, and where it is kept.
type Options struct {
	Identity mesh.Identity
	PodUID   string
	// Address is the signing service's, and Controller the name that its certificate must have.
	Address, Controller string
	// TokenFile has the service account's token, and BundleFile the first trust bundle; both
	// may appear later.
	TokenFile, BundleFile string
	// CertificateDir is the volume in which the kubelet maintains the identity. Without such a
	// folder the agent requests certificates.
	CertificateDir string
	// Dir is the folder of the identity files, which a Shared one lets the pod's group read.
	Dir     string
	Shared  bool
	Timings kit.Timings
	Log     *slog.Logger
	Metrics *kit.Metrics
}

// Source has the pod's identity: it obtains the certificate and the trust bundle, renews them,
// and keeps them in the identity files. All but Run may be called by any goroutine.
type Source struct {
	holder   *holder
	signer   signer
	secrets  *secrets
	provider provider
}

// provider is where the certificates come from.
type provider interface {
	// run keeps the holder's files up to date until ctx ends.
	run(ctx context.Context)
	// renewEarly brings the next renewal forward.
	renewEarly()
}

// New opens the folder of the identity files. Nothing is requested before Run.
func New(o Options) (*Source, error) {
	s := &Source{
		secrets: newSecrets(o.Log),
		signer:  signer{address: o.Address, serverName: o.Controller, tokenFile: o.TokenFile},
	}
	store, err := openStore(o.Dir, o.Shared, s.secrets.set)
	if err != nil {
		return nil, err
	}
	s.holder = newHolder(subject{o.Identity, o.PodUID}, store, o.Timings, o.Log, o.Metrics)
	if s.provider = newRenewer(s.holder, s.signer, o.BundleFile); isIssuedByKubelet(o.CertificateDir) {
		s.provider = &receiver{holder: s.holder, dir: o.CertificateDir}
	}
	return s, nil
}

// Run keeps the identity files up to date until ctx ends. It calls renewed after each
// replacement of the files but the first.
func (s *Source) Run(ctx context.Context, renewed func()) {
	s.holder.onRenewed = renewed
	s.provider.run(ctx)
}

// Ready returns a channel that is closed once the identity files exist.
func (s *Source) Ready() <-chan struct{} { return s.holder.ready }

// Expiry returns when the certificate expires, in Unix seconds; 0 before there is one.
func (s *Source) Expiry() int64 { return s.holder.expiry.Load() }

// Check returns an error if there is no certificate or, unless it may be, if it has expired.
func (s *Source) Check(mayBeExpired bool) error {
	expiry := s.Expiry()
	switch {
	case expiry == 0:
		return errors.New("the pod has no certificate yet")
	case !mayBeExpired && expiry <= time.Now().Unix():
		return fmt.Errorf("the pod's certificate expired at %s", time.Unix(expiry, 0).UTC().Format(time.RFC3339))
	}
	return nil
}

// RenewEarly brings the next renewal forward, because the certificate or the trust bundle may
// be outdated. It may be called at any rate.
func (s *Source) RenewEarly() { s.provider.renewEarly() }

// Digest returns a digest of the identity files, which changes with each of them.
func (s *Source) Digest() (string, error) {
	m, err := s.holder.store.read()
	if err != nil {
		return "", err
	}
	return m.digest(), nil
}

// ClientTLS returns a TLS configuration with the current identity files. It presents the pod's
// certificate and verifies the server by the trust bundle and the name: the name matters because
// the mesh's roots sign every pod's certificate.
func (s *Source) ClientTLS(serverName string) (*tls.Config, error) {
	m, err := s.holder.store.read()
	if err != nil {
		return nil, fmt.Errorf("reading the identity files: %w", err)
	}
	roots, err := parseRoots(m.bundle)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", bundleFile, err)
	}
	pair, err := tls.X509KeyPair(m.chain, m.key)
	if err != nil {
		return nil, errors.New("the key does not match the certificate")
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: roots.Pool(), ServerName: serverName,
		Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"},
	}, nil
}

// SecretServer returns a server of the secret discovery service, for the proxy. It does not
// authenticate clients; its listener must.
func (s *Source) SecretServer() *grpc.Server { return s.secrets.server() }

// reportTimeout is how long a report may take.
const reportTimeout = 30 * time.Second

// Report sends the controller a report about the proxy.
func (s *Source) Report(ctx context.Context, report *identityv1.ReportRequest) error {
	roots, err := s.roots()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	return s.signer.call(ctx, roots, nil, func(ctx context.Context, client identityv1.IdentityClient) error {
		_, err := client.Report(ctx, report)
		return err
	})
}

// Learn asks the controller whether an address is in the mesh.
func (s *Source) Learn(ctx context.Context, address netip.AddrPort) (bool, error) {
	roots, err := s.roots()
	if err != nil {
		return false, err
	}
	var inMesh bool
	err = s.signer.call(ctx, roots, nil, func(ctx context.Context, client identityv1.IdentityClient) error {
		answer, err := client.Learn(ctx, &identityv1.LearnRequest{Address: address.String()})
		inMesh = answer.GetInMesh()
		return err
	})
	return inMesh, err
}

// roots returns the roots of the identity files, which verify the controller.
func (s *Source) roots() (*x509.CertPool, error) {
	m, err := s.holder.store.read()
	if err != nil {
		return nil, err
	}
	roots, err := parseRoots(m.bundle)
	if err != nil {
		return nil, fmt.Errorf("the trust bundle: %w", err)
	}
	return roots.Pool(), nil
}
