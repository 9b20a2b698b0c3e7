package haproxy

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// nameserver answers questions for names that begin with "up", and no others.
func nameserver(t *testing.T) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	drivertest.ServeNames(t, conn, func(name string) drivertest.NameAnswer {
		return drivertest.NameAnswer{Silent: !strings.HasPrefix(name, "up"), Address: netip.MustParseAddr("127.0.0.1")}
	})
	return conn.LocalAddr().String()
}

// TestSilentNameServer checks that names whose server does not answer delay neither the start
// nor the requests to other names, of which the first one waits until its name is resolved.
func TestSilentNameServer(t *testing.T) {
	a := newApp(t)
	f := newFixture(buyer)
	routes := mesh.EgressRoutes{Port: a.http, Protocol: mesh.EgressHTTP, Hosts: []mesh.EgressHost{{Host: "up.example", Matches: anything}, {Host: "up2.example.", Matches: anything}}}
	for i := range 20 {
		routes.Hosts = append(routes.Hosts, mesh.EgressHost{Host: fmt.Sprintf("silent-%d.example", i), Matches: anything})
	}
	f.egress.Ports = []mesh.EgressRoutes{routes}
	ca := newAuthority(t)
	dir := t.TempDir()
	ca.writeTo(dir, buyer)
	server := nameserver(t)
	begun := time.Now()
	r := start(t, dir, f.view(), func(r *running) { r.nameserver = server }).awaitReady()
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("HAProxy was ready after %v", took)
	}
	silent := make(chan int)
	go func() {
		response, _, err := ask(client(r.outbound, "192.0.2.1:"+fmt.Sprint(a.http), nil, false), "/a", "Host", "silent-1.example")
		if err != nil {
			silent <- 0
			return
		}
		silent <- response.StatusCode
	}()
	for _, h2 := range []bool{false, true} {
		for _, host := range []string{"up.example", "up2.example", "up2.example.", "up.example"} {
			begun := time.Now()
			response, got, err := ask(client(r.outbound, "192.0.2.1:"+fmt.Sprint(a.http), nil, h2), "/a", "Host", host)
			if err != nil || response.StatusCode != 200 || got.Host != host || time.Since(begun) > 3*time.Second {
				t.Errorf("h2 %v: %s gives %v, %v after %v", h2, host, response, err, time.Since(begun))
			}
		}
	}
	if status := <-silent; status != 503 {
		t.Errorf("a host whose name is not resolved gives %d", status)
	}
	if strings.Contains(r.log.String(), "libc") {
		t.Error("the system resolved a name")
	}
}
