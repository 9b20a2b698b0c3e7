package identity_test

import (
	"context"
	"crypto/tls"
	"net"
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

// BenchmarkIssue measures the cost of one certificate without gRPC and TLS: checking the
// token and the request, signing with the own CA, and verifying the chain. The limit is
// 1 ms of processor time.
func BenchmarkIssue(b *testing.B) {
	key := loadTokenKey(b, b.TempDir())
	service, err := identity.NewService(identity.ServiceOptions{Manager: run(b, identity.Options{}, newCA(b, "a")), Reviewer: key})
	if err != nil {
		b.Fatal(err)
	}
	csr, _ := request(b, shopper)
	ctx := metadata.NewIncomingContext(b.Context(), metadata.Pairs("authorization", "Bearer "+mint(b, key, claims(shopper))))
	from := new(addresses)
	report(b, func() {
		ctx := peer.NewContext(ctx, &peer.Peer{Addr: from.next()})
		if _, err := service.Sign(ctx, &identityv1.SignRequest{Csr: csr}); err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkCall measures an agent's call on a new connection. The processor time includes
// both ends.
func BenchmarkCall(b *testing.B) {
	key := loadTokenKey(b, b.TempDir())
	s := serve(b, identity.ServiceOptions{Manager: run(b, identity.Options{}, newCA(b, "a")), Reviewer: key})
	csr, _ := request(b, shopper)
	ctx := bearer(b.Context(), mint(b, key, claims(shopper)))
	config := &tls.Config{ServerName: serverName, RootCAs: pool(b, s.manager.TrustBundle())}
	from := new(addresses)
	report(b, func() {
		dialer := net.Dialer{LocalAddr: from.next()}
		conn, err := grpc.NewClient("passthrough:///"+s.address, grpc.WithTransportCredentials(credentials.NewTLS(config)),
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				return dialer.DialContext(ctx, "tcp", address)
			}))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := identityv1.NewIdentityClient(conn).Sign(ctx, &identityv1.SignRequest{Csr: csr}); err != nil {
			b.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			b.Fatal(err)
		}
	})
}
