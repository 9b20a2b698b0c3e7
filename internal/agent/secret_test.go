package agent

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// secretStream is a proxy's stream of secrets.
type secretStream struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]
	last   *discoveryv3.DiscoveryResponse
}

// secretsOf opens a stream to the agent of a pod whose Spec has secrets.
func secretsOf(p *pod) *secretStream {
	p.t.Helper()
	conn, err := grpc.NewClient("unix:"+p.spec.Secrets.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	p.t.Cleanup(func() { cancel(); conn.Close() })
	stream, err := secretv3.NewSecretDiscoveryServiceClient(conn).StreamSecrets(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	return &secretStream{t: p.t.(*testing.T), stream: stream}
}

// ask sends a request as a real proxy does; the first one contains its build version.
func (s *secretStream) ask(refusal string, names ...string) {
	s.t.Helper()
	r := &discoveryv3.DiscoveryRequest{TypeUrl: "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", ResourceNames: names}
	if s.last == nil {
		r.Node = &corev3.Node{Id: podUID, UserAgentName: strings.Repeat("x", 100<<10)}
	} else {
		r.VersionInfo, r.ResponseNonce = s.last.VersionInfo, s.last.Nonce
	}
	if refusal != "" {
		r.ErrorDetail = &status.Status{Code: int32(codes.InvalidArgument), Message: refusal}
	}
	if err := s.stream.Send(r); err != nil {
		s.t.Fatal(err)
	}
}

// next returns the secrets of the next response.
func (s *secretStream) next() map[string]*tlsv3.Secret {
	s.t.Helper()
	r, err := s.stream.Recv()
	if err != nil {
		s.t.Fatal(err)
	}
	s.last = r
	secrets := map[string]*tlsv3.Secret{}
	for _, resource := range r.Resources {
		secret := new(tlsv3.Secret)
		if err := resource.UnmarshalTo(secret); err != nil {
			s.t.Fatal(err)
		}
		if err := secret.ValidateAll(); err != nil {
			s.t.Error(err)
		}
		secrets[secret.Name] = secret
	}
	return secrets
}

// newSecretPod returns a pod whose Spec has secrets.
func newSecretPod(t *testing.T) *pod {
	p := newPod(t)
	p.spec.Secrets = &agentspec.Secrets{Socket: p.path("identity/sds.sock")}
	return p
}

// isOf reports whether secrets match the identity files.
func (p *pod) isOf(secrets map[string]*tlsv3.Secret) bool {
	p.t.Helper()
	pair := secrets["identity"].GetTlsCertificate()
	_, err := tls.X509KeyPair(pair.GetCertificateChain().GetInlineBytes(), pair.GetPrivateKey().GetInlineBytes())
	return err == nil && len(secrets) == 2 &&
		string(pair.GetCertificateChain().GetInlineBytes()) == p.read("identity/chain.pem") &&
		string(secrets["bundle"].GetValidationContext().GetTrustedCa().GetInlineBytes()) == p.read("identity/bundle.pem")
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	p := newSecretPod(t)
	p.service.life = 3 * time.Second
	p.serve()
	p.start()
	p.untilReady()
	s := secretsOf(p)
	s.ask("", "identity", "bundle")
	first := s.next()
	if !p.isOf(first) {
		t.Errorf("the secrets %v are not what is in the files", s.last)
	}
	// A renewal with a new root is one update.
	next := newAuthority(t, "next")
	p.service.set(func() { p.service.bundle = bundleOf(p.ca, next) })
	s.ask("", "identity", "bundle")
	second := s.next()
	if !p.isOf(second) {
		t.Errorf("the secrets after a renewal are not what is in the files")
	}
	if was, is := first["bundle"].String(), second["bundle"].String(); was == is {
		t.Error("the identity came without the root that was answered with it")
	}
	// A stream of one secret gets only that one. A rejected secret is not sent again.
	p.service.set(func() { p.service.life = time.Hour })
	alone := secretsOf(p)
	alone.ask("", "bundle")
	if got := alone.next(); len(got) != 1 || got["bundle"] == nil {
		t.Errorf("the bundle alone came as %v", got)
	}
	alone.ask("no such\ncurve\x1b[31m", "bundle")
	p.until("logged in one line", func() bool { return strings.Contains(p.log.String(), `"error":"no such curve [31m"`) })
	if strings.Contains(p.log.String(), "PRIVATE KEY") {
		t.Error("the key is in the log")
	}
}

func TestSecretsThatAreNot(t *testing.T) {
	t.Parallel()
	p := newSecretPod(t)
	p.serve()
	p.start()
	p.untilReady()
	for _, tt := range []struct {
		request *discoveryv3.DiscoveryRequest
		want    codes.Code
	}{
		{&discoveryv3.DiscoveryRequest{TypeUrl: "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", ResourceNames: []string{"identity", "other"}}, codes.NotFound},
		{&discoveryv3.DiscoveryRequest{TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"}, codes.InvalidArgument},
	} {
		s := secretsOf(p)
		if err := s.stream.Send(tt.request); err != nil {
			t.Fatal(err)
		}
		if _, err := s.stream.Recv(); grpcstatus.Code(err) != tt.want {
			t.Errorf("%v is answered with %v, want %v", tt.request, err, tt.want)
		}
	}
}

// TestSecretsAreTheProxysOnly lets other users connect, also with a permissive socket mode.
func TestSecretsAreTheProxysOnly(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: to be another user needs root")
	}
	p := newSecretPod(t)
	p.serve()
	p.start()
	p.untilReady()
	socket := p.spec.Secrets.Socket
	if info, err := os.Stat(socket); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("the socket's mode is %v, %v; want one that its user only may use", info.Mode(), err)
	}
	for _, path := range []string{filepath.Dir(p.dir), p.dir, p.path("identity")} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile(p.self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.path("dialer"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	open := func() {
		if err := os.Chmod(socket, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		how  string
		do   func()
		want string
	}{
		{"by the mode", func() {}, "permission denied"},
		{"with the mode changed", open, "nothing"},
	} {
		tt.do()
		cmd := exec.Command(p.path("dialer"), asDialer, socket)
		asUser(cmd, 65534)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), tt.want) {
			t.Errorf("%s: another user reads %q, %v; want %q", tt.how, out, err, tt.want)
		}
	}
	secretsOf(p).ask("", "identity")
}

// dialerMain connects to a socket and prints the result.
func dialerMain(socket string) (result string) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(deadline))
	// The HTTP/2 preface, which a server answers with its settings.
	_, _ = conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
	n, err := conn.Read(make([]byte, 64))
	if n > 0 {
		return "an answer"
	}
	if os.IsTimeout(err) {
		return "a connection"
	}
	return "nothing"
}

// asUser makes a command run as another user without groups.
func asUser(cmd *exec.Cmd, uid uint32) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
}
