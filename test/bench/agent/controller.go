package main

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
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
)

// host is the controller's name.
const host = "outrigger-controller.osm-system.svc"

// life is the validity of certificates.
const life = 3 * time.Second

// controller is a signing service that signs every request.
type controller struct {
	identityv1.UnimplementedIdentityServer
	address string
	bundle  []byte
	key     *ecdsa.PrivateKey
	root    *x509.Certificate
	issued  atomic.Int64
	server  *grpc.Server
}

func startController() (*controller, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	c := &controller{key: key, root: &x509.Certificate{
		Subject: pkix.Name{CommonName: "bench"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	der, err := c.sign(c.root, key.Public(), time.Hour)
	if err != nil {
		return nil, err
	}
	if c.root, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	c.bundle = encode(der)
	own, err := c.sign(&x509.Certificate{DNSNames: []string{host}}, key.Public(), time.Hour)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c.address = listener.Addr().String()
	c.server = grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{{Certificate: [][]byte{own}, PrivateKey: key}},
	})))
	identityv1.RegisterIdentityServer(c.server, c)
	go c.server.Serve(listener)
	return c, nil
}

func (c *controller) stop() { c.server.Stop() }

func (c *controller) sign(template *x509.Certificate, public any, life time.Duration) ([]byte, error) {
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(life)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	return x509.CreateCertificate(rand.Reader, template, c.root, public, c.key)
}

// Sign implements the signing service.
func (c *controller) Sign(_ context.Context, r *identityv1.SignRequest) (*identityv1.SignResponse, error) {
	request, err := x509.ParseCertificateRequest(r.GetCsr())
	if err != nil {
		return nil, err
	}
	der, err := c.sign(&x509.Certificate{Subject: request.Subject, URIs: request.URIs, DNSNames: request.DNSNames}, request.PublicKey, life)
	if err != nil {
		return nil, err
	}
	c.issued.Add(1)
	return &identityv1.SignResponse{Chain: encode(der), Bundle: c.bundle}, nil
}

func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
