package identity

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// secrets serves the pod's identity and trust bundle to the proxy over the secret discovery
// service (SDS). Both are updated together, so readers never see a mix. Its methods are safe
// for use by many goroutines.
type secrets struct {
	log *slog.Logger

	mu sync.Mutex
	// current holds the resources by name, none before there is an identity. The map is
	// never modified; when it is replaced, changed is closed.
	current map[string]resource
	changed chan struct{}
}

// resource is a secret as it is sent.
type resource struct {
	version string // changes with the secret; derived from public data only
	body    []byte
}

func newSecrets(log *slog.Logger) *secrets { return &secrets{log: log, changed: make(chan struct{})} }

// set serves the content of the identity files.
func (s *secrets) set(m material) {
	current := map[string]resource{
		agentspec.SecretIdentity: {mesh.DigestBytes(m.chain).String(), identitySecret(m)},
		agentspec.SecretBundle:   {mesh.DigestBytes(m.bundle).String(), bundleSecret(m)},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.current, s.changed = current, make(chan struct{})
}

// now returns the secrets and a channel that is closed when they change.
func (s *secrets) now() (map[string]resource, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current, s.changed
}

// Limits on the proxy's requests. Its first request contains its whole build version, a few
// tens of KiB.
const (
	maxSecretRequest = 1 << 20
	maxSecretStreams = 16
)

// server returns the server. It does not authenticate clients; its listener must.
func (s *secrets) server() *grpc.Server {
	server := grpc.NewServer(
		grpc.ForceServerCodecV2(kit.RawCodec{}),
		grpc.MaxRecvMsgSize(maxSecretRequest), grpc.MaxConcurrentStreams(maxSecretStreams),
		grpc.ReadBufferSize(4<<10), grpc.WriteBufferSize(4<<10),
		grpc.ConnectionTimeout(10*time.Second),
	)
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "envoy.service.secret.v3.SecretDiscoveryService",
		HandlerType: (*any)(nil),
		Streams:     []grpc.StreamDesc{{StreamName: "StreamSecrets", Handler: s.serve, ServerStreams: true, ClientStreams: true}},
	}, s)
	return server
}

// serve answers one stream: it sends the requested secrets, and again when they change.
func (s *secrets) serve(_ any, stream grpc.ServerStream) error {
	requests := make(chan secretRequest)
	ended := make(chan error, 1)
	go func() {
		for {
			r, err := receive(stream)
			if err != nil {
				ended <- err
				return
			}
			select {
			case requests <- r:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	var asked subscription
	for {
		current, changed := s.now()
		if response, ok := asked.next(current); ok {
			if err := stream.SendMsg(&response); err != nil {
				return err
			}
		}
		select {
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-changed:
		case r := <-requests:
			if err := asked.update(r); err != nil {
				return err
			}
			if r.problem != "" {
				s.log.Error("the proxy rejected a secret", "secrets", r.names, "error", kit.OneLine(r.problem))
			}
		}
	}
}

func receive(stream grpc.ServerStream) (secretRequest, error) {
	var body []byte
	if err := stream.RecvMsg(&body); err != nil {
		return secretRequest{}, err
	}
	r, err := parseSecretRequest(body)
	if err != nil {
		return secretRequest{}, status.Errorf(codes.InvalidArgument, "the request: %v", err)
	}
	return r, nil
}

// subscription is what one stream has requested and been sent.
type subscription struct {
	names  []string
	sent   map[string]string // versions of the secrets in the last response
	number int               // the last response's, used as its nonce
}

// update applies a request of the stream.
func (s *subscription) update(r secretRequest) error {
	if r.typeURL != secretType {
		return status.Errorf(codes.InvalidArgument, "only resources of type %s are served, not %q", secretType, r.typeURL)
	}
	for _, name := range r.names {
		if name != agentspec.SecretIdentity && name != agentspec.SecretBundle {
			return status.Errorf(codes.NotFound, "there is no secret %q; there are %q and %q", name, agentspec.SecretIdentity, agentspec.SecretBundle)
		}
	}
	// A request with an older nonce answers an earlier response and is stale.
	if r.nonce == "" || r.nonce == s.nonce() {
		s.names = r.names
	}
	return nil
}

// next returns the next response, if one is due.
func (s *subscription) next(current map[string]resource) ([]byte, bool) {
	due := make(map[string]string)
	for _, name := range s.names {
		if r, ok := current[name]; ok {
			due[name] = r.version
		}
	}
	if len(due) == 0 || maps.Equal(due, s.sent) {
		return nil, false
	}
	var versions []string
	var bodies [][]byte
	for _, name := range slices.Sorted(maps.Keys(due)) {
		versions, bodies = append(versions, due[name]), append(bodies, current[name].body)
	}
	s.sent = due
	s.number++
	return secretResponse(strings.Join(versions, "-"), s.nonce(), bodies), true
}

func (s *subscription) nonce() string { return fmt.Sprint(s.number) }
