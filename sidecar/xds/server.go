package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/internal/limit"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Options configure a Server.
type Options struct {
	// Controller is the ControllerContext that Start was given. Its MeshCatalog,
	// MsgBroker, CertManager, Proxies and Configurator must be set.
	Controller *driver.ControllerContext
	// Types are the resource types in the order in which they are sent: referenced types
	// first. Resources are removed in reverse order.
	Types []Type
	// Translate makes the Config of a View. It must be a pure function, is called
	// concurrently, and should share unchanged parts with former Configs.
	Translate func(view *mesh.View) Config
	// Objects, if set, returns the user's objects from which a resource was made. They are
	// reported when a proxy rejects the resource.
	Objects func(view *mesh.View, typeURL, name string) []mesh.ObjectRef
	// Parts, if set, reports whether a resource may be refused because of a part of the View.
	// Resources that a proxy rejects are then made again without the parts that are at fault.
	Parts func(typeURL, name string, part mesh.Part) bool
	// Patience is how long held resources wait for an inactive proxy: 0 means 5 seconds.
	Patience time.Duration
}

// Server serves the proxies of one class. It is safe for concurrent use.
type Server struct {
	options Options
	ctrl    *driver.ControllerContext
	log     *slog.Logger
	// stopping is closed when Serve begins to shut down.
	stopping chan struct{}
	// sendTimeout limits how long a client may take to read a response.
	sendTimeout time.Duration
	serving     atomic.Bool
	// catchingUp limits how many resources are being sent to proxies that have just connected.
	catchingUp *semaphore.Weighted
	// catchUpTime is how long one of them that does not answer holds up others.
	catchUpTime time.Duration
	// convictions are the parts that are left out for all proxies.
	convictions *delivery.Convictions

	mu sync.Mutex
	// streams are the streams of each proxy by its UID, oldest first.
	streams map[string][]*stream
}

