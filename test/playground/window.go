// Package playground runs a folder of manifests as a mesh on this machine, for people who want
// to see their programs in a mesh before they install one: each container's command runs in a
// pod of the mesh. It shows the mesh (dashboard, debug pages, logs), runs commands in its pods,
// and follows changes of the manifests. The demo shows its mesh with it too.
package playground

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/internal/dashboard"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/limit"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// Window is what people see of a running mesh: a dashboard, the controller's debug pages, the
// ports of gateways, and the sessions of other commands. All its fields are required.
type Window struct {
	Mesh     *localmesh.Mesh
	Journals *Journals
	// Dashboard is the address to serve the dashboard at, as HOST:PORT; the port may be 0.
	Dashboard string
	// DebugListen is the address at which the controller's debug pages are served on this
	// machine. If its port is taken, another one is used.
	DebugListen string
	// Name is the name by which other commands find the mesh. If it is taken, the mesh gets
	// a number too.
	Name string
	// Say receives lines for people.
	Say func(line string)
	Log *slog.Logger
}

// While opens the window while f runs, and returns f's error.
func (w *Window) While(ctx context.Context, f func(context.Context) error) (err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	var group errgroup.Group
	defer func() {
		end()
		err = errors.Join(err, group.Wait())
	}()
	page, err := net.Listen("tcp", w.Dashboard)
	if err != nil {
		return fmt.Errorf("listening for the dashboard: %w; choose another address with --dashboard", err)
	}
	options := dashboard.Options{Ask: w.ask, Log: w.Log}
	address := options.Local(page)
	group.Go(func() error {
		return limit.NewServer(dashboard.New(options), limit.Bounds{}, w.Log).Run(ctx, page, 0)
	})
	debugging, err := w.listenDebug()
	if err != nil {
		return err
	}
	group.Go(func() error { return w.serveDebug(ctx, debugging) })
	s, err := newSession(w, Info{Name: w.Name, Dashboard: address, Debug: debugging.Addr().String()})
	if err != nil {
		return err
	}
	group.Go(func() error { return s.serve(ctx) })
	host, _, err := net.SplitHostPort(page.Addr().String())
	if err != nil {
		return err
	}
	gateways := &doors{mesh: w.Mesh, host: host, say: w.Say, log: w.Log}
	group.Go(func() error { return gateways.serve(ctx) })
	w.Say("The dashboard is at " + address)
	w.Say("Look into the mesh from another terminal: outrigger stat all --debug-address " + s.info.Debug)
	w.Say("See live requests: outrigger tap -A --debug-address " + s.info.Debug)
	return f(ctx)
}

// ask is the dashboard's way to the controller.
func (w *Window) ask(ctx context.Context, path string, take func(controller string, answer []byte) error) error {
	answer, err := w.Mesh.Debug(ctx, path)
	if err != nil {
		return err
	}
	if err := take("the controller", answer); !errors.Is(err, debug.ErrEnough) {
		return err
	}
	return nil
}

func (w *Window) listenDebug() (net.Listener, error) {
	listener, err := net.Listen("tcp", w.DebugListen)
	if errors.Is(err, syscall.EADDRINUSE) {
		// Another mesh may run.
		host, _, _ := net.SplitHostPort(w.DebugListen)
		listener, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return nil, fmt.Errorf("serving the debug pages: %w; choose another address with --debug-listen", err)
	}
	return listener, nil
}

// serveDebug serves the controller's debug pages and the API of pods on this machine, whose
// network the mesh does not share, until ctx ends.
func (w *Window) serveDebug(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("/", w.Mesh.DebugPages())
	(&podsAPI{w.runningPods, w.Journals}).mount(mux)
	return limit.NewServer(only(listener.Addr().String(), mux), limit.Bounds{Answer: -1}, w.Log).Run(ctx, listener, 0)
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
