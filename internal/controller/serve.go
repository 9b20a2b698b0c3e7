package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/internal/dashboard"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/limit"
	"github.com/outrigger-mesh/outrigger/internal/version"
)

// listeners are the sockets that are opened before the stages start.
type listeners struct {
	health, identity net.Listener
	// proxies is nil without an API server, which would authorize the users.
	proxies net.Listener
}

func (o *Options) listen() (*listeners, error) {
	var l listeners
	var err error
	if l.health, err = net.Listen("tcp", o.address(o.HealthListen)); err != nil {
		return nil, fmt.Errorf("listening for health checks: %w; choose another address with --health-listen", err)
	}
	if l.identity, err = net.Listen("tcp", o.address(o.IdentityListen)); err != nil {
		return nil, errors.Join(fmt.Errorf("listening for certificate requests: %w; choose another address with --identity-listen", err), l.health.Close())
	}
	if o.ProxyListen == "" {
		return &l, nil
	}
	if l.proxies, err = net.Listen("tcp", o.address(o.ProxyListen)); err != nil {
		return nil, errors.Join(fmt.Errorf("listening for 'outrigger proxy': %w; choose another address with --proxy-listen", err), l.health.Close(), l.identity.Close())
	}
	return &l, nil
}

// close closes sockets whose server was not started; servers close their own.
func (l *listeners) close() {
	_ = l.health.Close()
	_ = l.identity.Close()
	if l.proxies != nil {
		_ = l.proxies.Close()
	}
}

// address adds --bind-address to an address that has only a port.
func (o *Options) address(of string) string {
	host, port, err := net.SplitHostPort(of)
	if err != nil || host != "" {
		return of
	}
	return net.JoinHostPort(o.BindAddress, port)
}

// serveProbes serves health, metrics and the version.
func serveProbes(ctx context.Context, listener net.Listener, metrics *prometheus.Registry, log *slog.Logger, probes func() health.Probes) error {
	mux := http.NewServeMux()
	mux.Handle("/version", version.Handler())
	mux.Handle("/metrics", promhttp.HandlerFor(prometheus.Gatherers{metrics, ctrlmetrics.Registry}, promhttp.HandlerOpts{}))
	mux.HandleFunc("/health/alive", func(w http.ResponseWriter, r *http.Request) { health.LivenessHandler(probes()).ServeHTTP(w, r) })
	mux.HandleFunc("/health/ready", func(w http.ResponseWriter, r *http.Request) { health.ReadinessHandler(probes()).ServeHTTP(w, r) })
	return limit.NewServer(mux, limit.Bounds{}, log).Run(ctx, listener, 0)
}

// serveProxies serves the restricted pages to authorized users, whether or not the debug pages
// are on. Without a listener it does nothing.
func serveProxies(ctx context.Context, listener net.Listener, shown debug.Sources, review debug.Review, log *slog.Logger) error {
	if listener == nil {
		<-ctx.Done()
		return nil
	}
	handler := debug.Guard(debug.Restricted(shown), review, log)
	// The page of traffic waits for the end of its period.
	bounds := limit.Bounds{Answer: debug.MaxPeriod + time.Minute}
	return limit.NewServer(handler, bounds, log).Run(ctx, listener, 0)
}

// dashboardPath is where the dashboard is among the debug pages.
const dashboardPath = "/debug/dashboard/"

// dashboardPages returns the dashboard of this controller's proxies as debug pages.
func dashboardPages(shown debug.Sources, log *slog.Logger) map[string]http.Handler {
	ask := func(ctx context.Context, path string, take func(string, []byte) error) error {
		answer, err := shown.Answer(ctx, path)
		if err != nil {
			return err
		}
		if err := take("this controller", answer); !errors.Is(err, debug.ErrEnough) {
			return err
		}
		return nil
	}
	page := dashboard.New(dashboard.Options{Ask: ask, Log: log})
	return map[string]http.Handler{dashboardPath: http.StripPrefix(strings.TrimSuffix(dashboardPath, "/"), page)}
}
