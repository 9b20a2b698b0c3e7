package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"
)

var startRules = []rule{
	{
		name:  "missing_context",
		why:   `Start gets its arguments from driver.ControllerFrom(ctx). Without a ControllerContext it returns the error "missing Controller Context", which points to a bug in the caller.`,
		check: startMissingContext,
	},
	{
		name:  "serves",
		why:   "When Start returns, the driver is alive, listens on BindAddress and ProxyServerPort with a certificate of CertManager, and accepts the proxies of the mesh. Proxies can rely on what the controller reports as started.",
		check: startServes,
	},
	{
		name:  "unauthenticated_clients",
		why:   "Clients without a certificate, or with one that the mesh's roots have not signed, are rejected. A proxy's configuration says who may call whom, and is for that proxy only.",
		check: startRefuses,
	},
	{
		name:  "port_taken",
		why:   "If the port is taken, Start returns an error, which is fatal and leaves an Event. Later it would only be a log line, and pods would have no configuration.",
		check: startPortTaken,
	},
	{
		name:  "ends",
		why:   "When ctx ends, the driver releases its port. After losing leadership, and in tests, a controller starts again in the same process.",
		check: startEnds,
	},
	{
		name:  "debug_pages",
		why:   "Debug pages have paths below /debug/ that the core does not use, exist when Start returns, and show no private keys.",
		check: startDebugPages,
	},
}

// corePages are the debug pages of the core.
var corePages = []string{
	"/debug/proxy", "/debug/config", "/debug/certs", "/debug/policies", "/debug/problems", "/debug/namespaces", "/debug/feature-flags", "/debug/pprof",
}

// quiet is how long a connection must stay open to count as accepted.
const quiet = 500 * time.Millisecond

// started is a running driver.
type started struct {
	*meshOfOne
	port  uint16
	pages map[string]http.Handler
	// end cancels its ctx.
	end context.CancelFunc
}

// servesNothing reports whether the driver's proxies get no configuration.
func (s subject) servesNothing() bool {
	files, err := s.translate(plain().view())
	return err == nil && len(files) == 0
}

// start calls Start with the given port, or with a free one if it is 0. Without an
// error, the caller must call end.
func (s subject) start(port uint16) (*started, error) {
	mesh, err := newMeshOfOne()
	if err != nil {
		return nil, err
	}
	if port == 0 {
		if port, err = freePort(); err != nil {
			return nil, err
		}
	}
	ctx, end := context.WithCancel(context.Background())
	ctrl := mesh.Context(ctx, port)
	err = s.call("Start", func() error {
		probes, err := s.driver.Start(ctrl)
		switch {
		case err != nil:
			return err
		case probes == nil:
			return errors.New("it returned neither an error nor Probes")
		case !probes.Liveness():
			return errors.New("it returned without an error, but is not alive")
		case probes.GetID() == "":
			return errors.New("its Probes have no ID, which health checks and metrics use")
		}
		return nil
	})
	if err != nil {
		end()
		return nil, err
	}
	return &started{mesh, port, ctrl.DebugHandlers, end}, nil
}

// whileStarted calls check while the driver serves, unless there is nothing to serve.
func (s subject) whileStarted(check func(*started) error) error {
	if s.servesNothing() {
		return nil
	}
	started, err := s.start(0)
	if err != nil {
		return fmt.Errorf("starting: %w", err)
	}
	defer started.end()
	return check(started)
}

func freePort() (uint16, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port), nil
}

var errOtherCertificate = errors.New("it serves with a certificate that is not from CertManager")

func startServes(s subject) error {
	return s.whileStarted(func(started *started) error {
		if err := started.dial(started.port, &started.workload, s.limit, quiet); err != nil {
			return fmt.Errorf("a proxy of the mesh is rejected at port %d: %w", started.port, err)
		}
		return nil
	})
}

func startRefuses(s subject) error {
	return s.whileStarted(func(started *started) error {
		other, err := NewAuthority()
		if err != nil {
			return err
		}
		// The certificate has the proxy's names, but another root.
		forged, err := other.IssueTo(started.view.Proxy, time.Hour)
		if err != nil {
			return err
		}
		var errs []error
		if err := started.dial(started.port, nil, s.limit, s.limit); err == nil || errors.Is(err, errOtherCertificate) {
			errs = append(errs, errors.New("a client without a certificate is not rejected"))
		}
		if err := started.dial(started.port, &forged, s.limit, s.limit); err == nil || errors.Is(err, errOtherCertificate) {
			errs = append(errs, errors.New("a client with a certificate of another root is not rejected"))
		}
		return errors.Join(errs...)
	})
}

func startPortTaken(s subject) error {
	if s.servesNothing() {
		return nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	started, err := s.start(uint16(l.Addr().(*net.TCPAddr).Port))
	if err == nil {
		started.end()
		return errors.New("the port is taken, but Start returned no error")
	}
	if strings.Contains(err.Error(), "panicked") || strings.Contains(err.Error(), "has not returned") {
		return fmt.Errorf("the port is taken: %w", err)
	}
	return nil
}

func startEnds(s subject) error {
	return s.whileStarted(func(started *started) error {
		started.end()
		again := time.NewTicker(10 * time.Millisecond)
		defer again.Stop()
		for deadline := time.Now().Add(s.limit); time.Now().Before(deadline); <-again.C {
			if l, err := net.Listen("tcp", address(started.port)); err == nil {
				return l.Close()
			}
		}
		return fmt.Errorf("port %d is still taken %v after ctx has ended", started.port, s.limit)
	})
}

func startDebugPages(s subject) error {
	return s.whileStarted(func(started *started) error {
		var errs []error
		for path, handler := range started.pages {
			if !strings.HasPrefix(path, "/debug/") || path == "/debug/" {
				errs = append(errs, fmt.Errorf("the page %q is not below /debug/", path))
			}
			for _, core := range corePages {
				if strings.TrimSuffix(path, "/") == strings.TrimSuffix(core, "/") {
					errs = append(errs, fmt.Errorf("the page %s is core's", path))
				}
			}
			answer := httptest.NewRecorder()
			err := s.call("the page "+path, func() error {
				handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
				return nil
			})
			if err != nil {
				errs = append(errs, err)
			} else if bytes.Contains(answer.Body.Bytes(), []byte("PRIVATE KEY-----")) {
				errs = append(errs, fmt.Errorf("the page %s shows a private key", path))
			}
		}
		return errors.Join(errs...)
	})
}
