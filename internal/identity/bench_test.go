package identity_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/identity"
)

// cpu returns how much processor time the process has used.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// report runs the benchmark and also reports the processor time.
func report(b *testing.B, call func()) {
	b.Helper()
	b.ReportAllocs()
	begin := cpu(b)
	for b.Loop() {
		call()
	}
	b.ReportMetric((cpu(b)-begin).Seconds()*1000/float64(b.N), "cpu-ms/op")
}

// addresses are loopback addresses in turn, so that no one of them exceeds its limit of
// requests.
type addresses uint32

func (a *addresses) next() *net.TCPAddr {
	*a++
	return &net.TCPAddr{IP: net.IPv4(127, 1+byte(*a>>16), byte(*a>>8), byte(*a))}
}

// signInProcess returns a function that obtains a certificate without gRPC and TLS.
func signInProcess(t testing.TB) func() {
	t.Helper()
	key := loadTokenKey(t, t.TempDir())
	service, err := identity.NewService(identity.ServiceOptions{Manager: run(t, identity.Options{}, newCA(t, "a")), Reviewer: key})
	if err != nil {
		t.Fatal(err)
	}
	csr, _ := request(t, shopper)
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer "+mint(t, key, claims(shopper))))
	from := new(addresses)
	return func() {
		ctx := peer.NewContext(ctx, &peer.Peer{Addr: from.next()})
		if _, err := service.Sign(ctx, &identityv1.SignRequest{Csr: csr}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSignAllocations bounds what a certificate costs: checking the token and the request,
// and signing with the own CA. Verifying the new certificate's chain too would exceed it.
func TestSignAllocations(t *testing.T) {
	const most = 600
	if allocations := testing.AllocsPerRun(200, signInProcess(t)); allocations > most {
		t.Errorf("a certificate takes %.0f allocations, want at most %d", allocations, most)
	}
}

// BenchmarkIssue measures the cost of one certificate without gRPC and TLS: checking the
// token and the request, and signing with the own CA.
func BenchmarkIssue(b *testing.B) { report(b, signInProcess(b)) }

// agents are agents in a process of their own, which renew their certificates one after the
// other, each over a new connection.
type agents struct {
	Address, Token string
	Roots, CSR     []byte
	Count          int
	// Exchange is the key exchange; empty for package tls's default.
	Exchange []tls.CurveID
}

// asAgents is the environment variable that makes the test binary such a process.
const asAgents = "OUTRIGGER_TEST_AGENTS"

func TestMain(m *testing.M) {
	if text := os.Getenv(asAgents); text != "" {
		var a agents
		if err := cmp.Or(json.Unmarshal([]byte(text), &a), a.renew()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func (a *agents) renew() error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.Roots)
	config := &tls.Config{ServerName: serverName, RootCAs: roots, CurvePreferences: a.Exchange}
	from := new(addresses)
	for range a.Count {
		if err := call(bearer(context.Background(), a.Token), a.Address, from.next(), config, a.CSR); err != nil {
			return err
		}
	}
	return nil
}

// call obtains a certificate over a new connection.
func call(ctx context.Context, address string, from net.Addr, config *tls.Config, csr []byte) error {
	dialer := net.Dialer{LocalAddr: from}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		return err
	}
	_, err = identityv1.NewIdentityClient(conn).Sign(ctx, &identityv1.SignRequest{Csr: csr})
	return cmp.Or(err, conn.Close())
}

// BenchmarkRenewal measures an agent's call on a new connection. The processor time is that
// of the signing service alone.
func BenchmarkRenewal(b *testing.B) {
	for _, tt := range []struct {
		name     string
		exchange []tls.CurveID
	}{{"P-256", []tls.CurveID{tls.CurveP256}}, {"default exchange", nil}} {
		b.Run(tt.name, func(b *testing.B) {
			key := loadTokenKey(b, b.TempDir())
			s := serve(b, identity.ServiceOptions{Manager: run(b, identity.Options{}, newCA(b, "a")), Reviewer: key})
			csr, _ := request(b, shopper)
			text, err := json.Marshal(agents{s.address, mint(b, key, claims(shopper)), s.manager.TrustBundle(), csr, b.N, tt.exchange})
			if err != nil {
				b.Fatal(err)
			}
			process := exec.Command(os.Args[0])
			process.Env = append(os.Environ(), asAgents+"="+string(text))
			process.Stderr = os.Stderr
			b.ReportAllocs()
			begin := cpu(b)
			b.ResetTimer()
			if err := process.Run(); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric((cpu(b)-begin).Seconds()*1000/float64(b.N), "cpu-ms/op")
		})
	}
}
