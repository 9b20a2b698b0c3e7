package identity

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/limit"
	"github.com/outrigger-mesh/outrigger/internal/metric"
)

// Limits of the service. An agent makes one call of a few KiB every few hours. One address
// may use a sixteenth of the concurrent calls. Each call costs the API server a TokenReview,
// so an address may have a burst of maxRefusals refused calls and refusalsPerSecond after
// that. A granted call counts as a sixteenth of a refused one, because many pods may share
// an address, and so does one that failed because the API server or issuer was unavailable.
//
// When many pods start at once, a connection that has a place keeps it for as long as a call may
// take; agents that get none try again. A place that others take away has been a handshake
// and perhaps a review in vain.
const (
	maxMessage    = 64 << 10
	maxHeaders    = 32 << 10
	maxToken      = 16 << 10
	maxStreams    = 8
	maxAtOnce     = 256
	maxConns      = 1024
	maxRefusals   = 32
	maxAddresses  = 4096
	callTimeout   = 30 * time.Second
	setUpTimeout  = 10 * time.Second
	stopTimeout   = 5 * time.Second
	maxIdle       = time.Minute
	maxAge        = 10 * time.Minute
	bufferSize    = 4 << 10
	windowSize    = 64 << 10
	keepaliveTime = 30 * time.Second

	refusalsPerSecond = 1
)

// ServiceOptions configure a Service.
type ServiceOptions struct {
	// Manager signs and provides the serving certificate.
	Manager *Manager
	// Reviewer authenticates tokens.
	Reviewer TokenReviewer
	// Member returns an error that wraps ErrNotMember if a workload is not in the mesh.
	// Other errors should be retried. Nil means that all workloads are members.
	Member func(ctx context.Context, w Workload) error
	// MaxConnections limits concurrent connections; 0 means 1,024, which take about 80 KiB
	// each. One address may have a sixteenth of them.
	MaxConnections int
	// Registerer registers the metrics; nil leaves them unregistered.
	Registerer prometheus.Registerer
	// Report receives agents' reports about their proxies, from many goroutines; it may be
	// nil.
	Report func(ctx context.Context, w Workload, r ProxyReport)
	// Learn answers agents' questions about addresses that their pods call, from many
	// goroutines: whether the pod may call something in the mesh there. Nil means never.
	Learn func(ctx context.Context, w Workload, address netip.AddrPort) (inMesh bool, err error)
	// Log logs refusals; nil means slog.Default().
	Log *slog.Logger
}

// Service is the signing service that agents call.
type Service struct {
	identityv1.UnimplementedIdentityServer
	options ServiceOptions
	slots   *slots
	rate    *rate

	refusals *prometheus.CounterVec
	refused  prometheus.Counter
}

// NewService returns a Service. The error names the missing option.
func NewService(options ServiceOptions) (*Service, error) {
	if options.Manager == nil || options.Reviewer == nil {
		return nil, errors.New("the signing service needs a manager and a reviewer of tokens")
	}
	if options.Member == nil {
		options.Member = func(context.Context, Workload) error { return nil }
	}
	if options.MaxConnections <= 0 {
		options.MaxConnections = maxConns
	}
	options.Log = cmp.Or(options.Log, slog.Default())
	s := &Service{
		options: options,
		slots:   newSlots(maxAtOnce),
		rate:    newRate(maxAddresses),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metric.SigningRefusals,
			Help: "Requests for a certificate that were refused, by gRPC code and reason.",
		}, []string{metric.LabelCode, metric.LabelReason}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: metric.SigningConnectionsRefused,
			Help: "Connections to the signing service that were closed at once because there were too many.",
		}),
	}
	for _, r := range refusals {
		s.refusals.WithLabelValues(r.code.String(), r.reason)
	}
	if err := register(options.Registerer, s.refusals, s.refused); err != nil {
		return nil, fmt.Errorf("registering the metrics of the signing service: %w", err)
	}
	return s, nil
}

// Serve serves on the listener until ctx ends, and closes it. Calls in progress then have a
// few seconds to finish.
func (s *Service) Serve(ctx context.Context, listener net.Listener) error {
	server := grpc.NewServer(
		// Tokens authenticate callers, which have no certificate before their first call.
		grpc.Creds(credentials.NewTLS(s.options.Manager.serverTLS(tls.NoClientCert))),
		grpc.ConnectionTimeout(setUpTimeout),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ReadBufferSize(bufferSize), grpc.WriteBufferSize(bufferSize),
		grpc.InitialWindowSize(windowSize), grpc.InitialConnWindowSize(windowSize),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: maxIdle, MaxConnectionAge: maxAge, MaxConnectionAgeGrace: callTimeout,
			Time: keepaliveTime, Timeout: setUpTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime, PermitWithoutStream: true}),
	)
	identityv1.RegisterIdentityServer(server, s)
	places := limit.NewShare[netip.Addr](s.options.MaxConnections, s.options.MaxConnections/16).Keep(callTimeout)
	served := make(chan error, 1)
	go func() { served <- server.Serve(limit.Listener(listener, places, s.refused.Inc)) }()
	select {
	case err := <-served:
		if err != nil {
			return fmt.Errorf("serving the signing service on %s: %w", listener.Addr(), err)
		}
		return nil
	case <-ctx.Done():
	}
	late := time.AfterFunc(stopTimeout, server.Stop)
	defer late.Stop()
	server.GracefulStop()
	<-served
	return nil
}

