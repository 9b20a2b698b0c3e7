package envoy

import (
	"context"
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestRealEnvoyShowsNoKey asks the admin page, which the pod's own containers can reach,
// for all that it tells.
func TestRealEnvoyShowsNoKey(t *testing.T) {
	m, c := newMachine(t), newCore(t)
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
	if !strings.Contains(dump, "key.pem") && !strings.Contains(dump, "identity") {
		t.Errorf("the dump says nothing of the identity:\n%s", dump)
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

// impostor serves with a certificate of the mesh that is a workload's.
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

// TestRealEnvoyRefusesAnImpostor has a workload answer in the controller's place: even the
// controller's own service account is not the controller.
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
	// Three times it has come and gone.
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
		t.Errorf("Envoy takes its configuration from an impostor: %v", events)
	}
	if stats := envoy.admin("/stats?filter=outrigger-ads.ssl.fail_verify_san"); strings.HasSuffix(strings.TrimSpace(stats), ": 0") || !strings.Contains(stats, "fail_verify_san") {
		t.Errorf("it was not the name that Envoy refuses: %s", stats)
	}
}

func (i impostor) RepositoryTLS() *tls.Config { return i.ServerTLS() }

func (i impostor) RepositoryRoot() []byte { return nil }
