package cli

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/controller"
)

// running is a running controller.
type running struct {
	address string
	log     *syncBuffer
	stop    func()
}

// start runs a controller until stop is called or the test ends, and waits until it
// is ready.
func (c *controllerTest) start(t *testing.T) *running {
	t.Helper()
	r := c.begin(t)
	eventually(t, "the controller is ready", func() error {
		_, err := r.get("/health/ready")
		return err
	})
	if _, err := r.get("/health/alive"); err != nil {
		t.Error(err)
	}
	return r
}

// begin is start without the wait.
func (c *controllerTest) begin(t *testing.T) *running {
	t.Helper()
	address := freeAddress(t)
	return begin(t, address, c.flags(address))
}

// begin runs a controller until stop is called or the test ends.
func begin(t *testing.T, address string, f *controllerFlags) *running {
	t.Helper()
	log := &syncBuffer{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.run(ctx, slog.New(slog.NewTextHandler(log, nil))) }()
	r := &running{address: address, log: log, stop: sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the controller ended with: %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Error("the controller does not end")
		}
	})}
	t.Cleanup(func() {
		r.stop()
		if t.Failed() {
			t.Logf("the controller's log:\n%s", log)
		}
	})
	return r
}

func (c *controllerTest) flags(address string) *controllerFlags {
	return &controllerFlags{
		kube:   kubeFlags{kubeconfig: c.kubeconfig},
		mesh:   meshFlags{Name: "osm", Namespace: controlPlane, Config: "osm-mesh-config", Revision: "default"},
		source: sourceKube, templateConfigMap: "outrigger-injector",
		Options: controller.Options{
			BindAddress: ownAddress(), HealthListen: address, IdentityListen: ":0", DebugListen: ":0", ProxyListen: ":0",
			ClusterDomain: "cluster.local", LeaderElect: true,
		},
	}
}

// ownAddress returns a loopback address that no other test is likely to use, since some ports
// of a controller are fixed.
func ownAddress() string {
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(250), rand.IntN(250), 1+rand.IntN(250))
}

func (r *running) get(path string) (string, error) { return get("http://" + r.address + path) }

// metrics returns the audit's metrics, without their help.
func (r *running) metrics() string {
	body, err := r.get("/metrics")
	if err != nil {
		return err.Error()
	}
	var lines []string
	for line := range strings.Lines(body) {
		for _, name := range []string{"outrigger_problems", "outrigger_mtls_disabled", "outrigger_uninjected_pods"} {
			if strings.HasPrefix(line, name+"{") {
				lines = append(lines, line)
			}
		}
	}
	return strings.Join(lines, "")
}
