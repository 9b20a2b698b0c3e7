package drivertest

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// brokenStarts are drivers whose Start breaks a rule, by rule.
func brokenStarts() map[string][]brokenDriver {
	starts := func(start func(context.Context) (health.Probes, error)) driver.Driver { return badStart{start: start} }
	listens := func(change func(*driver.ControllerContext, *tls.Config)) driver.Driver {
		return starts(func(ctx context.Context) (health.Probes, error) {
			return serve(ctx, func(ctrl *driver.ControllerContext) *tls.Config {
				config := goodTLS(ctrl)
				config.GetConfigForClient = nil
				change(ctrl, config)
				return config
			})
		})
	}
	shows := func(path, text string) driver.Driver {
		return starts(func(ctx context.Context) (health.Probes, error) {
			probes, err := good{}.Start(ctx)
			if ctrl, wrong := driver.ControllerFrom(ctx); wrong == nil {
				ctrl.DebugHandlers[path] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, text) })
			}
			return probes, err
		})
	}
	idle := func(probes health.Probes) driver.Driver {
		return starts(func(context.Context) (health.Probes, error) { return probes, nil })
	}
	// deaf ignores that it cannot listen.
	deaf := starts(func(ctx context.Context) (health.Probes, error) {
		if probes, err := (good{}).Start(ctx); err == nil {
			return probes, nil
		}
		return health.Func{ID: "deaf"}, nil
	})
	return map[string][]brokenDriver{
		"missing_context": {
			{"no error", idle(nil), "no error"},
			{"other words", starts(func(context.Context) (health.Probes, error) { return nil, errors.New("nothing here") }), "nothing here"},
			{"panic", starts(func(ctx context.Context) (health.Probes, error) {
				return nil, errors.New(ctx.Value(&driver.ControllerCtxKey).(*driver.ControllerContext).OsmNamespace)
			}), "panicked"},
		},
		"serves": {
			{"refuses", starts(func(context.Context) (health.Probes, error) { return nil, errors.New("not today") }), "starting: not today"},
			{"no Probes", idle(nil), "neither an error nor Probes"},
			{"no ID", idle(health.Func{}), "have no ID"},
			{"not alive", idle(health.Func{ID: "dead", Live: func() bool { return false }}), "is not alive"},
			{"does not listen", idle(health.Func{ID: "idle"}), "is rejected at port"},
			{"a certificate of its own", listens(func(ctrl *driver.ControllerContext, config *tls.Config) {
				other, err := newMeshOfOne()
				if err == nil {
					config.Certificates = []tls.Certificate{other.server}
				}
			}), errOtherCertificate.Error()},
			{"trusts other roots", listens(func(_ *driver.ControllerContext, config *tls.Config) {
				other, err := newMeshOfOne()
				if err == nil {
					config.ClientCAs = other.ServerTLS().ClientCAs
				}
			}), "a proxy of the mesh is rejected"},
		},
		"unauthenticated_clients": {
			{"asks for no certificate", listens(func(_ *driver.ControllerContext, config *tls.Config) { config.ClientAuth = tls.NoClientCert }), "a client without a certificate is not rejected"},
			{"takes any certificate", listens(func(_ *driver.ControllerContext, config *tls.Config) { config.ClientAuth = tls.RequireAnyClientCert }), "a client with a certificate of another root is not rejected"},
		},
		"port_taken": {
			{"goes on", deaf, "Start returned no error"},
			{"panics", starts(func(ctx context.Context) (health.Probes, error) {
				if _, err := (good{}).Start(ctx); err != nil {
					panic(err)
				}
				return nil, nil
			}), "panicked"},
		},
		"ends": {{"keeps its port", starts(func(ctx context.Context) (health.Probes, error) {
			// Serve must keep running, or the collected listener would be closed.
			return good{}.Start(context.WithoutCancel(ctx))
		}), "is still taken"}},
		"debug_pages": {
			{"elsewhere", shows("/metrics", ""), `"/metrics" is not below /debug/`},
			{"core's", shows("/debug/proxy", ""), "the page /debug/proxy is core's"},
			{"below core's", shows("/debug/pprof/", ""), "the page /debug/pprof/ is core's"},
			{"a key", shows("/debug/keys", "-----BEGIN PRIVATE KEY-----"), "the page /debug/keys shows a private key"},
		},
	}
}
