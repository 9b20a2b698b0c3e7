package xds

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// service is the aggregated discovery service.
type service struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	server *Server
}

// DeltaAggregatedResources serves the delta protocol.
func (s service) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return s.server.stream(stream, false, func() (request, error) {
		var r deltaRequest
		err := stream.RecvMsg(&r)
		return r.request, err
	})
}

// StreamAggregatedResources serves the state-of-the-world protocol.
func (s service) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return s.server.stream(stream, true, func() (request, error) {
		r, err := stream.Recv()
		if err != nil {
			return request{}, err
		}
		return sotwRequest(r), nil
	})
}

// stream serves one stream until it ends.
func (s *Server) stream(ss grpc.ServerStream, sotw bool, receive func() (request, error)) error {
	ctx := ss.Context()
	remote, state, raw := connectionOf(ctx)
	client, err := driver.PeerOf(state)
	if err != nil {
		return status.Error(codes.PermissionDenied, err.Error())
	}
	expiry := time.NewTimer(delivery.Lifetime(time.Until(client.NotAfter)))
	defer expiry.Stop()
	stream := newStream(s, sotw, client, time.Now())
	// Registered before the View is read, so that no change is missed.
	s.register(stream)
	defer s.unregister(stream)
	if err := s.await(ctx, stream); err != nil {
		return err
	}
	// The first request is read in turn, too: it may be large.
	turn, err := stream.awaitTurn(ctx)
	if err != nil {
		return err
	}
	defer turn.end()
	requests, failed := s.reader(ctx, receive)
	first, err := s.first(ctx, stream, requests, failed)
	if err != nil {
		return err
	}
	turn.extend()
	if first.nodeID != client.ProxyUID {
		return status.Errorf(codes.PermissionDenied, "node id %q does not match the certificate, which is for pod UID %q", truncate(first.nodeID), client.ProxyUID)
	}
	stream.setBuild(first.build)
	stream.conn, err = s.ctrl.Proxies.Connect(driver.ConnectedProxy{
		Peer: client, Name: stream.view.Proxy.Name, Class: stream.view.Proxy.Class, Version: first.build, Address: remote,
	})
	if err != nil {
		return denied(err)
	}
	defer stream.conn.Close()
	err = stream.run(ctx, turn, transport{
		first: first, requests: requests, failed: failed, expiry: expiry.C,
		send: func(r *response) error {
			// A client that does not read must not block the end of the stream.
			stuck := time.AfterFunc(s.sendTimeout, func() { raw.Close() })
			defer stuck.Stop()
			return ss.SendMsg(r)
		},
	})
	if errors.Is(err, errExpires) {
		// gRPC's clients would open the next stream over the same connection, with the same
		// certificate. The delay lets them read why this one has ended.
		time.AfterFunc(100*time.Millisecond, func() { raw.Close() })
	}
	return err
}

// connectionOf returns the connection's remote address, its TLS state, nil if there is
// none, and the underlying connection.
func connectionOf(ctx context.Context) (netip.AddrPort, *tls.ConnectionState, net.Conn) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return netip.AddrPort{}, nil, nil
	}
	var remote netip.AddrPort
	if tcp, ok := p.Addr.(*net.TCPAddr); ok {
		remote = netip.AddrPortFrom(tcp.AddrPort().Addr().Unmap(), uint16(tcp.Port))
	}
	info, ok := p.AuthInfo.(authInfo)
	if !ok {
		return remote, nil, nil
	}
	return remote, &info.State, info.raw
}

// reader reads requests until ctx ends. It limits their rate to what a legitimate
// client may need.
func (s *Server) reader(ctx context.Context, receive func() (request, error)) (<-chan request, <-chan error) {
	requests, failed := make(chan request), make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				s.log.Error("a request could not be read", "panic", r)
				failed <- status.Error(codes.Internal, "the request could not be read")
			}
		}()
		limiter := rate.NewLimiter(requestsPerSecond, requestBurst)
		for {
			r, err := receive()
			if err != nil {
				failed <- err
				return
			}
			// Wait fails only when the stream ends.
			if limiter.Wait(ctx) != nil {
				return
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	return requests, failed
}

// first returns the first request of a stream.
func (s *Server) first(ctx context.Context, st *stream, requests <-chan request, failed <-chan error) (request, error) {
	patience := time.NewTimer(firstRequestTimeout)
	defer patience.Stop()
	select {
	case r := <-requests:
		return r, nil
	case err := <-failed:
		return request{}, err
	case err := <-st.end:
		return request{}, err
	case <-s.stopping:
		return request{}, errStopping
	case <-patience.C:
		return request{}, status.Errorf(codes.DeadlineExceeded, "no request received within %s", firstRequestTimeout)
	case <-ctx.Done():
		return request{}, status.FromContextError(ctx.Err()).Err()
	}
}

var errStopping = status.Error(codes.Unavailable, "the controller is shutting down")

// await waits for the first complete Snapshot and gives the stream its first View.
func (s *Server) await(ctx context.Context, stream *stream) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-s.stopping:
			cancel()
		case <-ended:
		}
	}()
	select {
	case <-s.ctrl.MeshCatalog.Ready():
	case <-ctx.Done():
		return errStopping
	}
	view, err := s.ctrl.MeshCatalog.AwaitView(ctx, stream.peer)
	if err != nil {
		return denied(err)
	}
	if err := s.check(stream.peer, view); err != nil {
		return err
	}
	config := s.options.Translate(stream.offer(view))
	stream.mu.Lock()
	defer stream.mu.Unlock()
	stream.retarget(view, config, time.Time{})
	return nil
}

// denied converts an error of the core to a status.
func denied(err error) error {
	switch {
	case errors.Is(err, driver.ErrUnknownProxy):
		return status.Error(codes.PermissionDenied, err.Error())
	case errors.Is(err, driver.ErrTooManyProxies):
		return status.Error(codes.ResourceExhausted, err.Error())
	default:
		return status.Error(codes.Unavailable, err.Error())
	}
}
