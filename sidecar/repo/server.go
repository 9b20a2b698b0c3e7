package repo

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/limit"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// Prefix is how the path of every proxy's files begins. Its pod's UID and a slash
// follow.
const Prefix = "/repo/"

// Options are what a driver tells the kit.
type Options struct {
	// Controller is what Start was given. Its MeshCatalog, MsgBroker, CertManager,
	// Proxies and Configurator must be set.
	Controller *driver.ControllerContext
	// Translate makes the files of a View. It is a pure function of it and is called
	// from many goroutines. Files that did not change should be shared with former Sets,
	// and those that are the same for several proxies among them.
	Translate func(view *mesh.View) mirror.Set
	// Translator makes the files of a View where Translate is nil, all anew each time. If
	// it returns an error the proxy keeps the files that it has.
	Translator driver.Translator
	// Objects, if set, returns the objects of the user's that a file came of, to tell
	// whose fault it is that a proxy refuses it.
	Objects func(view *mesh.View, file string) []mesh.ObjectRef
}

// Server serves the proxies of one class. It is safe for use by many goroutines.
type Server struct {
	options Options
	ctrl    *driver.ControllerContext
	log     *slog.Logger
	serving atomic.Bool
	// grace is how long a proxy without a connection counts as connected.
	grace time.Duration
	// strangers counts connections that have not shown a certificate yet.
	strangers *limit.Share[netip.Addr]
	stale     queue

	mu sync.Mutex
	// sessions are those of the proxies, by their UIDs.
	sessions map[string]*session
}

// New returns a Server that does nothing before Serve. It returns an error if the
// options lack something.
func New(options Options) (*Server, error) {
	ctrl := options.Controller
	if err := delivery.Complete(ctrl); err != nil {
		return nil, fmt.Errorf("repo: %w", err)
	}
	if options.Translate == nil && options.Translator == nil {
		return nil, errors.New("repo: the options lack Translate or Translator")
	}
	s := &Server{
		options: options, ctrl: ctrl, log: ctrl.Log, grace: graceTime,
		strangers: limit.NewShare[netip.Addr](mostStrangers, strangersEach), sessions: make(map[string]*session),
	}
	s.stale.filled.L = &s.stale.mu
	if s.log == nil {
		s.log = slog.Default()
	}
	return s, nil
}

// Log returns the logger that the Server uses.
func (s *Server) Log() *slog.Logger { return s.log }

// Limits of what connections may take. An agent has one, and one more for a moment.
const (
	headWithin          = 10 * time.Second
	idleWithin          = 90 * time.Second
	writeWithin         = time.Minute
	headerBytes         = 8 << 10
	connectionsPerProxy = 8
	mostStrangers       = 4096
	strangersEach       = 512
	endingWithin        = 2 * time.Second
	lookInterval        = time.Second
	graceTime           = 15 * time.Second
	requestsSecond      = 200
	requestsAtOnce      = 4000
	retryAfter          = time.Second
)

// Serve serves on the listener until ctx ends, and closes it. It is called once. It
// returns nil if ctx ended.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Requests wait for changes for minutes.
	server := limit.NewServer(http.HandlerFunc(s.survive), limit.Bounds{
		Connections: -1, Request: headWithin, Answer: -1, Idle: idleWithin, Header: headerBytes,
	}, s.log)
	server.HTTP.BaseContext = func(net.Listener) context.Context { return ctx }
	server.HTTP.ConnContext = connContext
	listener = limit.Listener(listener, s.strangers, func() {
		s.log.Debug("a connection is one too many")
	})
	stop := make(chan struct{})
	var group sync.WaitGroup
	// Before anybody connects, so that no change is missed.
	changes := s.ctrl.MsgBroker.Subscribe(stop)
	group.Go(func() { s.watch(changes, stop) })
	for range runtime.GOMAXPROCS(0) {
		group.Go(s.refresh)
	}
	group.Go(func() {
		<-ctx.Done()
		shutdown, done := context.WithTimeout(context.Background(), endingWithin)
		defer done()
		if server.HTTP.Shutdown(shutdown) != nil {
			_ = server.HTTP.Close()
		}
	})
	s.serving.Store(true)
	config := delivery.Speak(s.ctrl.CertManager.ServerTLS(), http1, func(c *tls.Config) { c.SessionTicketsDisabled = true })
	err := server.Serve(&listening{listener, s, config})
	s.serving.Store(false)
	ended := ctx.Err() != nil
	cancel()
	close(stop)
	s.stale.close()
	group.Wait()
	for _, session := range s.each() {
		session.end(errEnding)
	}
	if ended {
		return nil
	}
	return fmt.Errorf("repo: serving on %s: %w", listener.Addr(), err)
}

// Probes returns the health of the Server: alive and ready while it serves.
func (s *Server) Probes(id string) health.Probes {
	return health.Func{ID: id, Ready: s.serving.Load}
}

// files returns the files of the View.
func (s *Server) files(view *mesh.View) (mirror.Set, error) {
	if s.options.Translate != nil {
		return s.options.Translate(view), nil
	}
	translated, err := s.options.Translator.Translate(view)
	if err != nil {
		return mirror.Set{}, fmt.Errorf("making the files of pod %s: %w", view.Proxy.Name, err)
	}
	files := make([]*mirror.File, len(translated))
	for i, f := range translated {
		if files[i], err = mirror.NewFile(f.Name, string(f.Content)); err != nil {
			return mirror.Set{}, fmt.Errorf("making the files of pod %s: %w", view.Proxy.Name, err)
		}
	}
	return mirror.NewSet(files...), nil
}

// check returns an error unless the View is that of the peer, and of a proxy of ours.
func (s *Server) check(peer driver.Peer, view *mesh.View) error {
	if err := delivery.Admit(s.ctrl, peer, view); err != nil {
		return denied("%s", err)
	}
	return nil
}
