package cli

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// peer is a fake agent and proxy: it gets a certificate for a token, and requests configuration
// with it.
type peer struct {
	host, token, uid string
	bundle           []byte
	identity         mesh.Identity
	certificate      *tls.Certificate
}

func (c *peer) tls(t *testing.T) *tls.Config {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(c.bundle) {
		t.Fatalf("no certificate in the bundle %q", c.bundle)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: "outrigger-controller." + controlPlane + ".svc"}
	if c.certificate != nil {
		config.Certificates = []tls.Certificate{*c.certificate}
	}
	return config
}

func (c *peer) dial(t *testing.T, port string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+net.JoinHostPort(c.host, port), grpc.WithTransportCredentials(credentials.NewTLS(c.tls(t))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// trySign gets the first certificate, or a new one.
func (c *peer) trySign(t *testing.T) error {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	names := pki.Names{CommonName: c.identity.CommonName(), Unit: c.uid, URIs: []string{c.identity.String()}, DNS: []string{c.identity.DNSName()}}
	csr, err := names.Request(key)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
	answer, err := identityv1.NewIdentityClient(c.dial(t, "15129")).Sign(ctx, &identityv1.SignRequest{Csr: csr})
	if err != nil {
		return err
	}
	if string(answer.GetBundle()) != string(c.bundle) {
		t.Errorf("the bundle of the answer is %s, and the published one %s", answer.GetBundle(), c.bundle)
	}
	c.certificate = &tls.Certificate{PrivateKey: key}
	for rest := answer.GetChain(); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil
		}
		c.certificate.Certificate = append(c.certificate.Certificate, block.Bytes)
	}
}

func (c *peer) sign(t *testing.T) {
	t.Helper()
	if err := c.trySign(t); err != nil {
		t.Fatal(err)
	}
}

const (
	clusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
)

// stream is a proxy's delta xDS stream.
type stream struct {
	discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	conn    *grpc.ClientConn
	uid     string
	answers chan answer
	failed  chan error
}

// answer is a response of the controller.
type answer struct {
	typeURL, nonce string
	names, removed []string
}

func (c *peer) connect(t *testing.T) *stream {
	t.Helper()
	return c.connectTo(t, "15128")
}

func (c *peer) connectTo(t *testing.T, port string) *stream {
	t.Helper()
	conn := c.dial(t, port)
	made, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context(), grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	s := &stream{made, conn, c.uid, make(chan answer, 100), make(chan error, 1)}
	go func() {
		for {
			r, err := s.Recv()
			if err != nil {
				s.failed <- err
				return
			}
			a := answer{typeURL: r.GetTypeUrl(), nonce: r.GetNonce(), removed: r.GetRemovedResources()}
			for _, resource := range r.GetResources() {
				a.names = append(a.names, resource.GetName())
			}
			s.answers <- a
		}
	}()
	return s
}

func (s *stream) close() { _ = s.conn.Close() }

func (s *stream) send(t *testing.T, request *discoveryv3.DeltaDiscoveryRequest) {
	t.Helper()
	if err := s.Send(request); err != nil {
		t.Fatal(err)
	}
}

// ask requests all resources of a type, and returns the first answer.
func (s *stream) ask(t *testing.T, typeURL string) answer {
	t.Helper()
	s.send(t, &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: s.uid}, TypeUrl: typeURL})
	return s.next(t, typeURL)
}

// next returns the next answer of the type, and accepts others.
func (s *stream) next(t *testing.T, typeURL string) answer {
	t.Helper()
	for {
		select {
		case a := <-s.answers:
			if a.typeURL == typeURL {
				return a
			}
			s.ack(t, a)
		case err := <-s.failed:
			t.Fatalf("the stream has ended: %v", err)
		case <-time.After(30 * time.Second):
			t.Fatalf("nothing of type %s comes", typeURL)
		}
	}
}

// fail requests all resources of a type and returns the error of the stream, or nil if there is
// an answer.
func (s *stream) fail(t *testing.T, typeURL string) error {
	t.Helper()
	s.send(t, &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: s.uid}, TypeUrl: typeURL})
	select {
	case <-s.answers:
		return nil
	case err := <-s.failed:
		return err
	case <-time.After(30 * time.Second):
		return fmt.Errorf("neither an answer nor an error")
	}
}

func (s *stream) ack(t *testing.T, a answer) {
	t.Helper()
	s.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: a.typeURL, ResponseNonce: a.nonce})
}

func (s *stream) nack(t *testing.T, a answer, message string) {
	t.Helper()
	s.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: a.typeURL, ResponseNonce: a.nonce, ErrorDetail: &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: message}})
}

// ackUntil acknowledges answers until one has the resource.
func (s *stream) ackUntil(t *testing.T, typeURL, name string) {
	t.Helper()
	for {
		a := s.next(t, typeURL)
		s.ack(t, a)
		if slices.Contains(a.names, name) {
			return
		}
	}
}

// ackAll acknowledges answers until the check passes.
func (s *stream) ackAll(t *testing.T, check func() error) {
	t.Helper()
	eventually(t, "taking all", func() error {
		for {
			select {
			case a := <-s.answers:
				s.ack(t, a)
				continue
			default:
			}
			return check()
		}
	})
}

// takeAll drops answers until the stream ends.
func (s *stream) takeAll() {
	for {
		select {
		case a := <-s.answers:
			if s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: a.typeURL, ResponseNonce: a.nonce}) != nil {
				return
			}
		case <-s.Context().Done():
			return
		}
	}
}
