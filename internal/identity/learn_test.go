package identity_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/identity"
)

// TestServiceLearns checks that a question about an address is attributed to the token's pod,
// whatever it is about, and that waiting for answers delays no certificates.
func TestServiceLearns(t *testing.T) {
	t.Parallel()
	key := loadTokenKey(t, t.TempDir())
	fault, release := errors.New("the API server does not answer"), make(chan struct{})
	var waits atomic.Int32
	service := serve(t, identity.ServiceOptions{
		Manager: run(t, identity.Options{}, newIssuer(t, "a")), Reviewer: key,
		Learn: func(ctx context.Context, w identity.Workload, address netip.AddrPort) (bool, error) {
			switch address.Port() {
			case 1:
				return false, fault
			case 2:
				waits.Add(1)
				select {
				case <-release:
				case <-ctx.Done():
				}
			}
			return w == shopper && address.Addr() == netip.MustParseAddr("10.96.0.7"), nil
		},
	})
	client := service.client(t)
	token := mint(t, key, claims(shopper))
	for _, tt := range []struct {
		address, token string
		inMesh         bool
		code           codes.Code
	}{
		{"10.96.0.7:80", token, true, codes.OK},
		{"[::ffff:10.96.0.7]:80", token, true, codes.OK},
		{"10.96.0.8:80", token, false, codes.OK},
		{"10.96.0.7:80", "nonsense", false, codes.Unauthenticated},
		{"cart.shop:80", token, false, codes.InvalidArgument},
		{"", token, false, codes.InvalidArgument},
		{"10.96.0.7:1", token, false, codes.Unavailable},
	} {
		answer, err := client.Learn(bearer(t.Context(), tt.token), &identityv1.LearnRequest{Address: tt.address})
		if status.Code(err) != tt.code || answer.GetInMesh() != tt.inMesh {
			t.Errorf("the answer about %q is %v, %v; want %v, %s", tt.address, answer.GetInMesh(), err, tt.inMesh, tt.code)
		}
	}
	var waiting sync.WaitGroup
	// More than one address may have certificates signed for at a time.
	for range 3 {
		other := service.client(t)
		for range 7 {
			waiting.Go(func() {
				_, _ = other.Learn(bearer(t.Context(), token), &identityv1.LearnRequest{Address: "10.96.0.7:2"})
			})
		}
	}
	for deadline := time.Now().Add(10 * time.Second); waits.Load() < 21 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if _, err := client.Report(bearer(t.Context(), token), &identityv1.ReportRequest{}); err != nil || waits.Load() != 21 {
		t.Errorf("while %d questions wait for answers: %v", waits.Load(), err)
	}
	close(release)
	waiting.Wait()
}
