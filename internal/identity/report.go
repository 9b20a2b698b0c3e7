package identity

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
)

// ProxyReport is an agent's report about its proxy. The texts are single printable lines.
type ProxyReport struct {
	// Failing is set if the proxy does not stay up or cannot be started.
	Failing bool
	// How describes how it ended, in at most 256 bytes. LastWords is the end of its output,
	// at most 1 KiB.
	How, LastWords string
	// Starts is the number of starts since the proxy was last stable.
	Starts int
}

// Maximum lengths of an agent's texts, in bytes.
const (
	maxHow       = 256
	maxLastWords = 1 << 10
)

// Report is for identityv1.IdentityServer.
func (s *Service) Report(ctx context.Context, request *identityv1.ReportRequest) (*identityv1.ReportResponse, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errSlow)
	defer cancel()
	w, err := s.report(ctx, request)
	if err != nil {
		return nil, s.refuse(ctx, w, fmt.Errorf("a report: %w", err))
	}
	return &identityv1.ReportResponse{}, nil
}

func (s *Service) report(ctx context.Context, request *identityv1.ReportRequest) (Workload, error) {
	w, done, err := s.admit(ctx)
	if err != nil {
		return w, err
	}
	defer done()
	if s.options.Report != nil {
		s.options.Report(ctx, w, ProxyReport{
			Failing: request.GetFailing(), How: printable(request.GetHow(), maxHow),
			LastWords: printable(request.GetLastWords(), maxLastWords), Starts: int(request.GetStarts()),
		})
	}
	s.rate.refund(caller(ctx))
	return w, nil
}

// admit authenticates a call. The returned function must be called when the call has been
// answered. If the answer is not a refusal, the caller of admit must refund the address.
func (s *Service) admit(ctx context.Context) (Workload, func(), error) {
	token, err := tokenOf(ctx)
	if err != nil {
		return Workload{}, nil, err
	}
	if screener, ok := s.options.Reviewer.(Screener); ok {
		if err := screener.Screen(token); err != nil {
			return Workload{}, nil, err
		}
	}
	from := caller(ctx)
	done, err := s.slots.take(ctx, from)
	if err != nil {
		return Workload{}, nil, err
	}
	if !s.rate.take(from, time.Now()) {
		done()
		return Workload{}, nil, errRate
	}
	w, err := s.workload(ctx, token)
	if err != nil {
		s.refundFailure(ctx, err)
		done()
		return w, nil, err
	}
	return w, done, nil
}

// workload returns the token's workload, which must be in the mesh.
func (s *Service) workload(ctx context.Context, token string) (Workload, error) {
	w, err := s.options.Reviewer.Review(ctx, token)
	if err != nil {
		return w, err
	}
	err = s.options.Member(ctx, w)
	if err != nil && !errors.Is(err, ErrNotMember) {
		err = fmt.Errorf("%w: checking whether the pod is in the mesh: %w", issuer.ErrUnavailable, err)
	}
	return w, err
}

// printable returns an untrusted text as a single printable line of at most most bytes.
func printable(text string, most int) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text[:min(len(text), 4*most)], ""), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}
