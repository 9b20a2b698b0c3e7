package identity_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
)

// service is a signing service that runs on loopback.
type service struct {
	address  string
	manager  *identity.Manager
	registry *prometheus.Registry
	stop     func() error
}

// serve starts a service, which ends with the test.
func serve(t testing.TB, options identity.ServiceOptions) *service {
	t.Helper()
	s := &service{manager: options.Manager, registry: prometheus.NewRegistry()}
	options.Registerer = s.registry
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	serving, err := identity.NewService(options)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serving.Serve(ctx, listener) }()
	s.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return s
}

// client returns a client that verifies the service with the current bundle.
func (s *service) client(t testing.TB) identityv1.IdentityClient {
	t.Helper()
	config := &tls.Config{ServerName: serverName, RootCAs: pool(t, s.manager.TrustBundle())}
	conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return identityv1.NewIdentityClient(conn)
}

func bearer(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

func TestServiceSigns(t *testing.T) {
	t.Parallel()
	key := loadTokenKey(t, t.TempDir())
	a, b := newIssuer(t, "a"), newIssuer(t, "b")
	m := run(t, identity.Options{}, a, b)
	client := serve(t, identity.ServiceOptions{Manager: m, Reviewer: key}).client(t)
	csr, own := request(t, shopper)
	answer, err := client.Sign(bearer(t.Context(), mint(t, key, claims(shopper))), &identityv1.SignRequest{Csr: csr})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(m.TrustBundle()), string(answer.GetBundle())); diff != "" {
		t.Errorf("the bundle (-want +got):\n%s", diff)
	}
	leaf := pair(t, answer.GetChain(), own).Leaf
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool(t, answer.GetBundle()), DNSName: "web.v1.shop.sa.cluster.local", KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			t.Error(err)
		}
	}
	if leaf.URIs[0].String() != "spiffe://cluster.local/ns/shop/sa/web.v1" || leaf.Subject.String() != "CN=web.v1.shop,OU=7d8a3c" {
		t.Errorf("the certificate is for %v, %s", leaf.URIs, leaf.Subject)
	}
}

// TestServiceReports checks that a report is attributed to the token's pod, and that its
// untrusted texts are shortened to one line.
func TestServiceReports(t *testing.T) {
	t.Parallel()
	key := loadTokenKey(t, t.TempDir())
	type reported struct {
		w identity.Workload
		r identity.ProxyReport
	}
	reports := make(chan reported, 2)
	client := serve(t, identity.ServiceOptions{
		Manager: run(t, identity.Options{}, newIssuer(t, "a")), Reviewer: key,
		Report: func(_ context.Context, w identity.Workload, r identity.ProxyReport) { reports <- reported{w, r} },
	}).client(t)
	report := &identityv1.ReportRequest{Failing: true, How: "signal:\nSIGABRT", LastWords: strings.Repeat("é\x1b[2J ", 2000), Starts: 3}
	if _, err := client.Report(t.Context(), report); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a report without a token: %v", err)
	}
	if _, err := client.Report(bearer(t.Context(), mint(t, key, claims(shopper))), report); err != nil {
		t.Fatal(err)
	}
	got := <-reports
	if got.w.PodUID != shopper.PodUID || got.w.Pod != shopper.Pod || !got.r.Failing || got.r.How != "signal: SIGABRT" || got.r.Starts != 3 {
		t.Errorf("the report is %+v", got)
	}
	if words := got.r.LastWords; len(words) > 1<<10 || !strings.HasPrefix(words, "é [2J é") || !utf8.ValidString(words) {
		t.Errorf("the last words are %d bytes: %.40q", len(words), words)
	}
}

// reviewFunc is a TokenReviewer.
type reviewFunc func(ctx context.Context, token string) (identity.Workload, error)

func (f reviewFunc) Review(ctx context.Context, token string) (identity.Workload, error) {
	return f(ctx, token)
}

