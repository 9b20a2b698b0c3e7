package agent

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
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

// sign asks for a certificate. The connection lasts for one call: the next is hours
// away, and an idle one would cost memory in every pod.
func (s *signer) sign(ctx context.Context, request []byte, roots *x509.CertPool) (*identityv1.SignResponse, error) {
	token, err := readToken(s.tokenFile)
	if err != nil {
		return nil, &failure{badToken, err}
	}
	conn, err := grpc.NewClient("passthrough:///"+s.address,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			RootCAs: roots, ServerName: s.serverName, MinVersion: tls.VersionTLS13,
		})),
		// What is outside of the mesh is none of the agent's business.
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxBundle)))
	if err != nil {
		return nil, &failure{internal, fmt.Errorf("signing service %s: %w", s.address, err)}
	}
	defer conn.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	answer, err := identityv1.NewIdentityClient(conn).Sign(ctx, &identityv1.SignRequest{Csr: request})
	if err != nil {
		return nil, &failure{codeName(status.Code(err)), fmt.Errorf("signing service %s: %w", s.address, err)}
	}
	return answer, nil
}

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

// newKey returns a private key, and as PEM.
func newKey() (*ecdsa.PrivateKey, keyPEM, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding the key: %w", err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
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
	public, ok := leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(key) {
		return nil, errors.New("the certificate is for another key than the pod's")
	}
	var uris []string
	for _, u := range leaf.URIs {
		uris = append(uris, u.String())
	}
	for _, name := range []struct {
		what      string
		got, want []string
	}{
		{"URI", uris, []string{s.identity.String()}},
		{"DNS name", leaf.DNSNames, []string{s.identity.DNSName()}},
		{"common name", []string{leaf.Subject.CommonName}, []string{s.identity.CommonName()}},
		{"organizational unit", leaf.Subject.OrganizationalUnit, []string{s.podUID}},
	} {
		if !slices.Equal(name.got, name.want) {
			return nil, fmt.Errorf("the certificate has the %s %q, want %q", name.what, name.got, name.want)
		}
	}
	if len(leaf.IPAddresses)+len(leaf.EmailAddresses) > 0 || leaf.IsCA {
		return nil, errors.New("the certificate is good for more than the pod's identity")
	}
	return leaf, nil
}

// verify returns an error if peers who trust the roots would refuse the chain now.
func verify(chain []*x509.Certificate, roots *x509.CertPool) error {
	options := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
	for _, cert := range chain[1:] {
		options.Intermediates.AddCert(cert)
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		options.KeyUsages = []x509.ExtKeyUsage{use}
		if _, err := chain[0].Verify(options); err != nil {
			return fmt.Errorf("the trust bundle does not verify the certificate: %w", err)
		}
	}
	return nil
}

// endOf returns when the first certificate of a chain ends.
func endOf(chain []*x509.Certificate) time.Time {
	end := chain[0].NotAfter
	for _, cert := range chain[1:] {
		if cert.NotAfter.Before(end) {
			end = cert.NotAfter
		}
	}
	return end
}