// Sign is for identityv1.IdentityServer.
func (s *Service) Sign(ctx context.Context, request *identityv1.SignRequest) (*identityv1.SignResponse, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errSlow)
	defer cancel()
	response, w, err := s.sign(ctx, request)
	if err != nil {
		return nil, s.refuse(ctx, w, err)
	}
	return response, nil
}

func (s *Service) sign(ctx context.Context, request *identityv1.SignRequest) (*identityv1.SignResponse, Workload, error) {
	w, done, err := s.admit(ctx)
	if err != nil {
		return nil, w, err
	}
	defer done()
	chain, bundle, err := s.options.Manager.Sign(ctx, request.GetCsr(), w)
	if err != nil {
		s.refundFailure(ctx, err)
		return nil, w, err
	}
	s.rate.refund(caller(ctx))
	return &identityv1.SignResponse{Chain: chain, Bundle: bundle}, w, nil
}

// errSlow is the cause of a context whose call exceeded callTimeout.
var errSlow = fmt.Errorf("%w: no answer within %v", context.DeadlineExceeded, callTimeout)

// refundFailure refunds the caller's address if the API server or the issuer failed, unless
// the caller canceled the call and so may have caused the failure.
func (s *Service) refundFailure(ctx context.Context, err error) {
	if context.Cause(ctx) == errSlow || ctx.Err() == nil && errors.Is(err, issuer.ErrUnavailable) {
		s.rate.refund(caller(ctx))
	}
}

var (
	errBusy = errors.New("too many concurrent requests from this address; try again")
	errRate = errors.New("too many requests, or too many refused ones, from this address; try again later")
)

// tokenOf returns a call's token.
func tokenOf(ctx context.Context) (string, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get("authorization")
	if len(values) != 1 {
		return "", fmt.Errorf("%w: there are %d values of the metadata \"authorization\", want one of the form \"Bearer TOKEN\"", ErrToken, len(values))
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	if !ok || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", fmt.Errorf("%w: the metadata \"authorization\" is not of the form \"Bearer TOKEN\"", ErrToken)
	}
	if len(token) > maxToken {
		return "", fmt.Errorf("%w: it is longer than %d bytes", ErrToken, maxToken)
	}
	return token, nil
}

// refusals maps errors to gRPC codes and reasons. The first match applies; the last entry
// always matches.
var refusals = []struct {
	err    error
	code   codes.Code
	reason string
	level  slog.Level
}{
	{context.Canceled, codes.Canceled, "canceled", slog.LevelDebug},
	// Unauthenticated clients can cause these three at any rate.
	{ErrToken, codes.Unauthenticated, "token", slog.LevelDebug},
	{errBusy, codes.Unavailable, "busy", slog.LevelDebug},
	{errRate, codes.Unavailable, "rate", slog.LevelDebug},
	{ErrNotMember, codes.PermissionDenied, "not-member", slog.LevelWarn},
	{ErrRequest, codes.InvalidArgument, "request", slog.LevelWarn},
	{issuer.ErrUnavailable, codes.Unavailable, "unavailable", slog.LevelWarn},
	{context.DeadlineExceeded, codes.Unavailable, "timeout", slog.LevelWarn},
	{nil, codes.Internal, "internal", slog.LevelError},
}

// refuse counts and logs a refusal and returns its status. The error is logged here because
// the caller's log may not be accessible.
func (s *Service) refuse(ctx context.Context, w Workload, err error) error {
	for _, r := range refusals {
		if r.err == nil || errors.Is(err, r.err) || r.err == context.Canceled && errors.Is(ctx.Err(), r.err) {
			s.refusals.WithLabelValues(r.code.String(), r.reason).Inc()
			s.options.Log.Log(ctx, r.level, "refused a request", "namespace", w.Namespace, "pod", w.Pod,
				"serviceAccount", w.ServiceAccount, "code", r.code.String(), "reason", r.reason, "error", err)
			return status.Error(r.code, err.Error())
		}
	}
	return status.Error(codes.Internal, err.Error())
}