func TestServiceRefuses(t *testing.T) {
	t.Parallel()
	key := loadTokenKey(t, t.TempDir())
	a := newIssuer(t, "a")
	m := run(t, identity.Options{}, a)
	var failing issuer.Issuer = brokenIssuer{a, errors.New("own CA: it is expired")}
	broken := run(t, identity.Options{}, failing)

	member := func(_ context.Context, w identity.Workload) error {
		switch w.Namespace {
		case "outside":
			return fmt.Errorf("%w: the namespace %s is not monitored", identity.ErrNotMember, w.Namespace)
		case "unknown":
			return errors.New("the catalog is not ready")
		}
		return nil
	}
	secret := mint(t, key, claims(shopper))
	var log lockedBuilder
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	good := serve(t, identity.ServiceOptions{Manager: m, Reviewer: key, Member: member, Log: logger})
	failed := serve(t, identity.ServiceOptions{Manager: broken, Reviewer: key})
	away := serve(t, identity.ServiceOptions{Manager: m, Reviewer: reviewFunc(func(context.Context, string) (identity.Workload, error) {
		return identity.Workload{}, fmt.Errorf("%w: the API server does not answer", issuer.ErrUnavailable)
	})})
	nobody := serve(t, identity.ServiceOptions{Manager: m, Reviewer: reviewFunc(func(context.Context, string) (identity.Workload, error) {
		return identity.Workload{Namespace: "shop", ServiceAccount: "web.v1", Pod: "web-1"}, nil
	})})

	with := func(pairs ...string) func() context.Context {
		return func() context.Context { return metadata.AppendToOutgoingContext(t.Context(), pairs...) }
	}
	as := func(w identity.Workload) func() context.Context {
		return with("authorization", "Bearer "+mint(t, key, claims(w)))
	}
	of := func(namespace string) identity.Workload {
		w := shopper
		w.Namespace = namespace
		return w
	}
	bank := shopper
	bank.ServiceAccount = "bank"
	for _, tt := range []struct {
		name    string
		service *service
		ctx     func() context.Context
		csr     identity.Workload
		code    codes.Code
		want    string
		metric  string
	}{
		{"no token", good, t.Context, shopper, codes.Unauthenticated, "there are 0 values of the metadata", "Unauthenticated token"},
		{"two tokens", good, with("authorization", "Bearer "+secret, "authorization", "Bearer "+secret), shopper, codes.Unauthenticated, "there are 2 values of the metadata", "Unauthenticated token"},
		{"another scheme", good, with("authorization", "Basic "+secret), shopper, codes.Unauthenticated, "Bearer TOKEN", "Unauthenticated token"},
		{"no scheme", good, with("authorization", secret), shopper, codes.Unauthenticated, "Bearer TOKEN", "Unauthenticated token"},
		{"nothing after it", good, with("authorization", "Bearer "), shopper, codes.Unauthenticated, "Bearer TOKEN", "Unauthenticated token"},
		{"a very long token", good, with("authorization", "Bearer "+strings.Repeat("x", 20<<10)), shopper, codes.Unauthenticated, "longer than", "Unauthenticated token"},
		{"a token that was changed", good, with("authorization", "Bearer "+secret[:len(secret)-4]+"AAAA"), shopper, codes.Unauthenticated, "or was modified", "Unauthenticated token"},
		{"a namespace outside", good, as(of("outside")), of("outside"), codes.PermissionDenied, "not monitored", "PermissionDenied not-member"},
		{"membership is not known", good, as(of("unknown")), of("unknown"), codes.Unavailable, "not ready", "Unavailable unavailable"},
		{"the names of another", good, as(shopper), bank, codes.InvalidArgument, "bank", "InvalidArgument request"},
		{"no names", good, as(shopper), identity.Workload{}, codes.InvalidArgument, "PKCS #10", "InvalidArgument request"},
		{"the issuer fails", failed, as(shopper), shopper, codes.Internal, "it is expired", "Internal internal"},
		{"the API server is away", away, as(shopper), shopper, codes.Unavailable, "does not answer", "Unavailable unavailable"},
		{"a pod without a UID", nobody, as(shopper), shopper, codes.Internal, "UID", "Internal internal"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			metric := "outrigger_identity_refusals_total " + tt.metric
			before := gather(t, tt.service.registry)[metric]
			var csr []byte
			if tt.csr != (identity.Workload{}) {
				csr, _ = request(t, tt.csr)
			}
			answer, err := tt.service.client(t).Sign(tt.ctx(), &identityv1.SignRequest{Csr: csr})
			if got := status.Convert(err); got.Code() != tt.code || !strings.Contains(got.Message(), tt.want) {
				t.Errorf("Sign = %v, %v, want %s with %q", answer, err, tt.code, tt.want)
			}
			if got := gather(t, tt.service.registry)[metric]; got != before+1 {
				t.Errorf("%s went from %v to %v", metric, before, got)
			}
		})
	}
	if text := log.String(); strings.Contains(text, secret) || !strings.Contains(text, "code=InvalidArgument reason=request") {
		t.Errorf("the log shows a token, or not what was refused:\n%s", text)
	}
}

