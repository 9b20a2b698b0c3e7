// Package delivery is the common part of the delivery kits sidecar/xds and
// sidecar/repo: which proxies are served and for how long, and how a kit's server
// becomes a driver's Start and debug page.
package delivery

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Complete returns an error unless the ControllerContext has everything that a kit
// needs.
func Complete(ctrl *driver.ControllerContext) error {
	if ctrl == nil || ctrl.MeshCatalog == nil || ctrl.MsgBroker == nil || ctrl.CertManager == nil || ctrl.Proxies == nil || ctrl.Configurator == nil {
		return errors.New("the ControllerContext lacks one of Configurator, MeshCatalog, MsgBroker, CertManager and Proxies")
	}
	return nil
}

// Class returns the class to serve.
func Class(ctrl *driver.ControllerContext) string {
	if ctrl.SidecarClass != "" {
		return ctrl.SidecarClass
	}
	return ctrl.Configurator.GetSidecarClass()
}

// Admit returns an error unless the View belongs to the peer and its proxy is of the
// served class.
func Admit(ctrl *driver.ControllerContext, peer driver.Peer, view *mesh.View) error {
	switch p, class := view.Proxy, Class(ctrl); {
	case p.UID != peer.ProxyUID:
		return fmt.Errorf("the View is for pod UID %q, but the certificate for %q", p.UID, peer.ProxyUID)
	case p.Identity != peer.Identity:
		return fmt.Errorf("pod %s is %s, and the proxy's certificate says %s", p.Name, p.Identity, peer.Identity)
	case !strings.EqualFold(p.Class, class):
		return fmt.Errorf("pod %s has a sidecar of class %q, and this port serves class %q", p.Name, p.Class, class)
	}
	return nil
}

// Lifetime returns how long a connection may last whose certificate is valid for that
// long: somewhat less, with jitter, so that not all proxies reconnect at once.
func Lifetime(left time.Duration) time.Duration {
	const (
		part    = 10
		longest = 10 * time.Minute
	)
	margin := min(left/part, longest)
	if margin <= 0 {
		return 0
	}
	return left - margin - rand.N(margin)
}

// Speak restricts a configuration, which it changes, and those chosen by its
// GetConfigForClient to one application protocol. The function, if not nil, is called
// with each of them.
func Speak(config *tls.Config, protocol string, also func(*tls.Config)) *tls.Config {
	set := func(config *tls.Config) {
		config.NextProtos = []string{protocol}
		if also != nil {
			also(config)
		}
	}
	set(config)
	if choose := config.GetConfigForClient; choose != nil {
		config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := choose(hello)
			if err != nil || chosen == nil {
				return chosen, err
			}
			chosen = chosen.Clone()
			set(chosen)
			return chosen, nil
		}
	}
	return config
}

// Service describes what a driver serves, for Start.
type Service struct {
	// Name is the driver's name and the prefix of errors.
	Name string
	// Port is the port to use if the ControllerContext has none.
	Port uint32
	// DebugPath is the full path of the debug page.
	DebugPath string
}

// Server is the server of a kit.
type Server interface {
	// Serve serves on the listener until ctx ends, and closes it.
	Serve(ctx context.Context, listener net.Listener) error
	// Probes returns the Server's probes.
	Probes(id string) health.Probes
	// Debug returns the debug page.
	Debug() http.Handler
	// Log returns the logger that the Server uses.
	Log() *slog.Logger
}

// Start implements a driver's Start: until ctx ends it serves on the port of the
// ControllerContext that ctx carries, with the server that open returns, and registers
// the debug page. If serving fails, it calls the controller's CancelFunc. It returns an
// error if it cannot listen on the port or the context is incomplete.
func Start[S Server](ctx context.Context, service Service, open func(*driver.ControllerContext) (S, error)) (health.Probes, error) {
	ctrl, err := driver.ControllerFrom(ctx)
	if err != nil {
		return nil, err
	}
	server, err := open(ctrl)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", service.Name, err)
	}
	port := cmp.Or(ctrl.ProxyServerPort, service.Port)
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(ctrl.BindAddress, strconv.FormatUint(uint64(port), 10)))
	if err != nil {
		return nil, fmt.Errorf("%s: listening for proxies: %w; sidecarDrivers of the MeshConfig can name another proxyServerPort", service.Name, err)
	}
	if ctrl.DebugHandlers == nil {
		ctrl.DebugHandlers = make(map[string]http.Handler)
	}
	ctrl.DebugHandlers[service.DebugPath] = server.Debug()
	go func() {
		if err := server.Serve(ctx, listener); err != nil {
			server.Log().Error("serving proxies failed", "error", err)
			if ctrl.CancelFunc != nil {
				ctrl.CancelFunc()
			}
		}
	}()
	return server.Probes(service.Name), nil
}

// resyncCheckInterval is how often Watch checks whether a resync is due.
const resyncCheckInterval = time.Second

// Watch calls changed with the UID of each proxy whose View has changed, which changes
// yields, and resync regularly with the time since when every proxy must have been sent its
// complete configuration. It returns when stop is closed.
func Watch(ctrl *driver.ControllerContext, changes <-chan string, stop <-chan struct{}, changed func(uid string), resync func(since time.Time)) {
	ticker := time.NewTicker(resyncCheckInterval)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case uid, ok := <-changes:
			if ok {
				changed(uid)
			} else {
				changes = nil
			}
		case now := <-ticker.C:
			if interval := ctrl.Configurator.GetConfigResyncInterval(); interval > 0 {
				resync(now.Add(-interval))
			}
		}
	}
}

// Page describes one proxy on a debug page.
type Page interface {
	// Names returns the pod's name and UID.
	Names() (pod, uid string)
}

// Debug returns a handler that answers GET with JSON: the connected proxies, which
// connected returns in any order, or with ?proxy=UID what get returns for that proxy,
// connected or not.
func Debug[P Page](ctrl *driver.ControllerContext, connected func() []P, get func(*mesh.View) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET is answered", http.StatusMethodNotAllowed)
			return
		}
		var page any
		if uid := r.URL.Query().Get("proxy"); uid != "" {
			view, ok := ctrl.MeshCatalog.View(uid)
			if !ok || !strings.EqualFold(view.Proxy.Class, Class(ctrl)) {
				http.Error(w, "no proxy of this class has that UID", http.StatusNotFound)
				return
			}
			var err error
			if page, err = get(view); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		} else {
			pages := connected()
			slices.SortFunc(pages, func(a, b P) int {
				pod, uid := a.Names()
				otherPod, otherUID := b.Names()
				return cmp.Or(cmp.Compare(pod, otherPod), cmp.Compare(uid, otherUID))
			})
			page = pages
		}
		content, err := json.MarshalIndent(page, "", "  ")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(content, '\n'))
	})
}

// PodObject returns the proxy's own pod, for parts that are made from many objects.
func PodObject(proxy *mesh.Proxy) mesh.ObjectRef {
	return mesh.ObjectRef{APIVersion: "v1", Kind: "Pod", Namespace: proxy.Namespace, Name: proxy.Name.Name}
}
