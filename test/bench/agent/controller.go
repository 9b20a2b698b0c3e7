package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// host is the controller's name.
const host = "outrigger-controller.osm-system.svc"

// life is the validity of certificates.
const life = 3 * time.Second

// controller is a signing service that signs every request.
type controller struct {
	identityv1.UnimplementedIdentityServer
	address string
	key     *ecdsa.PrivateKey
	root    *x509.Certificate
	issued  atomic.Int64
	server  *grpc.Server
}

func startController() (*controller, error) {
	root, key, err := pki.NewCA("bench", time.Hour)
	if err != nil {
		return nil, err
	}
	c := &controller{key: key, root: root}
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
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{{Certificate: [][]byte{own.Raw}, PrivateKey: key}},
	})))
	identityv1.RegisterIdentityServer(c.server, c)
	go c.server.Serve(listener)
	return c, nil
}

func (c *controller) stop() { c.server.Stop() }

func (c *controller) sign(template *x509.Certificate, public any, life time.Duration) (*x509.Certificate, error) {
	template.SerialNumber = pki.Serial()
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(life)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	return pki.Sign(template, c.root, public, c.key)
}

// Sign implements the signing service.
func (c *controller) Sign(_ context.Context, r *identityv1.SignRequest) (*identityv1.SignResponse, error) {
	request, err := x509.ParseCertificateRequest(r.GetCsr())
	if err != nil {
		return nil, err
	}
	certificate, err := c.sign(&x509.Certificate{Subject: request.Subject, URIs: request.URIs, DNSNames: request.DNSNames}, request.PublicKey, life)
	if err != nil {
		return nil, err
	}
	c.issued.Add(1)
	return &identityv1.SignResponse{Chain: pki.Encode(certificate), Bundle: pki.Encode(c.root)}, nil
}
