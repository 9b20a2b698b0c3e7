package agent

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// failure is why there is no new certificate. Its reason is what the log and the
// metrics tell failures apart by.
type failure struct {
	reason string
	err    error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// The reasons of failures that are not a gRPC code of the signing service.
const (
	noBundle  = "no_bundle"
	badToken  = "token"
	badAnswer = "answer"
	noStore   = "files"
	internal  = "internal"
)

// signer is the signing service, as this pod calls it.
type signer struct {
	// address is host and port, and serverName whom its certificate must be made out to.
	address, serverName string
	// tokenFile is read for each call, since the kubelet replaces it.
	tokenFile string
}

// sign asks for a certificate over a connection that one of the pools verifies, each of
// which is tried only if the ones before it do not verify the service. It returns which
// one did.
func (s *signer) sign(ctx context.Context, request []byte, contacts []*x509.CertPool) (answer *identityv1.SignResponse, by int, err error) {
	for by = range contacts {
		err = s.call(ctx, contacts[by], func(ctx context.Context, client identityv1.IdentityClient) error {
			answer, err = client.Sign(ctx, &identityv1.SignRequest{Csr: request})
			return err
		})
		if !errors.Is(err, errStranger) {
			break
		}
	}
	return answer, by, err
}

// errStranger says that the roots do not verify whoever answered. It has not seen the
// token.
var errStranger = errors.New("it is not verified by what is known")

// call makes one call, as this pod. The connection lasts for it only: the next is hours
// away, and an idle one would cost memory in every pod. The error wraps errStranger if the
// roots do not verify the service.
func (s *signer) call(ctx context.Context, roots *x509.CertPool, do func(context.Context, identityv1.IdentityClient) error) error {
	token, err := readToken(s.tokenFile)
	if err != nil {
		return &failure{badToken, err}
	}
	transport := &verified{TransportCredentials: credentials.NewTLS(&tls.Config{
		RootCAs: roots, ServerName: s.serverName, MinVersion: tls.VersionTLS13,
	})}
	conn, err := grpc.NewClient("passthrough:///"+s.address,
		grpc.WithTransportCredentials(transport),
		// What is outside of the mesh is none of the agent's business.
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
	case transport.stranger.Load():
		return &failure{codeName(status.Code(err)), fmt.Errorf("signing service %s: %w: %w", s.address, errStranger, err)}
	}
	return &failure{codeName(status.Code(err)), fmt.Errorf("signing service %s: %w", s.address, err)}
}

// verified notes that a server's certificate was not verified, which gRPC tells as text
// only.
type verified struct {
	credentials.TransportCredentials
	stranger atomic.Bool
}

// ClientHandshake is for credentials.TransportCredentials.
func (v *verified) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := v.TransportCredentials.ClientHandshake(ctx, authority, conn)
	var unverified *tls.CertificateVerificationError
	v.stranger.Store(errors.As(err, &unverified))
	return secure, info, err
}

// Clone is for credentials.TransportCredentials. gRPC dials with the clone, so it is the
// same one.
func (v *verified) Clone() credentials.TransportCredentials { return v }

// codeName returns a gRPC code as metrics word it.
func codeName(code codes.Code) string {
	var b strings.Builder
	for i, r := range code.String() {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}

// maxBundle is more than a trust bundle may be in a ConfigMap.
const maxBundle = 1 << 20

func readToken(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("reading the service account's token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("the service account's token in %s is empty, or not a token", file)
	}
	return token, nil
}

// subject is whom certificates of this pod must be made out to.
type subject struct {
	identity mesh.Identity
	podUID   string
}

// request returns a certificate request for exactly the names that are due, as DER.
func (s *subject) request(key crypto.Signer) ([]byte, error) {
	uri, err := url.Parse(s.identity.String())
	if err != nil {
		return nil, fmt.Errorf("identity %s: %w", s.identity, err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: s.identity.CommonName(), OrganizationalUnit: []string{s.podUID}},
		URIs:     []*url.URL{uri},
		DNSNames: []string{s.identity.DNSName()},
	}, key)
	if err != nil {
		return nil, fmt.Errorf("making a certificate request for %s: %w", s.identity, err)
	}
	return der, nil
}

// leafOf returns the first certificate of a chain if it is made out to the subject, and
// to nobody else, and is for the key.
func (s *subject) leafOf(chain []*x509.Certificate, key crypto.PublicKey) (*x509.Certificate, error) {
	leaf := chain[0]
	if !pki.SameKey(leaf.PublicKey, key) {
		return nil, errors.New("the certificate is for another key than the pod's")
	}
	names, err := pki.NamesOf(leaf)
	if err != nil {
		return nil, fmt.Errorf("the certificate is not for the pod's names: %w", err)
	}
	want := pki.Names{CommonName: s.identity.CommonName(), Unit: s.podUID, URIs: []string{s.identity.String()}, DNS: []string{s.identity.DNSName()}}
	if d := names.Differ(want); d != "" {
		return nil, fmt.Errorf("the certificate is not for the pod's names: it has %s", d)
	}
	if leaf.IsCA {
		return nil, errors.New("the certificate is a CA's")
	}
	return leaf, nil
}

// verify returns an error if peers who trust the roots would refuse the chain now.
func verify(chain []*x509.Certificate, roots pki.Bundle) error {
	if err := roots.Verify(chain, x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth); err != nil {
		return fmt.Errorf("the trust bundle does not verify the certificate: %w", err)
	}
	return nil
}
