package envoy

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"
)

// agentSecrets serves the files of a directory as the agent does, also after they are
// swapped.
type agentSecrets struct {
	secretv3.UnimplementedSecretDiscoveryServiceServer
	dir string
}

// serveSecretsLikeTheAgent listens on the socket in the identity directory until the
// test ends.
func serveSecretsLikeTheAgent(t *testing.T, dir string) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(dir, secretSocket))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	secretv3.RegisterSecretDiscoveryServiceServer(server, agentSecrets{dir: dir})
	go server.Serve(listener)
	t.Cleanup(server.Stop)
}

func (a agentSecrets) StreamSecrets(stream secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	requests := make(chan *discoveryv3.DiscoveryRequest)
	go func() {
		defer close(requests)
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			requests <- r
		}
	}()
	var names []string
	sent := ""
	for number := 1; ; {
		select {
		case r, ok := <-requests:
			if !ok {
				return nil
			}
			if r.ErrorDetail != nil {
				return errors.New(r.ErrorDetail.Message)
			}
			names = r.ResourceNames
		case <-time.After(20 * time.Millisecond):
		}
		version, err := os.Readlink(filepath.Join(a.dir, "..data"))
		if err != nil {
			return err
		}
		if version == sent || len(names) == 0 {
			continue
		}
		response := &discoveryv3.DiscoveryResponse{TypeUrl: secretType, VersionInfo: version, Nonce: strconv.Itoa(number)}
		for _, name := range names {
			secret, err := a.secret(name, version)
			if err != nil {
				return err
			}
			response.Resources = append(response.Resources, secret)
		}
		if err := stream.Send(response); err != nil {
			return err
		}
		sent = version
		number++
	}
}

func (a agentSecrets) secret(name, version string) (*anypb.Any, error) {
	var failed error
	inline := func(file string) *corev3.DataSource {
		text, err := os.ReadFile(filepath.Join(a.dir, version, file))
		failed = errors.Join(failed, err)
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: text}}
	}
	secret := &tlsv3.Secret{Name: name}
	switch name {
	case "identity":
		secret.Type = &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline("chain.pem"), PrivateKey: inline("key.pem")}}
	case "bundle":
		secret.Type = &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline("bundle.pem")}}
	default:
		return nil, io.ErrUnexpectedEOF
	}
	if failed != nil {
		return nil, failed
	}
	return anypb.New(secret)
}
