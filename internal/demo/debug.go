package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"

	"github.com/outrigger-mesh/outrigger/internal/limit"
)

// serveDebug serves the controller's debug pages and the API of pods on this machine, whose
// network the demo does not share, until ctx ends. The function that it returns waits for that.
func (s *stage) serveDebug(ctx context.Context) (wait func() error, err error) {
	listener, err := net.Listen("tcp", s.opts.DebugListen)
	if errors.Is(err, syscall.EADDRINUSE) {
		// Another demo may run.
		host, _, _ := net.SplitHostPort(s.opts.DebugListen)
		listener, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return nil, fmt.Errorf("serving the debug pages: %w; choose another address with --debug-listen", err)
	}
	address := listener.Addr().String()
	s.say("Look into the mesh from another terminal: outrigger stat all --debug-address " + address)
	s.say("See live requests: outrigger tap -A --debug-address " + address)
	mux := http.NewServeMux()
	mux.Handle("/", s.mesh.DebugPages())
	(&podsAPI{s.runningPods, s.journals}).mount(mux)
	ended := make(chan error, 1)
	go func() {
		ended <- limit.NewServer(only(address, mux), limit.Bounds{Answer: -1}, s.opts.Log).Run(ctx, listener, 0)
	}()
	return func() error { return <-ended }, nil
}

// only admits requests that name the address. A page of the Internet that a browser shows
// cannot read the pages by having its own name resolved to this machine.
func only(address string, pages http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != address {
			http.Error(w, "this is "+address+", not "+r.Host, http.StatusMisdirectedRequest)
			return
		}
		pages.ServeHTTP(w, r)
	})
}
