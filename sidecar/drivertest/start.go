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
		why:   `Start gets its arguments from driver.ControllerFrom(ctx). Called without a ControllerContext it returns the error "missing Controller Context", since core can be no clearer about a bug of its own.`,
		check: startMissingContext,
	},
	{
		name:  "serves",
		why:   "When Start returns, the driver is alive and listens on BindAddress and ProxyServerPort, with a certificate of CertManager, and takes the proxies of the mesh. What the controller reports as started is what proxies find.",
		check: startServes,
	},
	{
		name:  "strangers",
		why:   "Who shows no certificate, or one that the mesh's roots have not signed, is refused. A proxy's configuration says who may call whom, and is for that proxy alone.",
		check: startRefuses,
	},
	{
		name:  "port_taken",
		why:   "A port that is taken is an error of Start, which is fatal and leaves an Event behind. Found out later it would be a log line, and pods without a configuration.",
		check: startPortTaken,
	},
	{
		name:  "ends",
		why:   "When ctx ends the driver lets go of its port. A controller that hands over its turn, and a test, start again in the same process.",
		check: startEnds,
	},
	{
		name:  "debug_pages",
		why:   "Debug pages have paths below /debug/ that are not core's, are there when Start returns, and show no private key.",
		check: startDebugPages,
	},
}

// corePages are the debug pages of core.
var corePages = []string{
	"/debug/proxy", "/debug/config", "/debug/certs", "/debug/policies", "/debug/problems", "/debug/namespaces", "/debug/feature-flags", "/debug/pprof",
}

// quiet is how long a connection must stay open for the suite to take it as taken.
const quiet = 500 * time.Millisecond

// started is a driver that serves.
type started struct {
	*meshOfOne
	port  uint16
	pages map[string]http.Handler
	// end ends its ctx.
	end context.CancelFunc
}

// servesNothing reports whether the driver's proxies get no configuration, so that there
// is nothing to serve.
func (s subject) servesNothing() bool {
	files, err := s.translate(plain().view())
	return err == nil && len(files) == 0
}

// start calls Start for a port that is free, unless one is given. If there is no error,
// the caller must call end.
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
			return errors.New("it returned without an error, and is not alive")
		case probes.GetID() == "":
			return errors.New("its Probes have no ID, by which health checks and metrics name it")
		}
		return nil
	})
	if err != nil {
		end()
		return nil, err
	}
	return &started{mesh, port, ctrl.DebugHandlers, end}, nil
}

func freePort() (uint16, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port), nil
}

var errOtherCertificate = errors.New("it shows a certificate that is not of CertManager")

func startServes(s subject) error {
	if s.servesNothing() {
		return nil
	}
	started, err := s.start(0)
	if err != nil {
		return fmt.Errorf("starting: %w", err)
	}
	defer started.end()
	if err := started.dial(started.port, &started.workload, s.limit, quiet); err != nil {
		return fmt.Errorf("a proxy of the mesh is refused at port %d: %w", started.port, err)
	}
	return nil
}

func startRefuses(s subject) error {
	if s.servesNothing() {
		return nil
	}
	started, err := s.start(0)
	if err != nil {
		return fmt.Errorf("starting: %w", err)
	}
	defer started.end()
	other, err := NewAuthority()
	if err != nil {
		return err
	}
	// It claims to be the proxy.
	forged, err := other.IssueTo(started.view.Proxy, time.Hour)
	if err != nil {
		return err
	}
	var errs []error
	if err := started.dial(started.port, nil, s.limit, s.limit); err == nil || errors.Is(err, errOtherCertificate) {
		errs = append(errs, errors.New("a client without a certificate is not refused"))
	}
	if err := started.dial(started.port, &forged, s.limit, s.limit); err == nil || errors.Is(err, errOtherCertificate) {
		errs = append(errs, errors.New("a client whose certificate is of another root is not refused"))
	}
	return errors.Join(errs...)
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
		return errors.New("the port is taken, and Start returned no error")
	}
	if strings.Contains(err.Error(), "panicked") || strings.Contains(err.Error(), "has not returned") {
		return fmt.Errorf("the port is taken: %w", err)
	}
	return nil
}

func startEnds(s subject) error {
	if s.servesNothing() {
		return nil
	}
	started, err := s.start(0)
	if err != nil {
		return fmt.Errorf("starting: %w", err)
	}
	started.end()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for deadline := time.Now().Add(s.limit); time.Now().Before(deadline); <-again.C {
		if l, err := net.Listen("tcp", address(started.port)); err == nil {
			return l.Close()
		}
	}
	return fmt.Errorf("port %d is still taken %v after ctx has ended", started.port, s.limit)
}

func startDebugPages(s subject) error {
	if s.servesNothing() {
		return nil
	}
	started, err := s.start(0)
	if err != nil {
		return fmt.Errorf("starting: %w", err)
	}
	defer started.end()
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
}
