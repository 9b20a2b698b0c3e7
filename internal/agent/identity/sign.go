package identity

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// failure is the error of an attempt to obtain a certificate. The log and the metrics
// classify failures by the reason.
type failure struct {
	reason string
	err    error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// Reasons of failures besides the signing service's gRPC codes.
const (
	noBundle  = "no_bundle"
	badToken  = "token"
	badAnswer = "answer"
	noStore   = "files"
	internal  = "internal"
)

// signer is this pod's client of the signing service.
type signer struct {
	// address is host and port; serverName is the name that its certificate must have.
	address, serverName string
	// tokenFile is read for each call, because the kubelet replaces it.
	tokenFile string
}

// sign requests a certificate. It tries the root pools in order until one verifies the
// service, and returns the index of that pool.
func (s *signer) sign(ctx context.Context, request []byte, pools []*x509.CertPool) (answer *identityv1.SignResponse, pool int, err error) {
	for pool = range pools {
		err = s.call(ctx, pools[pool], signExchange, func(ctx context.Context, client identityv1.IdentityClient) error {
			answer, err = client.Sign(ctx, &identityv1.SignRequest{Csr: request})
			return err
		})
		if !errors.Is(err, errUnverified) {
			break
		}
	}
	return answer, pool, err
}

// errUnverified means that the roots do not verify the server. The token was not sent to
// it.
var errUnverified = errors.New("it is not verified by the known roots")

// signExchange is the key exchange of signing requests. It costs the controller a third of
// the default one, which also protects against a later quantum computer. That is of no use
// here: what a signing request contains is public, except for the token, which expires.
var signExchange = []tls.CurveID{tls.CurveP256}

// call makes one call, authenticated as this pod. Each call uses a new connection: the next
// one is hours away, and an idle connection would cost memory in every pod and in the
// controller. The key exchange is one of those given, or by default of package tls's. The
// error wraps errUnverified if the roots do not verify the service.
func (s *signer) call(ctx context.Context, roots *x509.CertPool, exchange []tls.CurveID, do func(context.Context, identityv1.IdentityClient) error) error {
	token, err := readToken(s.tokenFile)
	if err != nil {
		return &failure{badToken, err}
	}
	transport := &verifyingTransport{TransportCredentials: credentials.NewTLS(&tls.Config{
		RootCAs: roots, ServerName: s.serverName, MinVersion: tls.VersionTLS13, CurvePreferences: exchange,
	})}
	conn, err := grpc.NewClient("passthrough:///"+s.address,
		grpc.WithTransportCredentials(transport),
		// Proxy variables in the environment are not meant for the agent.
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxBundle)))
	if err != nil {
		return &failure{internal, fmt.Errorf("signing service %s: %w", s.address, err)}
	}
	defer conn.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	err = do(ctx, identityv1.NewIdentityClient(conn))
	switch {
	case err == nil:
		return nil
	case transport.unverified.Load():
		return &failure{kit.CodeName(status.Code(err)), fmt.Errorf("signing service %s: %w: %w", s.address, errUnverified, err)}
	}
	return &failure{kit.CodeName(status.Code(err)), fmt.Errorf("signing service %s: %w", s.address, err)}
}

// verifyingTransport records whether verifying the server's certificate failed, because
// gRPC reports that as text only.
type verifyingTransport struct {
	credentials.TransportCredentials
	unverified atomic.Bool
}

// ClientHandshake is for credentials.TransportCredentials.
func (v *verifyingTransport) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := v.TransportCredentials.ClientHandshake(ctx, authority, conn)
	v.unverified.Store(IsUnverified(err))
	return secure, info, err
}

// Clone is for credentials.TransportCredentials. It returns v itself, because gRPC dials
// with the clone.
func (v *verifyingTransport) Clone() credentials.TransportCredentials { return v }

// maxBundle limits the size of an answer; a trust bundle in a ConfigMap is smaller.
const maxBundle = 1 << 20

func readToken(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("reading the service account's token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("the service account's token in %s is empty or malformed", file)
	}
	return token, nil
}

// subject is what the pod's certificates must name.
type subject struct {
	identity mesh.Identity
	podUID   string
}

// names are those that the pod's certificates must have.
func (s *subject) names() pki.Names {
	return pki.Names{CommonName: s.identity.CommonName(), Unit: s.podUID, URIs: []string{s.identity.String()}, DNS: []string{s.identity.DNSName()}}
}

// request returns a certificate request for exactly the subject's names, as DER.
func (s *subject) request(key crypto.Signer) ([]byte, error) { return s.names().Request(key) }

// checkLeaf checks that the first certificate of a chain is for the key, has exactly the
// subject's names and is not a CA's.
func (s *subject) checkLeaf(chain []*x509.Certificate, key crypto.PublicKey) error {
	leaf := chain[0]
	if !pki.SameKey(leaf.PublicKey, key) {
		return errors.New("the certificate is not for the pod's key")
	}
	names, err := pki.NamesOf(leaf)
	if err != nil {
		return fmt.Errorf("the certificate is not for the pod's names: %w", err)
	}
	if d := names.Differ(s.names()); d != "" {
		return fmt.Errorf("the certificate is not for the pod's names: it has %s", d)
	}
	if leaf.IsCA {
		return errors.New("the certificate is a CA's")
	}
	return nil
}

// verify returns an error if peers that trust the roots would reject the chain now.
func verify(chain []*x509.Certificate, roots pki.Bundle) error {
	if err := roots.Verify(chain, x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth); err != nil {
		return fmt.Errorf("the trust bundle does not verify the certificate: %w", err)
	}
	return nil
}

// IsUnverified reports whether an error means that the identity files do not verify the
// server, so newer files may help.
func IsUnverified(err error) bool {
	var unverified *tls.CertificateVerificationError
	return errors.As(err, &unverified)
}