// brokenIssuer issues the controller's certificate and nothing else.
type brokenIssuer struct {
	*testIssuer
	fault error
}

func (b brokenIssuer) Issue(ctx context.Context, r issuer.Request) ([]*x509.Certificate, error) {
	if r.URI != "" {
		return nil, b.fault
	}
	return b.testIssuer.Issue(ctx, r)
}

// lockedBuilder is a strings.Builder for several goroutines.
type lockedBuilder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuilder) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuilder) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestServiceRefusesMuch(t *testing.T) {
	t.Parallel()
	key := loadTokenKey(t, t.TempDir())
	client := serve(t, identity.ServiceOptions{Manager: run(t, identity.Options{}, newIssuer(t, "a")), Reviewer: key}).client(t)
	ctx := bearer(t.Context(), mint(t, key, claims(shopper)))
	if _, err := client.Sign(ctx, &identityv1.SignRequest{Csr: make([]byte, 1<<20)}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a request of 1 MiB: %v", err)
	}
	// Unauthenticated would mean that the complete message was read.
	if _, err := client.Sign(bearer(t.Context(), strings.Repeat("x", 1<<20)), &identityv1.SignRequest{}); err == nil || status.Code(err) == codes.Unauthenticated {
		t.Errorf("a token of 1 MiB: %v", err)
	}
	csr, _ := request(t, shopper)
	if _, err := client.Sign(ctx, &identityv1.SignRequest{Csr: csr}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("after it: %v", err)
	}
}

