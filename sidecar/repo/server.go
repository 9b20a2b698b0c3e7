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
	"github.com/outrigger-mesh/outrigger/internal/limit"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// Prefix begins the path of every proxy's files. The pod's UID and a slash follow.
const Prefix = "/repo/"

// Options configure a Server for a driver.
type Options struct {
	// Controller is the context that the driver's Start got. Its MeshCatalog, MsgBroker,
	// CertManager, Proxies and Configurator must be set.
	Controller *driver.ControllerContext
	// Translate returns the files of a View. It must be a pure function, and is called
	// from many goroutines. Unchanged files should be shared with earlier Sets, and equal
	// files among proxies.
	Translate func(view *mesh.View) mirror.Set
	// Translator is used if Translate is nil. It returns new files each time. If it
	// returns an error, the proxy keeps its current files.
	Translator driver.Translator
	// Certificates, if set, is the folder, with a slash at the end, to which the certificates of a View's
	// gateway ports are added, each as driver.CertificateFile says: the chain and the private key as PEM.
	Certificates string
	// LeftOut, if set, returns the parts of a View that its files do not contain, or not all of,
	// because the driver has left something out. The requests to what is left out must be denied
	// or fail. It is called whenever a proxy has accepted the files.
	LeftOut func(view *mesh.View) []delivery.Conviction
	// Objects, if set, returns the user's objects that a file was generated from, so that
	// a refusal can be reported on them.
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
	// unauthenticated counts the connections that have not presented a certificate yet.
	unauthenticated *limit.Share[netip.Addr]
	stale           queue
	// convictions are what proxies of the class refuse.
	convictions *delivery.Convictions
	// patience is how long a proxy may leave a version unused that it does not ask for
	// again, before that counts as a refusal.
	patience time.Duration

	mu sync.Mutex
	// sessions are keyed by the pod's UID.
	sessions map[string]*session
}

// New returns a Server, which starts with Serve. It returns an error if a required option
// is missing.
func New(options Options) (*Server, error) {
	ctrl := options.Controller
	if err := delivery.Complete(ctrl); err != nil {
		return nil, fmt.Errorf("repo: %w", err)
	}
	if options.Translate == nil && options.Translator == nil {
		return nil, errors.New("repo: the options lack Translate or Translator")
	}
	s := &Server{
		options: options, ctrl: ctrl, log: ctrl.Log, grace: graceTime, patience: unwantedTime,
		convictions:     delivery.NewConvictions(),
		unauthenticated: limit.NewShare[netip.Addr](maxUnauthenticated, maxUnauthenticatedEach), sessions: make(map[string]*session),
	}
	s.stale.filled.L = &s.stale.mu
	if s.log == nil {
		s.log = slog.Default()
	}
	return s, nil
}

// Service names a driver's repository, for Start.
type Service = delivery.Service

// Start implements a driver's Start with delivery.Start. It sets the options' Controller
// from ctx.
func Start(ctx context.Context, service Service, options Options) (health.Probes, error) {
	return delivery.Start(ctx, service, func(ctrl *driver.ControllerContext) (*Server, error) {
		options.Controller = ctrl
		return New(options)
	})
}

// Log returns the Server's logger.
func (s *Server) Log() *slog.Logger { return s.log }

// Limits of connections and requests. An agent has one connection, and a second one for a
// moment.
const (
	headWithin             = 10 * time.Second
	idleWithin             = 90 * time.Second
	headerBytes            = 8 << 10
	connectionsPerProxy    = 8
	maxUnauthenticated     = 4096
	maxUnauthenticatedEach = 512
	shutdownWithin         = 2 * time.Second
	graceTime              = 15 * time.Second
	unwantedTime           = 15 * time.Second
	requestsPerSecond      = 200
	requestBurst           = 4000
	retryAfter             = time.Second
)

// Serve serves on the listener until ctx is done, and closes it. It is called once. It
// returns nil if ctx is done.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A request waits for a change for minutes, so there is no bound on answers.
	server := limit.NewServer(http.HandlerFunc(s.handle), limit.Bounds{
		Connections: -1, Request: headWithin, Answer: -1, Idle: idleWithin, Header: headerBytes,
	}, s.log)
	server.HTTP.BaseContext = func(net.Listener) context.Context { return ctx }
	server.HTTP.ConnContext = connContext
	listener = limit.Listener(listener, s.unauthenticated, func() {
		s.log.Debug("connection rejected: too many unauthenticated ones")
	})
	stop := make(chan struct{})
	var group sync.WaitGroup
	// Subscribe before the first connection, so that no change is missed.
	changes := s.ctrl.MsgBroker.Subscribe(stop)
	group.Go(func() { delivery.Watch(s.ctrl, changes, stop, s.changed, s.resync) })
	for range runtime.GOMAXPROCS(0) {
		group.Go(s.refresh)
	}
	group.Go(func() {
		<-ctx.Done()
		shutdown, done := context.WithTimeout(context.Background(), shutdownWithin)
		defer done()
		if server.HTTP.Shutdown(shutdown) != nil {
			_ = server.HTTP.Close()
		}
	})
	s.serving.Store(true)
	config := delivery.Speak(s.ctrl.CertManager.ServerTLS(), http1, func(c *tls.Config) { c.SessionTicketsDisabled = true })
	err := server.Serve(&tlsListener{listener, s, config})
	s.serving.Store(false)
	ended := ctx.Err() != nil
	cancel()
	close(stop)
	s.stale.close()
	group.Wait()
	for _, session := range s.all() {
		session.end(errShutdown)
	}
	if ended {
		return nil
	}
	return fmt.Errorf("repo: serving on %s: %w", listener.Addr(), err)
}

// Probes returns the Server's health: it is ready while it serves.
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

// served returns the files that the View's proxy is sent: those of files, and the certificates of a
// gateway with their private keys, which are for nobody else.
func (s *Server) served(view *mesh.View) (mirror.Set, error) {
	set, err := s.files(view)
	if err != nil || s.options.Certificates == "" || !view.Proxy.Gateway {
		return set, err
	}
	var private []mesh.Change[*mirror.File]
	for _, d := range view.Outbound.Destinations.All() {
		for _, c := range d.Certificates {
			name := s.options.Certificates + driver.CertificateFile(c.Name)
			if s.ctrl.ServerCertificates == nil {
				return mirror.Set{}, fmt.Errorf("pod %s needs the certificate %s, and this controller has none", view.Proxy.Name, c.Name)
			}
			pair, ok := s.ctrl.ServerCertificates.ServerCertificate(c.Name)
			if !ok {
				return mirror.Set{}, fmt.Errorf("the certificate %s of pod %s is no longer there", c.Name, view.Proxy.Name)
			}
			file, err := mirror.NewPrivateFile(name, string(pair.Chain)+string(pair.Key))
			if err != nil {
				return mirror.Set{}, fmt.Errorf("the certificate %s of pod %s: %w", c.Name, view.Proxy.Name, err)
			}
			private = append(private, mesh.Change[*mirror.File]{Name: name, Value: file})
		}
	}
	return set.With(private...), nil
}

// check returns an error unless the View belongs to the peer and to the class that is
// served.
func (s *Server) check(peer driver.Peer, view *mesh.View) error {
	if err := delivery.Admit(s.ctrl, peer, view); err != nil {
		return denied("%s", err)
	}
	return nil
}
