package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/internal/protofield"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// sign obtains a certificate for each client from the signing service, each over a
// connection of its own as agents do, 16 at a time.
func (f *fleet) sign() ([]time.Duration, error) {
	settings := f.identitySettings()
	took := make([]time.Duration, len(f.clients))
	var group errgroup.Group
	group.SetLimit(16)
	for i, c := range f.clients {
		group.Go(func() error {
			began := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			certificate, err := f.signFor(ctx, &c.pod, settings, c.dial, grpc.WaitForReady(true))
			if err != nil {
				return fmt.Errorf("%s: %w", c.pod.Name, err)
			}
			took[i] = time.Since(began)
			c.tls = settings.Clone()
			c.tls.Certificates = []tls.Certificate{*certificate}
			return nil
		})
	}
	err := group.Wait()
	slices.Sort(took)
	return took, err
}

// signFor obtains a certificate for a pod over a new connection.
func (f *fleet) signFor(ctx context.Context, pod *Pod, settings *tls.Config, dial func(context.Context, string) (net.Conn, error), options ...grpc.CallOption) (*tls.Certificate, error) {
	identity := mesh.Identity{TrustDomain: "cluster.local", Namespace: pod.Namespace, ServiceAccount: pod.ServiceAccount}
	key, err := pki.NewKey()
	if err != nil {
		return nil, err
	}
	names := pki.Names{CommonName: identity.CommonName(), Unit: pod.UID, URIs: []string{identity.String()}, DNS: []string{identity.DNSName()}}
	der, err := names.Request(key)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("passthrough:///"+f.Identity, grpc.WithTransportCredentials(credentials.NewTLS(settings)), grpc.WithContextDialer(dial))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+pod.Token)
	if f.Istio {
		chain, err := signByIstio(ctx, conn, der, options...)
		if err != nil {
			return nil, err
		}
		return certificateOf(chain, key)
	}
	answer, err := identityv1.NewIdentityClient(conn).Sign(ctx, &identityv1.SignRequest{Csr: der}, options...)
	if err != nil {
		return nil, err
	}
	return certificateOf(answer.GetChain(), key)
}

// signByIstio asks istiod for a certificate. The request of IstioCertificateService has the
// certificate request as PEM in its first field, and the answer the certificates, the
// client's first, in its first field.
func signByIstio(ctx context.Context, conn *grpc.ClientConn, der []byte, options ...grpc.CallOption) ([]byte, error) {
	csr := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	request := frame(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), csr))
	var answer frame
	err := conn.Invoke(ctx, "/istio.v1.auth.IstioCertificateService/CreateCertificate", request, &answer, append(options, grpc.ForceCodecV2(codec{}))...)
	if err != nil {
		return nil, err
	}
	var chain []byte
	err = protofield.Each(answer, func(number protowire.Number, value []byte) error {
		if number == 1 {
			chain = append(append(chain, value...), '\n')
		}
		return nil
	})
	if err == nil && len(chain) == 0 {
		err = errors.New("istiod's answer has no certificate")
	}
	return chain, err
}

func certificateOf(chain []byte, key *ecdsa.PrivateKey) (*tls.Certificate, error) {
	parsed, err := pki.Parse(chain)
	if err != nil {
		return nil, err
	}
	out := &tls.Certificate{PrivateKey: key, Leaf: parsed[0]}
	for _, c := range parsed {
		out.Certificate = append(out.Certificate, c.Raw)
	}
	return out, nil
}
