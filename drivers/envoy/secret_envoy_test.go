package envoy

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestRealEnvoyShowsNoKey requests everything from the admin page, which the pod's
// containers can reach.
func TestRealEnvoyShowsNoKey(t *testing.T) {
	m, c := newMachine(t), newCore(t)
	// Users may set the most verbose log level.
	m.logLevel = "trace"
	view := views()["http"].view()
	c.set(view)
	m.startController(c)
	envoy := m.startSidecar(view.Proxy, c, loopbackHosts)
	m.eventually("Envoy is ready", envoy.ready)
	m.eventually("all is acknowledged", func() bool { return c.runs(view) })
	key, err := os.ReadFile(filepath.Join(envoy.identity, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	secret := strings.Split(string(key), "\n")[1]
	dump := envoy.admin("/config_dump?include_eds")
	if !strings.Contains(dump, "identity") {
		t.Errorf("the dump lacks the identity:\n%s", dump)
	}
	for _, path := range []string{"/config_dump?include_eds", "/certs", "/init_dump", "/server_info", "/stats", "/clusters", "/listeners", "/runtime", "/hot_restart_version"} {
		if text := envoy.admin(path); strings.Contains(text, secret) || strings.Contains(text, "PRIVATE KEY") {
			t.Errorf("%s shows the key", path)
		}
	}
	if log := envoy.log.String(); strings.Contains(log, secret) || strings.Contains(log, "PRIVATE KEY") {
		t.Error("the log shows the key")
	}
}

// TestRealEnvoyWatchesNoFiles counts inotify instances: a user may have 128 on a node,
// and all sidecars of a node run as the same user. The View has secrets of every kind
// of port.
func TestRealEnvoyWatchesNoFiles(t *testing.T) {
	m, c := newMachine(t), newCore(t)
	outbound := views()["http"].view()
	inbound := mesh.Inbound{TLS: mesh.Permissive, Ports: []mesh.InboundPort{
		{Port: 8080, Protocol: mesh.HTTP, Access: mesh.Access{Anyone: true}},
		{Port: 5432, Protocol: mesh.TCP, Access: mesh.Access{Anyone: true}},
		{Port: 3306, Protocol: mesh.TCPServerFirst, Access: rules(rule("a/b", []mesh.HTTPMatch{{}}, buyer))},
	}}
	view := mesh.NewView(outbound.Proxy, outbound.Settings, mesh.Seal(&inbound), outbound.Outbound, outbound.Egress)
	c.set(view)
	m.startController(c)
	envoy := m.startSidecar(view.Proxy, c, loopbackHosts)
	m.eventually("Envoy is ready", envoy.ready)
	m.eventually("all is acknowledged", func() bool { return c.runs(view) })
	if n := inotifyInstances(t, envoy.pid); n > 0 {
		t.Errorf("Envoy has %d inotify instances, and there are 128 for all sidecars of a node", n)
	}
}

// inotifyInstances returns the number of a process's inotify instances.
func inotifyInstances(t *testing.T, pid int) int {
	t.Helper()
	folder := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(folder, e.Name())); err == nil && to == "anon_inode:inotify" {
			n++
		}
	}
	return n
}

// impostor serves with a workload's certificate of the mesh.
type impostor struct {
	*core
	asked chan struct{}
}

func (i impostor) ServerTLS() *tls.Config {
	config := i.core.ServerTLS()
	choose := config.GetConfigForClient
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		chosen, err := choose(hello)
		if err != nil {
			return nil, err
		}
		thief := mesh.Identity{TrustDomain: "cluster.local", Namespace: "osm-system", ServiceAccount: "outrigger-controller"}
		chosen.Certificates = []tls.Certificate{i.ca.issueTo(thief, "thief")}
		select {
		case i.asked <- struct{}{}:
		default:
		}
		return chosen, nil
	}
	return config
}

// TestRealEnvoyRefusesAnImpostor has a workload answer in place of the controller: even
// the controller's own service account is not the controller.
func TestRealEnvoyRefusesAnImpostor(t *testing.T) {
	m, c := newMachine(t), newCore(t)
	view := views()["http"].view()
	c.set(view)
	i := impostor{c, make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var err error
	m.do(func() {
		arguments := c.context(ctx, 0)
		arguments.CertManager = i
		_, err = Driver{}.Start(arguments)
	})
	if err != nil {
		t.Fatal(err)
	}
	envoy := m.startSidecar(view.Proxy, c, loopbackHosts)
	// Envoy has connected and disconnected three times.
	for range 3 {
		m.eventually("Envoy comes", func() bool {
			select {
			case <-i.asked:
				return true
			default:
				return false
			}
		})
	}
	if events := c.noted(); len(events) > 0 || envoy.ready() {
		t.Errorf("Envoy accepts configuration from an impostor: %v", events)
	}
	if stats := envoy.admin("/stats?filter=outrigger-ads.ssl.fail_verify_san"); strings.HasSuffix(strings.TrimSpace(stats), ": 0") || !strings.Contains(stats, "fail_verify_san") {
		t.Errorf("Envoy did not reject the name: %s", stats)
	}
}
