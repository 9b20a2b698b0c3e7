package identity

import (
	"context"
	"fmt"
	"net/netip"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
)

// Learn is for identityv1.IdentityServer.
func (s *Service) Learn(ctx context.Context, request *identityv1.LearnRequest) (*identityv1.LearnResponse, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errSlow)
	defer cancel()
	inMesh, w, err := s.learn(ctx, request)
	if err != nil {
		return nil, s.refuse(ctx, w, fmt.Errorf("a question about an address: %w", err))
	}
	return &identityv1.LearnResponse{InMesh: inMesh}, nil
}

func (s *Service) learn(ctx context.Context, request *identityv1.LearnRequest) (bool, Workload, error) {
	w, done, err := s.admit(ctx)
	if err != nil {
		return false, w, err
	}
	// Most of the time is spent waiting. That must not keep others from their certificates.
	done()
	at, err := netip.ParseAddrPort(request.GetAddress())
	if err != nil {
		return false, w, fmt.Errorf("%w: %q is not an address and port", ErrRequest, printable(request.GetAddress(), maxHow))
	}
	var inMesh bool
	if s.options.Learn != nil {
		// A failure can be one of the API server, to which the learned services are written.
		if inMesh, err = s.options.Learn(ctx, w, netip.AddrPortFrom(at.Addr().Unmap(), at.Port())); err != nil {
			err = fmt.Errorf("%w: %w", issuer.ErrUnavailable, err)
			s.refundFailure(ctx, err)
			return false, w, err
		}
	}
	s.rate.refund(caller(ctx))
	return inMesh, w, nil
}
