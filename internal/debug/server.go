// Package debug serves the controller's debug pages: the mesh, the configuration of its
// proxies, and problems. It only reads, and no page contains a key or a secret.
//
// The pages need no authentication, so they are off unless the MeshConfig turns them on.
// Guard serves a single page to authenticated users.
package debug

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/bell"
	"github.com/outrigger-mesh/outrigger/internal/limit"
)

// Merge returns the pages of all sets, by their full paths. Duplicate paths and paths that
// are not below /debug/ are errors.
func Merge(sets ...map[string]http.Handler) (map[string]http.Handler, error) {
	all := make(map[string]http.Handler)
	for _, set := range sets {
		for _, path := range slices.Sorted(maps.Keys(set)) {
			switch {
			case !strings.HasPrefix(path, "/debug/") || strings.ContainsAny(path, "{} "):
				return nil, fmt.Errorf("the debug page %q has no path below /debug/", path)
			case set[path] == nil:
				return nil, fmt.Errorf("the debug page %s has no handler", path)
			case all[path] != nil:
				return nil, fmt.Errorf("the debug page %s is there twice; a driver must choose another path", path)
			}
			all[path] = set[path]
		}
	}
	return all, nil
}

// Server serves pages while it is switched on.
type Server struct {
	listen func() (net.Listener, error)
	pages  atomic.Pointer[http.ServeMux]
	log    *slog.Logger
	on     atomic.Bool
	wake   bell.Bell // Switch rings it
}

// profileWithin leaves time for a profile of some minutes.
const profileWithin = 10 * time.Minute

// retry is how long a Server waits after it could not listen.
const retry = 5 * time.Second

// NewServer returns a Server for a TCP address. It is off, has no pages, and does nothing
// before Run.
func NewServer(address string, log *slog.Logger) *Server {
	s := &Server{log: log, wake: bell.New()}
	s.listen = func() (net.Listener, error) { return net.Listen("tcp", address) }
	s.Show(nil)
	return s
}

// Show replaces the pages that the Server serves, with an index of them at /debug. It may be
// called at any time.
func (s *Server) Show(pages map[string]http.Handler) {
	mux := http.NewServeMux()
	for path, page := range pages {
		mux.Handle("GET "+path, page)
	}
	paths := slices.Sorted(maps.Keys(pages))
	index := page(func(*http.Request) (any, error) { return map[string]any{"pages": paths}, nil })
	mux.Handle("GET /debug", index)
	mux.Handle("GET /debug/{$}", index)
	mux.Handle("GET /{$}", index)
	s.pages.Store(mux)
}

// Switch turns the Server on or off, without waiting for the effect.
func (s *Server) Switch(on bool) {
	s.on.Store(on)
	s.wake.Ring()
}

// Run serves while the Server is on, until ctx ends. It is called once.
func (s *Server) Run(ctx context.Context) {
	for ctx.Err() == nil {
		var again <-chan time.Time
		if s.on.Load() {
			s.serve(ctx)
			again = time.After(retry)
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-again:
		}
	}
}

// serve returns when the Server is switched off, ctx ends or serving fails.
func (s *Server) serve(ctx context.Context) {
	listener, err := s.listen()
	if err != nil {
		s.log.Error("the debug pages are not served; trying again", "error", err)
		return
	}
	s.log.Info("the debug pages are served; turn spec.observability.enableDebugServer of the MeshConfig off to end that", "address", listener.Addr().String())
	pages := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.pages.Load().ServeHTTP(w, r) })
	server := limit.NewServer(pages, limit.Bounds{Answer: profileWithin}, s.log)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	for s.on.Load() && ctx.Err() == nil {
		select {
		case <-s.wake:
		case <-ctx.Done():
		case err := <-failed:
			s.log.Error("the debug pages are not served; trying again", "error", err)
			return
		}
	}
	// Do not wait for a running profile.
	if err := server.HTTP.Close(); err != nil {
		s.log.Warn("closing the debug pages", "error", err)
	}
	<-failed
	s.log.Info("the debug pages are off")
}
