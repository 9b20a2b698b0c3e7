package envoy

import (
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// TestRealEnvoyFindsTheController resolves a name with an address of each family, of
// which only one answers.
func TestRealEnvoyFindsTheController(t *testing.T) {
	m, c := newMachine(t), newCore(t)
	view := views()["empty"].view()
	c.set(view)
	m.startController(c)
	for name, hosts := range map[string]string{
		"IPv6 first": "::1 " + drivertest.ControllerName + "\n127.0.0.1 " + drivertest.ControllerName + "\n",
		"IPv4 first": "127.0.0.1 " + drivertest.ControllerName + "\n::1 " + drivertest.ControllerName + "\n",
		"IPv4 only":  "127.0.0.1 " + drivertest.ControllerName + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			envoy := m.startSidecar(view.Proxy, c, hosts)
			defer envoy.end()
			m.eventually("Envoy is ready", envoy.ready)
		})
	}
}

// TestRealEnvoyWaitsForTheName checks that an Envoy backs off while the name of the controller does
// not resolve, although no answer may be cached, and connects as soon as the name resolves.
func TestRealEnvoyWaitsForTheName(t *testing.T) {
	t.Parallel()
	m, c := newMachine(t), newCore(t)
	view := views()["empty"].view()
	c.set(view)
	m.startController(c)
	var conn net.PacketConn
	var err error
	m.do(func() { conn, err = net.ListenPacket("udp", "127.0.0.1:53") })
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	var answer atomic.Pointer[drivertest.NameAnswer]
	answer.Store(&drivertest.NameAnswer{Code: 3})
	drivertest.ServeNames(t, conn, func(string) drivertest.NameAnswer {
		asked.Add(1)
		return *answer.Load()
	})
	m.nameserver = "127.0.0.1"
	envoy := m.startSidecar(view.Proxy, c, "127.0.0.1 localhost\n")
	m.eventually("Envoy has asked for a name that does not exist", func() bool { return asked.Load() > 0 })
	answer.Store(&drivertest.NameAnswer{Code: 2})
	before := asked.Load()
	time.Sleep(2 * time.Second)
	if n := asked.Load() - before; n > 10 {
		t.Errorf("Envoy asked %d times within 2 s", n)
	}
	if state := envoy.admin("/server_info"); !strings.Contains(state, `"state"`) {
		t.Errorf("Envoy does not run: %s", state)
	}
	m.eventually("Envoy has asked a server that fails", func() bool { return asked.Load() > before })
	answer.Store(&drivertest.NameAnswer{Address: netip.MustParseAddr("127.0.0.1")})
	m.eventually("Envoy is ready", envoy.ready)
}
