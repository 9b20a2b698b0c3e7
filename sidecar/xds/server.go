package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/limit"
)

// Options are what a driver tells the kit.
type Options struct {
	// Controller is what Start was given. Its MeshCatalog, MsgBroker, CertManager,
	// Proxies and Configurator must be set.
	Controller *driver.ControllerContext
	// Types are the types of resources in the order in which they are sent: what others
	// refer to first. What is gone is removed the other way round.
	Types []Type
	// Translate makes the Config of a View. It is a pure function of it and is called
	// from many goroutines. What did not change should be shared with former Configs.
	Translate func(view *mesh.View) Config
	// Objects, if set, returns the objects of the user's that a resource came of, to
	// tell whose fault it is that a proxy refuses it.
	Objects func(view *mesh.View, typeURL, name string) []mesh.ObjectRef
	// Patience is how long what is held waits for a proxy that does nothing: 0 means 5
	// seconds.
	Patience time.Duration
}

// Server serves the proxies of one class. It is safe for use by many goroutines.
type Server struct {
	options Options
	ctrl    *driver.ControllerContext
	log     *slog.Logger
	// ending is closed when Serve ends.
	ending chan struct{}
	// sendWithin is how long a client may take to read a response.
	sendWithin time.Duration
	serving    atomic.Bool

	mu sync.Mutex
	// streams are those of each proxy, the oldest first.
	streams map[string][]*stream
}

// New returns a Server that does nothing before Serve. It returns an error if the
// options lack something.
func New(options Options) (*Server, error) {
	ctrl := options.Controller
	if err := delivery.Complete(ctrl); err != nil {
		return nil, fmt.Errorf("xds: %w", err)
	}
	if options.Translate == nil || len(options.Types) == 0 {
		return nil, errors.New("xds: the options lack Types or Translate")
	}
	if options.Patience == 0 {
		options.Patience = 5 * time.Second
	}
	s := &Server{
		options: options, ctrl: ctrl, log: ctrl.Log,
		ending: make(chan struct{}), sendWithin: time.Minute, streams: make(map[string][]*stream),
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	return s, nil
}

// Limits of what connections may take, of which each proxy has one or two.
const (
	handshakeTimeout = 10 * time.Second
	firstWithin      = 10 * time.Second
	longestRequest   = 4 << 20
	streamsEach      = 4
	streamsPerProxy  = 2
	// connectionsPerProxy leaves room for those that are about to end. Strangers are
	// connections that have not shown a certificate yet.
	connectionsPerProxy = 4
	mostStrangers       = 4096
	strangersEach       = 512
	readBuffer          = 1 << 10
	writeBuffer         = 4 << 10
	windowSize          = 128 << 10
	headerBytes         = 16 << 10
	endingWithin        = 2 * time.Second
	lookInterval        = time.Second
	requestsPerSecond   = 200
	requestsAtOnce      = 2000
)

// Serve serves on the listener until ctx ends, and closes it. It is called once. It
// returns nil if ctx ended.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := grpc.NewServer(
		grpc.Creds(newCredentials(s.ctrl.CertManager.ServerTLS())),
		grpc.ForceServerCodecV2(newCodec()),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxRecvMsgSize(longestRequest),
		grpc.MaxConcurrentStreams(streamsEach),
		grpc.MaxHeaderListSize(headerBytes),
		grpc.ReadBufferSize(readBuffer),
		grpc.WriteBufferSize(writeBuffer),
		grpc.StaticStreamWindowSize(windowSize),
		grpc.StaticConnWindowSize(windowSize),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: time.Minute, Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.StreamInterceptor(s.survive),
	)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, service{server: s})

	stop := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() { s.watch(stop) })
	group.Go(func() {
		<-ctx.Done()
		close(s.ending)
		ended := make(chan struct{})
		go func() {
			server.GracefulStop()
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(endingWithin):
			server.Stop()
		}
	})
	s.serving.Store(true)
	err := server.Serve(limit.Listener(listener, limit.NewShare[netip.Addr](mostStrangers, strangersEach), func() {
		s.log.Debug("a connection is one too many")
	}))
	s.serving.Store(false)
	ended := ctx.Err() != nil
	cancel()
	close(stop)
	group.Wait()
	if ended {
		return nil
	}
	return fmt.Errorf("xds: serving on %s: %w", listener.Addr(), err)
}

// Probes returns the health of the Server: alive and ready while it serves.
func (s *Server) Probes(id string) health.Probes {
	return health.Func{ID: id, Ready: s.serving.Load}
}

// survive turns a panic in a stream into its end, and tells of streams that are refused.
func (s *Server) survive(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer func() {
		if r := recover(); r != nil {
			s.log.Error("a stream failed", "method", info.FullMethod, "panic", r)
			err = status.Error(codes.Internal, "the stream failed")
		}
	}()
	err = handler(srv, ss)
	switch status.Code(err) {
	case codes.PermissionDenied, codes.ResourceExhausted, codes.InvalidArgument:
		remote, state, _ := connection(ss.Context())
		who, _ := driver.PeerOf(state)
		s.log.Warn("a proxy is refused", "uid", who.ProxyUID, "identity", who.Identity.String(), "address", remote.String(), "error", err)
	}
	return err
}

// watch tells streams of what happened, until stop is closed.
func (s *Server) watch(stop <-chan struct{}) {
	changes := s.ctrl.MsgBroker.Subscribe(stop)
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for {
		select {
		case <-stop:
			return
		case uid, ok := <-changes:
			if !ok {
				changes = nil
				continue
			}
			now := time.Now()
			for _, stream := range s.of(uid) {
				stream.notice(false, now)
			}
		case now := <-look.C:
			if interval := s.ctrl.Configurator.GetConfigResyncInterval(); interval > 0 {
				s.resync(now.Add(-interval))
			}
		}
	}
}

// of returns the streams of the proxy.
func (s *Server) of(uid string) []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.streams[uid])
}

// each returns all streams.
func (s *Server) each() []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*stream
	for _, streams := range s.streams {
		all = append(all, streams...)
	}
	return all
}

// resync has the streams send their whole state again that have not done so since.
func (s *Server) resync(since time.Time) {
	for _, stream := range s.each() {
		stream.mu.Lock()
		due := stream.lastSync.Before(since)
		stream.mu.Unlock()
		if due {
			stream.notice(true, time.Now())
		}
	}
}

// enter has the stream hear of changes. Of too many streams of one proxy the oldest
// end: their proxy has most likely gone away without a word.
func (s *Server) enter(stream *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	uid := stream.peer.ProxyUID
	s.streams[uid] = append(s.streams[uid], stream)
	for all := s.streams[uid]; len(all) > streamsPerProxy; all = all[1:] {
		all[0].stop(status.Error(codes.Unavailable, "the proxy has connected again"))
	}
}

func (s *Server) leave(gone *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	uid := gone.peer.ProxyUID
	left := slices.DeleteFunc(slices.Clone(s.streams[uid]), func(other *stream) bool { return other == gone })
	if len(left) == 0 {
		delete(s.streams, uid)
	} else {
		s.streams[uid] = left
	}
}

// check returns an error unless the View is that of the peer, and of a proxy of ours.
func (s *Server) check(peer driver.Peer, view *mesh.View) error {
	if err := delivery.Admit(s.ctrl, peer, view); err != nil {
		return status.Error(codes.PermissionDenied, err.Error())
	}
	return nil
}
