package servingcert_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/internal/servingcert"
)

var names = servingcert.Names{
	Service:   "outrigger-injector",
	Namespace: "mesh",
	Extra:     []string{"localhost", "127.0.0.1"},
}

// dueNames are all names that a certificate for names must have.
var dueNames = []string{
	"outrigger-injector",
	"outrigger-injector.mesh",
	"outrigger-injector.mesh.svc",
	"outrigger-injector.mesh.svc.cluster.local",
	"localhost",
	"127.0.0.1",
}

// testCA plays an external issuer of certificates.
type testCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newTestCA(t testing.TB, life time.Duration) *testCA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "test CA"},
		NotBefore:             time.Now().Add(-time.Second),
		NotAfter:              time.Now().Add(life),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &testCA{cert: cert, key: key, pem: certificatePEM(der)}
}

// sign signs a certificate for the key and the names.
func (ca *testCA) sign(t testing.TB, public any, life time.Duration, dns []string, ips []net.IP) []byte {
	t.Helper()
	template := &x509.Certificate{
		DNSNames:    dns,
		IPAddresses: ips,
		NotBefore:   time.Now().Add(-time.Second),
		NotAfter:    time.Now().Add(life),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, public, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	return certificatePEM(der)
}

// issue creates a key and a certificate for the names, or for all dueNames.
func (ca *testCA) issue(t testing.TB, life time.Duration, names ...string) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	if names == nil {
		names = dueNames
	}
	var dns []string
	var ips []net.IP
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			ips = append(ips, ip)
		} else {
			dns = append(dns, name)
		}
	}
	cert = ca.sign(t, private.Public(), life, dns, ips)
	return cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// material creates Material as an Issuer would.
func (ca *testCA) material(t testing.TB, life time.Duration, trusted ...*testCA) servingcert.Material {
	t.Helper()
	cert, key := ca.issue(t, life)
	return materialOf(t, cert, key, pemOf(append(trusted, ca)...))
}

func materialOf(t testing.TB, cert, key, bundle []byte) servingcert.Material {
	t.Helper()
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return servingcert.Material{Certificate: pair, CABundle: pki.Readable(bundle)}
}

func pemOf(cas ...*testCA) []byte {
	var out []byte
	for _, ca := range cas {
		out = append(out, ca.pem...)
	}
	return out
}

func certificatePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// serials makes bundles comparable in failure messages.
func serials(t testing.TB, bundle []byte) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if found[cert.SerialNumber.String()] {
			t.Errorf("the bundle holds certificate %s twice", cert.SerialNumber)
		}
		found[cert.SerialNumber.String()] = true
	}
	return found
}

func serialsOf(cas ...*testCA) map[string]bool {
	found := map[string]bool{}
	for _, ca := range cas {
		found[ca.cert.SerialNumber.String()] = true
	}
	return found
}

// handshake connects over a pipe, as a client that trusts the bundle and verifies the name.
func handshake(server *tls.Config, bundle []byte, name string, version uint16) error {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	left, right := net.Pipe()
	defer left.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer right.Close()
		_ = tls.Server(right, server).Handshake()
	}()
	err := tls.Client(left, &tls.Config{
		RootCAs:    pool,
		ServerName: name,
		MinVersion: version,
		MaxVersion: version,
	}).Handshake()
	left.Close()
	<-done
	return err
}
