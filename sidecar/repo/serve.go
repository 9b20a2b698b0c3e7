package repo

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// refusal is a permanent reason for not serving a client.
type refusal struct{ reason string }

func (r *refusal) Error() string { return r.reason }

func denied(format string, args ...any) error { return &refusal{fmt.Sprintf(format, args...)} }

// handle serves a request, and aborts it if it panics.
func (s *Server) handle(w http.ResponseWriter, r *http.Request) {
	c := connOf(r.Context())
	if c == nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	c.below.busy.Store(true)
	defer c.below.busy.Store(false)
	defer func() {
		if failed := recover(); failed != nil {
			s.log.Error("request panicked", "method", r.Method, "path", shortened(r.URL.Path), "panic", failed)
			panic(http.ErrAbortHandler)
		}
	}()
	s.serve(w, r, c)
}

// serve answers a request.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, c *secured) {
	state := c.ConnectionState()
	peer, err := driver.PeerOf(&state)
	if err != nil {
		s.refuse(w, r, peer, denied("%s", err))
		return
	}
	name, ok := strings.CutPrefix(r.URL.Path, Prefix+peer.ProxyUID+"/")
	if !ok {
		// Other proxies must not learn whether there is such a proxy.
		http.Error(w, "not found; this proxy's files are at "+Prefix+"<its pod's UID>/", http.StatusNotFound)
		return
	}
	select {
	case <-s.ctrl.MeshCatalog.Ready():
	default:
		s.refuse(w, r, peer, errors.New("the controller has not loaded the mesh yet"))
		return
	}
	remote, _ := netip.ParseAddrPort(r.RemoteAddr)
	session, err := s.join(r.Context(), c.below, peer, netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port()))
	if err != nil {
		s.refuse(w, r, peer, err)
		return
	}
	_, until := c.below.assigned()
	if !time.Now().Before(until) {
		w.Header().Set("Connection", "close")
	}
	ctx, cancel := context.WithDeadline(r.Context(), until)
	defer cancel()
	defer context.AfterFunc(session.ctx, cancel)()
	if session.requests.Wait(ctx) != nil {
		s.refuse(w, r, peer, errors.New("too many requests"))
		return
	}
	if name != "" {
		http.Error(w, "single files are not served, only all of them as "+mirror.ChangeType, http.StatusNotFound)
		return
	}
	session.setProgram(shortened(r.Header.Get(mirror.ProxyHeader)))
	session.feed.ServeHTTP(w, r.WithContext(ctx))
}

// refuse answers with an error and ends the connection, so that it does not count against
// the limits.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, peer driver.Peer, err error) {
	w.Header().Set("Connection", "close")
	_, permanent := errors.AsType[*refusal](err)
	if permanent || errors.Is(err, driver.ErrUnknownProxy) || errors.Is(err, driver.ErrTooManyProxies) {
		s.log.Warn("proxy refused", "uid", peer.ProxyUID, "identity", peer.Identity.String(), "address", r.RemoteAddr, "error", err)
	}
	if permanent || errors.Is(err, driver.ErrUnknownProxy) {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter.Seconds())))
	http.Error(w, err.Error(), http.StatusServiceUnavailable)
}

// shortened returns the beginning of a client's text, for the log.
func shortened(text string) string {
	const longest = 128
	if len(text) > longest {
		text = text[:longest] + "..."
	}
	return strings.ToValidUTF8(text, "")
}
