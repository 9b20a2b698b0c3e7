package behaviour

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// lifecycle is the table of changes, failures and restarts.
var lifecycle = []Row{
	{"The controller is killed", "Requests succeed without the controller, and when it is back no proxy is sent what it already has.", ofEvery, testControllerKilled},
	{"The proxy is killed", "The agent restarts a proxy that dies.", ofEvery, func(t *testing.T, w *testMesh) {
		w.mayExit()
		w.get(t, "users/web", cartV1, ok)
		container := w.pod(t, "shop/cart-v1").Container("outrigger-proxy")
		before := container.Restarts()
		// In the lab the program is named like its class. Some proxies run several processes.
		pids, err := container.PIDs(w.Server)
		if err != nil || len(pids) == 0 {
			t.Fatalf("the proxy is processes %v, %v", pids, err)
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Fatal(err)
			}
		}
		w.eventually(t, func() error {
			now, err := container.PIDs(w.Server)
			if err == nil && (len(now) == 0 || slices.Contains(pids, now[0])) {
				err = errors.New("the proxy was not started again")
			}
			return err
		})
		w.get(t, "users/web", cartV1, isFrom("cart-v1"))
		if container.Restarts() != before {
			t.Error("the container was restarted, want that the agent restarts the proxy")
		}
	}},
	{"The agent is killed", "A sidecar container whose agent dies is restarted.", ofEvery, func(t *testing.T, w *testMesh) {
		container := w.pod(t, "shop/cart-v1").Container("outrigger-proxy")
		before := container.Restarts()
		if err := container.Kill(); err != nil {
			t.Fatal(err)
		}
		w.eventually(t, func() error {
			if container.Restarts() == before {
				return errors.New("the container was not restarted")
			}
			return nil
		})
		w.get(t, "users/web", cartV1, isFrom("cart-v1"))
	}},
	{"Long connections", "TCP connections, WebSockets and gRPC streams stay open while permissions, limits, retries, ingress and other services change.", ofBoth(mesh.FeatureWebSocket, mesh.FeatureHTTP2), testHeld},
	{"A permission ends", "Requests over an open connection are denied once their permission ends.", ofEvery, testRevokedWhileOpen},
	{"Packets are lost", "While the network of a server loses packets, requests and connections take longer, but they are answered or fail in time, and none with other bytes.", ofEvery, testLoss},
	{"Pods are moved", "The pods of a running service move from the clients' class to the servers', one by one, while clients of both classes call it, and no request fails.", ofEvery, testMigration},
	{"The proxy is upgraded", "Another process of the proxy, such as a later version, takes over in running pods. Connections stay open, and no request fails.", ofEvery, testUpgrade},
	{"Certificates are renewed", "Certificates are renewed while requests run, and none of them fails.", ofEvery, testRenewal},
	{"The root is rotated", "The mesh moves to another root while requests run, and none of them fails.", ofEvery, testRotation},
}

// settled waits until nothing more is sent, so that changes of the previous row have
// arrived, and returns the proxies.
func (w *testMesh) settled(t *testing.T) []localmesh.Proxy {
	t.Helper()
	var last []localmesh.Proxy
	since := time.Now()
	w.eventually(t, func() error {
		now, err := w.Proxies(t.Context())
		if err != nil {
			return err
		}
		if !slices.Equal(now, last) {
			last, since = now, time.Now()
		}
		for _, c := range now {
			if c.State != "Current" && c.State != "Empty" {
				return fmt.Errorf("%s is %s", c.Name, c.State)
			}
		}
		if quiet := time.Since(since); quiet < 2*time.Second {
			return fmt.Errorf("something was sent %s ago", quiet)
		}
		return nil
	})
	return last
}

func testControllerKilled(t *testing.T, w *testMesh) {
	before := w.settled(t)
	l := w.startLoad(w.pod(t, "users/web"), cartV1, 4)
	l.more(t, 50)
	if err := w.KillController(); err != nil {
		t.Fatal(err)
	}
	l.more(t, 200)
	if err := w.StartController(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.eventuallyWithin(t, time.Minute, func() error {
		now, err := w.Proxies(t.Context())
		if err != nil {
			return err
		}
		if len(now) != len(before) {
			return fmt.Errorf("%d of %d proxies are connected", len(now), len(before))
		}
		return nil
	})
	l.more(t, 200)
	l.end(t)
	now, err := w.Proxies(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range now {
		if c.Resources != 0 {
			t.Errorf("%s was sent %d resources although nothing has changed", c.Name, c.Resources)
		}
	}
	// The controller works again.
	w.apply(t, "split.yaml", fmt.Sprintf(splitTemplate, 0, 100))
	w.get(t, "users/web", cart, isFrom("cart-v2"))
}

func testRenewal(t *testing.T, w *testMesh) {
	w.shortLives(t)
	l := w.startLoad(w.pod(t, "users/web"), cartV1, 4)
	seen := map[string]bool{}
	w.eventuallyWithin(t, 90*time.Second, func() error {
		leaf, err := w.certificateOf(t, "shop/cart-v1")
		if err != nil {
			return err
		}
		if seen[leaf.SerialNumber.String()] = true; len(seen) < 3 {
			return fmt.Errorf("%d certificates were shown, want 3", len(seen))
		}
		return nil
	})
	l.end(t)
}

// certificateOf returns the certificate of a pod's server.
func (w *testMesh) certificateOf(t *testing.T, pod string) (*x509.Certificate, error) {
	var leaf *x509.Certificate
	_, err := handshake(t, w.Lab().Node(), w.address(t, pod, "8080"), &tls.Config{
		ServerName: "cart-v1.shop.sa.cluster.local", InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			leaf = state.PeerCertificates[0]
			return nil
		},
	})
	// The handshake fails without a client certificate, but the server's comes first.
	if leaf == nil {
		return nil, fmt.Errorf("no certificate was shown: %w", err)
	}
	return leaf, nil
}

// shortLives sets a short certificate validity until the test's end.
func (w *testMesh) shortLives(t *testing.T) {
	t.Helper()
	w.configure(t, "", "")
	w.set(t, "mesh.yaml", meshConfig("", "")+"  certificate: {serviceCertValidityDuration: 10s}\n")
	// Existing certificates are valid for a day; restarted agents request new ones.
	for _, pod := range []string{"users/web", "shop/cart-v1"} {
		if err := w.pod(t, pod).Container("outrigger-proxy").Kill(); err != nil {
			t.Fatal(err)
		}
	}
	w.eventually(t, func() error {
		leaf, err := w.certificateOf(t, "shop/cart-v1")
		if err != nil {
			return err
		}
		if life := time.Until(leaf.NotAfter); life > time.Minute {
			return fmt.Errorf("the certificate is valid for another %s", life)
		}
		return nil
	})
	w.get(t, "users/web", cartV1, isFrom("cart-v1"))
}
