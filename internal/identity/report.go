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

// ProxyReport is what an agent says of its proxy. The texts are one line each of what
// can be printed.
type ProxyReport struct {
	// Failing says that the proxy does not stay up, or cannot be started.
	Failing bool
	// How is how it ended, of at most 256 bytes, and LastWords the end of what it has
	// printed, of at most 1 KiB.
	How, LastWords string
	// Starts is how often it was started since it last was stable.
	Starts int
}

// The longest texts that are taken of an agent, in bytes.
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

// admit returns whose the call is, and what to call when it has been answered. Whoever
// answers it as was asked has its address refunded.
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
	done, err := s.turns.take(ctx, from)
	if err != nil {
		return Workload{}, nil, err
	}
	if !s.rate.take(from, time.Now()) {
		done()
		return Workload{}, nil, errOften
	}
	w, err := s.whose(ctx, token)
	if err != nil {
		s.forgive(ctx, err)
		done()
		return w, nil, err
	}
	return w, done, nil
}

// whose returns whose the token is, if that is a pod of the mesh.
func (s *Service) whose(ctx context.Context, token string) (Workload, error) {
	w, err := s.options.Reviewer.Review(ctx, token)
	if err != nil {
		return w, err
	}
	err = s.options.Member(ctx, w)
	if err != nil && !errors.Is(err, ErrNotMember) {
		err = fmt.Errorf("%w: whether the pod is in the mesh: %w", issuer.ErrUnavailable, err)
	}
	return w, err
}

// printable returns a stranger's text as one line of at most so many bytes.
func printable(text string, most int) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text[:min(len(text), 4*most)], ""), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}
