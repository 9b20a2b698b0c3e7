// Package dashboard serves a web page that shows the mesh: who calls whom, what is refused
// and why, and the state and configuration of each proxy. It only reads. What it shows comes
// from the controllers' pages of package debug.
//
// The folder web contains the source of the page, and web/dist the files that are built of it
// and embedded in the program.
package dashboard

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net"
	"net/http"
)

// Ask requests a page of every controller and calls take with the controller's name and the
// answer, which is nil if the controller does not know what the path asks for. If take returns
// debug.ErrEnough, no other controller is asked. The error names the controllers that have not
// answered.
type Ask func(ctx context.Context, path string, take func(controller string, answer []byte) error) error

// Options configure a dashboard. Ask is required.
type Options struct {
	Ask Ask
	// Key is a secret that a browser must know, as part of the address with which it opens
	// the page. It is empty if something else decides who may see the page.
	Key string
	// Hosts are the values of the Host header that are accepted, so that another site's name
	// cannot be made to refer to this server. Empty means any.
	Hosts []string
	// Log receives what could not be read.
	Log *slog.Logger
}

// Local adds a new Key, and the Hosts of a listener on this machine. It returns the address for
// a browser.
func (o *Options) Local(listener net.Listener) string {
	o.Key = rand.Text()
	address := listener.Addr().String()
	o.Hosts = []string{address}
	if _, port, err := net.SplitHostPort(address); err == nil {
		o.Hosts = append(o.Hosts, net.JoinHostPort("localhost", port))
	}
	return "http://" + address + "/?key=" + o.Key
}

// New returns the handler of a dashboard at the path /.
func New(o Options) http.Handler {
	d := &dashboard{options: o, rules: newRules(o.Ask), meter: &meter{ask: o.Ask}}
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", page())
	mux.Handle("GET /assets/", assets())
	mux.Handle("GET /api/mesh", answer(d.mesh))
	mux.Handle("GET /api/pod", answer(d.pod))
	mux.Handle("GET /api/explain", answer(d.explain))
	return guarded(o, mux)
}

type dashboard struct {
	options Options
	rules   *rules
	meter   *meter
}
