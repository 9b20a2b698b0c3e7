package limit

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// Bounds limit the use of an HTTP server by its clients. All servers of the control
// plane and of the agent use them. The zero Bounds suit short requests, such as for
// health and metrics.
type Bounds struct {
	// Connections is the maximum number of concurrent connections, and Each that from one
	// address; 0 means 256 and 64. A negative value means that the listener is already
	// limited.
	Connections, Each int
	// Request limits how long a request may take to arrive, including TLS and body; 0
	// means 10 seconds. A request without a body has no limit after its header.
	Request time.Duration
	// Answer limits the time from the header of a request to the end of its response; 0
	// means 1 minute, and a negative value no limit.
	Answer time.Duration
	// Idle limits the wait for the next request on a connection; 0 means 1 minute.
	Idle time.Duration
	// Header and Body limit the size of each in bytes; 0 means 16 KiB and 64 KiB.
	Header int
	Body   int64
}

// Defaults of Bounds.
const (
	connections     = 256
	connectionsEach = 64
	requestTimeout  = 10 * time.Second
	answerTimeout   = time.Minute
	idleTimeout     = time.Minute
	headerBytes     = 16 << 10
	bodyBytes       = 64 << 10
)

// streams limits the concurrent requests of an HTTP/2 connection, and window the unread
// bytes that it may send.
const (
	streams = 250
	window  = 64 << 10
)

func (b Bounds) withDefaults() Bounds {
	b.Connections = cmp.Or(b.Connections, connections)
	b.Each = cmp.Or(b.Each, connectionsEach)
	b.Request = cmp.Or(b.Request, requestTimeout)
	b.Answer = max(cmp.Or(b.Answer, answerTimeout), 0)
	b.Idle = cmp.Or(b.Idle, idleTimeout)
	b.Header = cmp.Or(b.Header, headerBytes)
	b.Body = cmp.Or(b.Body, bodyBytes)
	return b
}

// Server serves HTTP within Bounds.
type Server struct {
	// HTTP is the underlying server. Fields that Bounds do not cover may be set before
	// Serve, such as TLSConfig and ConnContext.
	HTTP   *http.Server
	bounds Bounds
	log    *slog.Logger
}

// NewServer returns a Server of the handler. Bodies are limited to the Bounds.
// Connection errors are logged at debug level.
func NewServer(handler http.Handler, bounds Bounds, log *slog.Logger) *Server {
	bounds = bounds.withDefaults()
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
				// Pings detect vanished clients.
				SendPingTimeout: bounds.Idle,
			},
			ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		},
	}
}

// Serve serves on the listener until it fails or the server is shut down, which returns
// http.ErrServerClosed. It uses TLS if the server has a TLSConfig.
func (s *Server) Serve(listener net.Listener) error {
	if s.bounds.Connections > 0 {
		address := listener.Addr().String()
		listener = Listener(listener, NewShare[netip.Addr](s.bounds.Connections, s.bounds.Each), func() {
			s.log.Debug("too many connections; closing one", "listener", address)
		})
	}
	if s.HTTP.TLSConfig != nil {
		return s.HTTP.ServeTLS(listener, "", "")
	}
	return s.HTTP.Serve(listener)
}

// Run serves until ctx ends, then for another delay, in which callers learn of the
// shutdown, and then for at most ten seconds until pending requests are answered. It
// closes the listener.
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

// bounded limits the body of each request, and does not wait for a body that the
// handler has not read.
func bounded(handler http.Handler, maxBytes int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if r.Body == nil || r.Body == http.NoBody {
			// Otherwise the read timeout would end requests with slow responses.
			_ = control.SetReadDeadline(time.Time{})
			handler.ServeHTTP(w, r)
			return
		}
		tracked := &body{ReadCloser: http.MaxBytesReader(w, r.Body, maxBytes)}
		r.Body = tracked
		defer func() {
			if !tracked.ended {
				_ = control.SetReadDeadline(time.Now())
			}
		}()
		handler.ServeHTTP(w, r)
	})
}

// body records whether it was read to its end.
type body struct {
	io.ReadCloser
	ended bool
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.ended = b.ended || err == io.EOF
	return n, err
}