// A client that knows only the old root rejects the service once the controller's
// certificate is signed by the next root.
func TestServiceFollowsTheIssuer(t *testing.T) {
	t.Parallel()
	key := loadTokenKey(t, t.TempDir())
	a, b := newIssuer(t, "a"), newIssuer(t, "b")
	m := run(t, identity.Options{}, a)
	s := serve(t, identity.ServiceOptions{Manager: m, Reviewer: key})
	m.SetTrust(trust(t, b, a))
	eventually(t, "a certificate of b", func() bool { return m.Certificates().Controller.Issuer == "CN=b" })
	for root, want := range map[*testIssuer]bool{a: false, b: true} {
		conn, err := tls.Dial("tcp", s.address, &tls.Config{ServerName: serverName, RootCAs: pool(t, root.roots(t)), NextProtos: []string{"h2"}})
		if (err == nil) != want {
			t.Errorf("with the root %s: %v", root, err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
	if _, err := tls.Dial("tcp", s.address, &tls.Config{ServerName: serverName, RootCAs: pool(t, b.roots(t)), NextProtos: []string{"h2"}, MaxVersion: tls.VersionTLS12}); err == nil {
		t.Error("TLS 1.2 was spoken")
	}
}

func TestServiceLimitsConnections(t *testing.T) {
	t.Parallel()
	key := loadTokenKey(t, t.TempDir())
	// An address may have two.
	s := serve(t, identity.ServiceOptions{
		Manager: run(t, identity.Options{}, newIssuer(t, "a")), Reviewer: key, MaxConnections: 32,
	})
	dial := func() *tls.Conn {
		config := &tls.Config{ServerName: serverName, RootCAs: pool(t, s.manager.TrustBundle()), NextProtos: []string{"h2"}}
		conn, err := tls.Dial("tcp", s.address, config)
		if err != nil {
			return nil
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	first, second := dial(), dial()
	if first == nil || second == nil {
		t.Fatal("the first two connections were not taken")
	}
	if dial() != nil {
		t.Error("a third connection of one address was taken")
	}
	if got := gather(t, s.registry)["outrigger_identity_connections_refused_total"]; got != 1 {
		t.Errorf("%v connections are counted as refused, want 1", got)
	}
	_ = first.Close()
	eventually(t, "there is room again", func() bool { return dial() != nil })
}

// An address at its limit of concurrent reviews does not delay others.
func TestServiceIsNotHeldUp(t *testing.T) {
	t.Parallel()
	key := loadTokenKey(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := serve(t, identity.ServiceOptions{
		Manager: run(t, identity.Options{}, newIssuer(t, "a")),
		Reviewer: reviewFunc(func(call context.Context, token string) (identity.Workload, error) {
			if token == "junk" {
				<-call.Done()
				return identity.Workload{}, call.Err()
			}
			return key.Review(call, token)
		}),
	})
	config := &tls.Config{ServerName: serverName, RootCAs: pool(t, s.manager.TrustBundle())}
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	answers := make(chan error, 320)
	for range 40 {
		conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(credentials.NewTLS(config)),
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				return from.DialContext(ctx, "tcp", address)
			}))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for range 8 {
			go func() {
				_, err := identityv1.NewIdentityClient(conn).Sign(bearer(ctx, "junk"), &identityv1.SignRequest{})
				answers <- err
			}()
		}
	}
	// A sixteenth of 256 are in progress.
	late := time.After(10 * time.Second)
	for range 320 - 16 {
		select {
		case err := <-answers:
			if status.Code(err) != codes.Unavailable {
				t.Fatalf("one request too many of an address: %v", err)
			}
		case <-late:
			t.Fatal("one address has more requests worked on than it should")
		}
	}
	csr, _ := request(t, shopper)
	call, done := context.WithTimeout(bearer(t.Context(), mint(t, key, claims(shopper))), 10*time.Second)
	defer done()
	if _, err := s.client(t).Sign(call, &identityv1.SignRequest{Csr: csr}); err != nil {
		t.Errorf("a good request of another address: %v", err)
	}
}

// hangingIssuer never answers requests for workloads.
type hangingIssuer struct {
	*testIssuer
	asked, left chan struct{}
}

func (h hangingIssuer) Issue(ctx context.Context, r issuer.Request) ([]*x509.Certificate, error) {
	if r.URI == "" {
		return h.testIssuer.Issue(ctx, r)
	}
	close(h.asked)
	<-ctx.Done()
	close(h.left)
	return nil, ctx.Err()
}

func TestServiceLetsGo(t *testing.T) {
	t.Parallel()
	key := loadTokenKey(t, t.TempDir())
	for name, end := range map[string]func(s *service, cancel func()) error{
		"the caller goes away": func(_ *service, cancel func()) error { cancel(); return nil },
		"the service ends":     func(s *service, _ func()) error { return s.stop() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := hangingIssuer{newIssuer(t, "a"), make(chan struct{}), make(chan struct{})}
			s := serve(t, identity.ServiceOptions{Manager: run(t, identity.Options{}, h), Reviewer: key})
			client := s.client(t)
			csr, _ := request(t, shopper)
			ctx, cancel := context.WithCancel(bearer(t.Context(), mint(t, key, claims(shopper))))
			defer cancel()
			answered := make(chan error, 1)
			go func() {
				_, err := client.Sign(ctx, &identityv1.SignRequest{Csr: csr})
				answered <- err
			}()
			<-h.asked
			begin := time.Now()
			if err := end(s, cancel); err != nil || time.Since(begin) > 20*time.Second {
				t.Errorf("Serve: %v after %s", err, time.Since(begin))
			}
			select {
			case <-h.left:
			case <-time.After(20 * time.Second):
				t.Error("the issuer was not let go")
			}
			if err := <-answered; err == nil {
				t.Error("the call succeeded")
			}
		})
	}
}

func TestNewServiceRefuses(t *testing.T) {
	m := run(t, identity.Options{}, newIssuer(t, "a"))
	for _, options := range []identity.ServiceOptions{{Manager: m}, {Reviewer: loadTokenKey(t, t.TempDir())}} {
		if s, err := identity.NewService(options); err == nil {
			t.Errorf("NewService = %v", s)
		}
	}
	registry := prometheus.NewRegistry()
	options := identity.ServiceOptions{Manager: m, Reviewer: loadTokenKey(t, t.TempDir()), Registerer: registry}
	if _, err := identity.NewService(options); err != nil {
		t.Error(err)
	}
	if _, err := identity.NewService(options); err == nil {
		t.Error("metrics were registered twice")
	}
	// Prometheus can compute rates only of series that exist from the start.
	if _, ok := gather(t, registry)["outrigger_identity_refusals_total PermissionDenied not-member"]; !ok {
		t.Error("refusals are not there before the first")
	}
}
