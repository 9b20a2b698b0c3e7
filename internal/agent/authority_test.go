package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// authority is a CA for tests.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{key, cert}
}

// bundleOf returns the trust bundle of authorities as PEM.
func bundleOf(authorities ...*authority) []byte {
	var roots []*x509.Certificate
	for _, a := range authorities {
		roots = append(roots, a.cert)
	}
	return pki.NewBundle(roots...).Encode()
}

// intermediate returns a CA signed by the authority that expires soon.
func (a *authority) intermediate(t testing.TB, life time.Duration) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "intermediate"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{key, cert}
}

func certPEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// issue signs a certificate made from the template.
func (a *authority) issue(template *x509.Certificate, public any, life time.Duration) ([]byte, error) {
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(life)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	if template.ExtKeyUsage == nil {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	}
	return x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
}

// server returns a certificate for a host.
func (a *authority) server(t testing.TB, host string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := a.issue(&x509.Certificate{DNSNames: []string{host}}, key.Public(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// signingService is a controller that signs all requests.
type signingService struct {
	identityv1.UnimplementedIdentityServer
	address, host string

	mu sync.Mutex
	// signer signs workload certificates; bundle is returned with them.
	signer *authority
	bundle []byte
	life   time.Duration
	// above are the further certificates of the chain, as PEM.
	above []byte
	// refuse, if set, is the answer; change modifies the certificate to sign.
	refuse error
	change func(*x509.Certificate)
	tokens []string
	server *grpc.Server
	// reports are the received reports about the proxy.
	reports []*identityv1.ReportRequest
	// exchanges are the key exchanges of the latest connections, by method.
	exchanges map[string]tls.CurveID
}

// connected records the key exchange of a call. The caller holds mu.
func (s *signingService) connected(ctx context.Context, method string) {
	from, _ := peer.FromContext(ctx)
	if s.exchanges == nil {
		s.exchanges = make(map[string]tls.CurveID)
	}
	s.exchanges[method] = from.AuthInfo.(credentials.TLSInfo).State.CurveID
}

const controllerHost = "outrigger-controller.osm-system.svc"

func newSigningService(t testing.TB, address string, a *authority) *signingService {
	t.Helper()
	s := &signingService{address: address, host: controllerHost, signer: a, bundle: bundleOf(a), life: time.Hour}
	t.Cleanup(s.stop)
	return s
}

// start serves with a certificate of the authority.
func (s *signingService) start(t testing.TB, a *authority) {
	t.Helper()
	listener, err := net.Listen("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{a.server(t, s.host)}, MinVersion: tls.VersionTLS13})))
	identityv1.RegisterIdentityServer(server, s)
	s.set(func() { s.server = server })
	go server.Serve(listener)
}

func (s *signingService) stop() {
	s.mu.Lock()
	server := s.server
	s.mu.Unlock()
	if server != nil {
		server.Stop()
	}
}

// set changes how the service behaves.
func (s *signingService) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// asked returns the received tokens, in order.
func (s *signingService) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.tokens...)
}

func (s *signingService) Report(ctx context.Context, r *identityv1.ReportRequest) (*identityv1.ReportResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connected(ctx, "Report")
	s.reports = append(s.reports, r)
	return &identityv1.ReportResponse{}, nil
}

// lastReport returns the latest report and the number of reports.
func (s *signingService) lastReport() (*identityv1.ReportRequest, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.reports) == 0 {
		return nil, 0
	}
	return s.reports[len(s.reports)-1], len(s.reports)
}

func (s *signingService) Sign(ctx context.Context, r *identityv1.SignRequest) (*identityv1.SignResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connected(ctx, "Sign")
	md, _ := metadata.FromIncomingContext(ctx)
	s.tokens = append(s.tokens, md.Get("authorization")...)
	if s.refuse != nil {
		return nil, s.refuse
	}
	request, err := x509.ParseCertificateRequest(r.GetCsr())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := request.CheckSignature(); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	template := &x509.Certificate{Subject: request.Subject, URIs: request.URIs, DNSNames: request.DNSNames}
	if s.change != nil {
		s.change(template)
	}
	public := request.PublicKey
	if template.PublicKey != nil {
		public = template.PublicKey
	}
	der, err := s.signer.issue(template, public, s.life)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &identityv1.SignResponse{Chain: append(certPEM(der), s.above...), Bundle: s.bundle}, nil
}

// newKeyPEM returns a private key in the format of the identity files.
func newKeyPEM() ([]byte, error) {
	key, err := pki.NewKey()
	if err != nil {
		return nil, err
	}
	return pki.EncodeKey(key)
}