// New returns a Server, which does nothing before Serve. It returns an error if a
// required option is missing.
func New(options Options) (*Server, error) {
	ctrl := options.Controller
	if err := delivery.Complete(ctrl); err != nil {
		return nil, fmt.Errorf("xds: %w", err)
	}
	if options.Translate == nil || len(options.Types) == 0 {
		return nil, errors.New("xds: Options.Types and Options.Translate are required")
	}
	if options.Patience == 0 {
		options.Patience = 5 * time.Second
	}
	s := &Server{
		options: options, ctrl: ctrl, log: ctrl.Log,
		stopping: make(chan struct{}), sendTimeout: time.Minute, streams: make(map[string][]*stream),
		catchingUp: semaphore.NewWeighted(maxCatchingUp), catchUpTime: 200 * time.Millisecond,
		convictions: delivery.NewConvictions(),
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	return s, nil
}

// Service names a driver's server and its port, for Start.
type Service = delivery.Service

// Start implements a driver's Start; see delivery.Start. It sets options.Controller to
// the ControllerContext that ctx carries.
func Start(ctx context.Context, service Service, options Options) (health.Probes, error) {
	return delivery.Start(ctx, service, func(ctrl *driver.ControllerContext) (*Server, error) {
		options.Controller = ctrl
		return New(options)
	})
}

// Limits on connections. A proxy normally has one or two.
const (
	handshakeTimeout     = 10 * time.Second
	firstRequestTimeout  = 10 * time.Second
	maxRequestBytes      = 4 << 20
	streamsPerConnection = 4
	streamsPerProxy      = 2
	// connectionsPerProxy leaves room for connections that are about to end.
	connectionsPerProxy = 4
	// maxUnauthenticated limits connections whose client has not shown a certificate yet.
	maxUnauthenticated        = 4096
	unauthenticatedPerAddress = 512
	readBuffer                = 1 << 10
	// writeBuffer is one of gRPC's shared ones: a connection has it only while something is
	// written to it. It is as long as a TLS record, since package crypto/tls makes one system
	// call for each record anyway.
	writeBuffer       = 16 << 10
	windowSize        = 128 << 10
	headerBytes       = 16 << 10
	shutdownTimeout   = 2 * time.Second
	requestsPerSecond = 200
	requestBurst      = 2000
	// maxCatchingUp is the number of resources of the proxies that have just connected and are
	// served at once. Until a proxy has acknowledged a resource, it costs some hundred bytes of
	// memory.
	maxCatchingUp = 100_000
)

// Serve serves on the listener until ctx ends, and closes it. It returns nil if ctx
// ended. It must be called only once.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := grpc.NewServer(
		grpc.Creds(newCredentials(s.ctrl.CertManager.ServerTLS())),
		grpc.ForceServerCodecV2(newCodec()),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxConcurrentStreams(streamsPerConnection),
		grpc.MaxHeaderListSize(headerBytes),
		grpc.ReadBufferSize(readBuffer),
		grpc.WriteBufferSize(writeBuffer),
		grpc.StaticStreamWindowSize(windowSize),
		grpc.StaticConnWindowSize(windowSize),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: time.Minute, Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.StreamInterceptor(s.intercept),
	)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, service{server: s})

	stop := make(chan struct{})
	var group sync.WaitGroup
	// Subscribe before the first connection, so that no change is missed.
	changes := s.ctrl.MsgBroker.Subscribe(stop)
	group.Go(func() { delivery.Watch(s.ctrl, changes, stop, s.changed, s.resync) })
	group.Go(func() {
		<-ctx.Done()
		close(s.stopping)
		ended := make(chan struct{})
		go func() {
			server.GracefulStop()
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(shutdownTimeout):
			server.Stop()
		}
	})
	s.serving.Store(true)
	err := server.Serve(limit.Listener(listener, limit.NewShare[netip.Addr](maxUnauthenticated, unauthenticatedPerAddress), func() {
		s.log.Debug("too many unauthenticated connections; closing one")
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

// Probes returns the Server's probes: it is alive and ready while it serves.
func (s *Server) Probes(id string) health.Probes {
	return health.Func{ID: id, Ready: s.serving.Load}
}

// intercept turns a panic in a stream into an error of that stream, and logs refused
// proxies.
func (s *Server) intercept(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer func() {
		if r := recover(); r != nil {
			s.log.Error("a stream failed", "method", info.FullMethod, "panic", r)
			err = status.Error(codes.Internal, "the stream failed")
		}
	}()
	err = handler(srv, ss)
	switch status.Code(err) {
	case codes.PermissionDenied, codes.ResourceExhausted, codes.InvalidArgument:
		remote, state, _ := connectionOf(ss.Context())
		client, _ := driver.PeerOf(state)
		s.log.Warn("proxy refused", "uid", client.ProxyUID, "identity", client.Identity.String(), "address", remote.String(), "error", err)
	}
	return err
}

// changed notifies the streams of a proxy whose View has changed.
func (s *Server) changed(uid string) {
	now := time.Now()
	for _, stream := range s.streamsOf(uid) {
		stream.notify(false, now)
	}
}

// streamsOf returns the streams of the proxy.
func (s *Server) streamsOf(uid string) []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.streams[uid])
}

// allStreams returns all streams.
func (s *Server) allStreams() []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Concat(slices.Collect(maps.Values(s.streams))...)
}

// resync notifies the streams whose last full sync was before the given time.
func (s *Server) resync(since time.Time) {
	for _, stream := range s.allStreams() {
		stream.mu.Lock()
		due := stream.lastSync.Before(since)
		stream.mu.Unlock()
		if due {
			stream.notify(true, time.Now())
		}
	}
}

// register subscribes the stream to changes. If a proxy has too many streams, the
// oldest are ended: their connections are most likely dead.
func (s *Server) register(stream *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	uid := stream.peer.ProxyUID
	s.streams[uid] = append(s.streams[uid], stream)
	for all := s.streams[uid]; len(all) > streamsPerProxy; all = all[1:] {
		all[0].stop(status.Error(codes.Unavailable, "the proxy has connected again"))
	}
}

func (s *Server) unregister(gone *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	uid := gone.peer.ProxyUID
	left := slices.DeleteFunc(slices.Clone(s.streams[uid]), func(other *stream) bool { return other == gone })
	if s.streams[uid] = left; len(left) == 0 {
		delete(s.streams, uid)
	}
}

// check returns an error unless the View belongs to the peer and its proxy is of this
// driver's class.
func (s *Server) check(peer driver.Peer, view *mesh.View) error {
	if err := delivery.Admit(s.ctrl, peer, view); err != nil {
		return status.Error(codes.PermissionDenied, err.Error())
	}
	return nil
}
