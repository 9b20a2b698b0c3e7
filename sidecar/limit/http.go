package limit

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// Bounds are what clients may take of an HTTP server. All servers of the control plane
// and of the agent are built from them. The zero Bounds are right for one that answers
// short questions, such as those for health and metrics.
type Bounds struct {
	// Connections is how many there may be at a time, and Each how many of them from one
	// address; 0 means 256 and 64. Below 0 the listener is bounded already.
	Connections, Each int
	// Request is how long a request may take to arrive, TLS and body included; 0 means
	// 10 seconds. A request without a body has no limit once its head is there.
	Request time.Duration
	// Answer is how long a request may take from its head to the end of its answer; 0
	// means 1 minute, and below 0 there is no limit.
	Answer time.Duration
	// Idle is how long a connection may wait for its next request; 0 means 1 minute.
	Idle time.Duration
	// Header and Body are how long the two may be, in bytes; 0 means 16 KiB and 64 KiB.
	Header int
	Body   int64
}

// The defaults of Bounds.
const (
	connections     = 256
	connectionsEach = 64
	requestWithin   = 10 * time.Second
	answerWithin    = time.Minute
	idleWithin      = time.Minute
	headerBytes     = 16 << 10
	bodyBytes       = 64 << 10
)

// streams is how many requests one connection of HTTP/2 may have at a time, and window
// how many bytes it may send that nobody has read yet.
const (
	streams = 250
	window  = 64 << 10
)

func (b Bounds) complete() Bounds {
	b.Connections = or(b.Connections, connections)
	b.Each = or(b.Each, connectionsEach)
	b.Request = or(b.Request, requestWithin)
	b.Answer = max(or(b.Answer, answerWithin), 0)
	b.Idle = or(b.Idle, idleWithin)
	b.Header = or(b.Header, headerBytes)
	b.Body = or(b.Body, bodyBytes)
	return b
}

func or[T int | int64 | time.Duration](value, standard T) T {
	if value == 0 {
		return standard
	}
	return value
}

// Server serves HTTP within Bounds.
type Server struct {
	// HTTP is the server below. What has no bounds may be set in it before Serve, such as
	// TLSConfig and ConnContext.
	HTTP   *http.Server
	bounds Bounds
	log    *slog.Logger
}

// NewServer returns a Server of the handler, which is given no more of a body than the
// Bounds allow. What goes wrong with a connection is logged for debugging.
func NewServer(handler http.Handler, bounds Bounds, log *slog.Logger) *Server {
	bounds = bounds.complete()
	return &Server{
		bounds: bounds, log: log,
		HTTP: &http.Server{
			Handler:           bounded(handler, bounds.Body),
			ReadHeaderTimeout: bounds.Request,
			ReadTimeout:       bounds.Request,
			WriteTimeout:      bounds.Answer,
			IdleTimeout:       bounds.Idle,
			MaxHeaderBytes:    bounds.Header,
			HTTP2: &http.HTTP2Config{
				MaxConcurrentStreams:          streams,
				MaxReceiveBufferPerConnection: window, MaxReceiveBufferPerStream: window,
				// A client that has vanished says nothing.
				SendPingTimeout: bounds.Idle,
			},
			ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		},
	}
}

// Serve serves on the listener until that fails or the server is shut down, which is
// http.ErrServerClosed. It speaks TLS if the server has a TLSConfig.
func (s *Server) Serve(listener net.Listener) error {
	if s.bounds.Connections > 0 {
		address := listener.Addr().String()
		listener = Listener(listener, NewShare[netip.Addr](s.bounds.Connections, s.bounds.Each), func() {
			s.log.Debug("a connection is one too many", "listener", address)
		})
	}
	if s.HTTP.TLSConfig != nil {
		return s.HTTP.ServeTLS(listener, "", "")
	}
	return s.HTTP.Serve(listener)
}

// Run serves until ctx ends, then for the delay, in which callers learn that it ends, and then
// for at most ten seconds until requests under way are answered. It closes the listener.
func (s *Server) Run(ctx context.Context, listener net.Listener, delay time.Duration) error {
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serving on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	time.Sleep(delay)
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return s.HTTP.Shutdown(stop)
}

// bounded bounds the body of each request, and waits for none that the handler has not
// read.
func bounded(handler http.Handler, most int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if r.Body == nil || r.Body == http.NoBody {
			// The time to read would otherwise end requests that take long to answer.
			_ = control.SetReadDeadline(time.Time{})
			handler.ServeHTTP(w, r)
			return
		}
		whole := &body{ReadCloser: http.MaxBytesReader(w, r.Body, most)}
		r.Body = whole
		defer func() {
			if !whole.ended {
				_ = control.SetReadDeadline(time.Now())
			}
		}()
		handler.ServeHTTP(w, r)
	})
}

// body notes that it has come to its end.
type body struct {
	io.ReadCloser
	ended bool
}

// Read is for io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.ended = b.ended || err == io.EOF
	return n, err
}
