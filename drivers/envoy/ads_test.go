package envoy

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// core implements a controller for a driver. The test sets the View of each proxy.
type core struct {
	*drivertest.Controller
	t  *testing.T
	ca *authority

	mu sync.Mutex
	// events are the reports as text, rejected the Rejections so far, and acked the versions.
	events []string
	// rejected are all Rejections so far, and acked the acknowledged versions.
	rejected []driver.Rejection
	acked    []string
}

func newCore(t *testing.T) *core {
	t.Helper()
	c := &core{t: t}
	var err error
	if c.Controller, err = drivertest.NewController("envoy", c.report); err != nil {
		t.Fatal(err)
	}
	c.trust(newAuthority(t))
	return c
}

// trust makes the authority the one that signs and is trusted.
func (c *core) trust(ca *authority) {
	c.t.Helper()
	c.ca = ca
	if err := c.Trust(ca.Authority); err != nil {
		c.t.Fatal(err)
	}
}

// set sets the View of its proxy.
func (c *core) set(view *mesh.View) { c.SetView(view.Proxy.UID, view) }

// context returns the arguments of Start.
func (c *core) context(ctx context.Context, port uint16) *driver.ControllerContext {
	arguments := c.Context(ctx, port)
	arguments.CancelFunc = func() { c.t.Error("the driver stops the controller") }
	return arguments
}

func (c *core) report(r drivertest.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	event := string(r.Kind)
	switch r.Kind {
	case drivertest.Connected:
		event = fmt.Sprintf("connect %s %s", r.Proxy.Name, r.Proxy.ProxyUID)
	case drivertest.Sent:
		event = fmt.Sprintf("sent %d resources", r.Resources)
	case drivertest.Acked:
		c.acked = append(c.acked, r.Version)
	case drivertest.Rejected:
		c.rejected = append(c.rejected, r.Rejection)
		event = fmt.Sprintf("rejected %q", r.Rejection.Resources)
	}
	c.events = append(c.events, event)
}

// issueTo signs a workload's certificate.
func (a *authority) issueTo(id mesh.Identity, uid string) tls.Certificate {
	a.T.Helper()
	return a.SignFor(&mesh.Proxy{UID: uid, Identity: id}, time.Hour)
}

// noted returns the events that the driver has reported.
func (c *core) noted() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.events)
}

// rejections returns the reported Rejections.
func (c *core) rejections() []driver.Rejection {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.rejected)
}

// runs reports whether the proxy was last known to run the View.
func (c *core) runs(view *mesh.View) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.acked) > 0 && c.acked[len(c.acked)-1] == view.Digest().String()
}

// lastAcked reports whether the last event is an acknowledged View.
func (c *core) lastAcked() bool {
	noted := c.noted()
	return len(noted) > 0 && noted[len(noted)-1] == "acked"
}
