package probe

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/agent/socket"
	"github.com/outrigger-mesh/outrigger/internal/limit"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// Limits on concurrent probes, in total and for one client address. The port is open to the
// network and rejecting the kubelet would fail its probe, so above the limit probes of the
// address with the most are canceled.
const (
	maxProbes     = 64
	maxProbesEach = 16
)

// Options are what a server answers with.
type Options struct {
	Probes []agentspec.Probe
	PodIP  string // the address of probes without a host
	// Ready returns why the pod is not ready, or nil, and Alive why the agent should be restarted.
	Ready, Alive func(context.Context) error
	Expiry       func() int64 // when the certificate expires, in Unix seconds
	Quit         func()       // shuts the agent down
	Live         http.Handler // serves files to the proxy; nil without a mirror
	Log          *slog.Logger
	Metrics      *kit.Metrics
}

// Server answers the kubelet, the app's quitquitquit, and the proxy.
type Server struct {
	Options
	prober   *prober
	probes   map[string]agentspec.Probe
	hooks    *hooks
	slots    *limit.Share[netip.Addr]
	wasReady atomic.Bool // for logging changes only
}

// NewServer returns a server for the options, which belong to it from now on.
func NewServer(o Options) *Server {
	s := &Server{
		Options: o, prober: newProber(o.PodIP), probes: make(map[string]agentspec.Probe), hooks: newHooks(o.Probes),
		slots: limit.NewShare[netip.Addr](maxProbes, maxProbesEach),
	}
	for _, p := range o.Probes {
		s.probes[p.Path] = p
	}
	return s
}

// FinishHooks waits until no preStop hook of the app runs. Those that have not been called may
// begin until some time after the first call. A closed force ends the wait.
func (s *Server) FinishHooks(arrival time.Duration, force <-chan struct{}) {
	s.hooks.finish(arrival, force)
}

// HTTP returns the HTTP server.
func (s *Server) HTTP() *limit.Server {
	// No limit for answers: hooks may take any time, and the proxy waits minutes for changes.
	server := limit.NewServer(s, limit.Bounds{Request: 5 * time.Second, Answer: -1}, s.Log)
	// A connection costs a goroutine and buffers, and the kubelet opens a new one for each
	// probe anyway.
	server.HTTP.SetKeepAlivesEnabled(false)
	return server
}

// ServeHTTP matches exact paths, since a probe's path may contain any character.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch {
	case r.URL.Path == "/quitquitquit":
		s.serveQuit(w, r)
		return
	case r.URL.Path == "/mirror" && s.Live != nil:
		s.Live.ServeHTTP(w, r)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		kit.Reply(w, http.StatusMethodNotAllowed, "use GET")
		return
	}
	switch r.URL.Path {
	case "/ready":
		err := s.Ready(r.Context())
		if s.wasReady.Swap(err == nil) != (err == nil) {
			if err == nil {
				s.Log.Info("ready")
			} else {
				s.Log.Warn("not ready", "reason", err.Error())
			}
		}
		replyState(w, err)
	case "/alive":
		replyState(w, s.Alive(r.Context()))
	case "/metrics":
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		s.Metrics.Write(w, s.Expiry(), s.Ready(r.Context()) == nil)
	default:
		probe, ok := s.probes[r.URL.Path]
		if !ok {
			kit.Reply(w, http.StatusNotFound, "no such page")
			return
		}
		s.serveProbe(w, r, probe)
	}
}

func (s *Server) serveProbe(w http.ResponseWriter, r *http.Request, probe agentspec.Probe) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	slot, ok := s.slots.Take(limit.Address(r.RemoteAddr), 1, func() { cancel(errTooManyProbes) })
	if !ok {
		if probe.Hook != "" {
			s.failHook(probe, errTooManyProbes)
		}
		kit.Reply(w, http.StatusServiceUnavailable, errTooManyProbes.Error())
		return
	}
	defer slot.Give()
	if probe.Hook != "" {
		s.serveHook(ctx, w, r, probe)
		return
	}
	a := s.prober.probe(ctx, probe, r.Header)
	if context.Cause(ctx) == errTooManyProbes {
		a = answer{status: http.StatusServiceUnavailable, reason: errTooManyProbes.Error()}
	}
	s.Metrics.Probes.Add(1)
	if !a.ok() {
		s.Metrics.ProbesFailed.Add(1)
		s.Log.Debug("probe failed", "path", probe.Path, "reason", a.reason, "error", a.detail)
	}
	kit.Reply(w, a.status, a.reason)
}

// serveQuit shuts the agent down for an app that has finished.
func (s *Server) serveQuit(w http.ResponseWriter, r *http.Request) {
	switch {
	case !socket.IsLocal(r.RemoteAddr):
		kit.Reply(w, http.StatusForbidden, socket.LocalOnly)
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", "POST")
		kit.Reply(w, http.StatusMethodNotAllowed, "use POST")
	default:
		kit.Reply(w, http.StatusOK, "draining and stopping the proxy")
		s.Quit()
	}
}

func replyState(w http.ResponseWriter, err error) {
	if err != nil {
		kit.Reply(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	kit.Reply(w, http.StatusOK, "ok")
}

var errTooManyProbes = errors.New("too many concurrent probes")

// serveHook answers with the app's status, or closes the connection: the kubelet looks only at
// whether its request failed.
func (s *Server) serveHook(ctx context.Context, w http.ResponseWriter, r *http.Request, hook agentspec.Probe) {
	if hook.Hook == agentspec.PreStop {
		s.hooks.begin(hook.Path)
		defer s.hooks.end()
	}
	status, err := s.prober.hook(ctx, hook, r.Header)
	if context.Cause(ctx) == errTooManyProbes {
		err = errTooManyProbes
	}
	if err != nil {
		s.failHook(hook, err)
	}
	s.Metrics.Probes.Add(1)
	kit.Reply(w, status, "the app has answered")
}

// failHook does not return, but closes the client's connection.
func (s *Server) failHook(hook agentspec.Probe, err error) {
	s.Metrics.Probes.Add(1)
	s.Metrics.ProbesFailed.Add(1)
	s.Log.Warn("hook failed", "hook", hook.Hook, "port", hook.Port, "reason", probeFailure(err), "error", err)
	panic(http.ErrAbortHandler)
}
