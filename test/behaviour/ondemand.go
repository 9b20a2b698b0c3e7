package behaviour

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// firstCall is the first call of something, without a second try.
type firstCall struct {
	what string
	call func(t *testing.T, w *testMesh) error
}

func firstRequest(url, pod string) firstCall {
	return firstCall{url, func(t *testing.T, w *testMesh) error {
		r, err := w.send(w.pod(t, "users/web"), request{url: url})
		if err != nil {
			return err
		}
		return isFrom(pod)(r)
	}}
}

func firstLine(address, send, want string) firstCall {
	return firstCall{address, func(t *testing.T, w *testMesh) error {
		got, err := line(w.pod(t, "users/web"), address, send)
		if err == nil && got != want {
			err = fmt.Errorf("it answers %q, want %q", got, want)
		}
		return err
	}}
}

// testOnDemand has the clients' sidecars get services on demand.
func testOnDemand(t *testing.T, w *testMesh) {
	w.serveOutside(t)
	w.apply(t, "twins.yaml", twins)
	w.apply(t, "six.yaml", cartSix)
	w.onDemand(t)
	lone := net.JoinHostPort(w.pod(t, "shop/lone").Addresses()[0].String(), "8080")
	for _, mode := range []struct {
		config string
		calls  []firstCall
	}{
		{meshConfig("", ""), []firstCall{
			firstLine("cart-v1.shop:3306", "", "hello from cart-v1\n"),
			firstRequest("http://twin.shop/cart", "cart-v1"),
			firstRequest("http://db-0.db.shop:8080/cart", "db-0"),
			firstRequest("http://"+lone+"/", "lone"),
			{"cart-six.shop by IPv6", func(t *testing.T, w *testMesh) error {
				return w.answers(six(w.pod(t, "users/web")), "http://cart-six.shop/cart", http.StatusOK, "::6")
			}},
		}},
		{strings.Replace(meshConfig("", ""), "PolicyMode: false", "PolicyMode: true", 1), []firstCall{
			firstLine("twin-echo.shop:80", "echo\n", "echo\n"),
			firstRequest("http://twin-web.shop:8088/cart", "cart-v1"),
			firstRequest("http://twin-headless.shop:8080/cart", "cart-v1"),
		}},
	} {
		w.set(t, "mesh.yaml", mode.config)
		w.settled(t)
		for _, first := range mode.calls {
			before, known := w.relayed(t, "users/web", "mesh"), w.known(t, "users/web")
			begin := time.Now()
			if err := first.call(t, w); err != nil {
				t.Fatalf("the first call of %s: %v", first.what, err)
			}
			t.Logf("the first call of %s takes %s", first.what, time.Since(begin))
			if now := w.relayed(t, "users/web", "mesh"); now != before+1 {
				t.Errorf("the agent has handed %d connections to %s, want 1", now-before, first.what)
			}
			if now := w.known(t, "users/web"); now <= known {
				t.Errorf("the sidecar knows %d destinations after the first call of %s, and knew %d before", now, first.what, known)
			}
			// A proxy that reloads may take connections with its former configuration for a moment.
			w.eventually(t, func() error {
				now := w.relayed(t, "users/web", "mesh")
				for range 3 {
					if err := first.call(t, w); err != nil {
						t.Fatalf("a later call of %s: %v", first.what, err)
					}
				}
				if later := w.relayed(t, "users/web", "mesh") - now; later > 0 {
					return fmt.Errorf("the agent has handed over %d later connections to %s", later, first.what)
				}
				return nil
			})
		}
		// The node's address is in the range of the pods.
		if err := w.blockedOutside(t, "users/web"); err != nil {
			t.Error(err)
		}
	}
	defer w.configure(t, "", "")
	w.set(t, "mesh.yaml", strings.Replace(meshConfig("", ""), "enableEgress: false", "enableEgress: true", 1))
	before := w.relayed(t, "users/web", "outside")
	w.get(t, "users/web", "http://"+net.JoinHostPort(nodeAddress, outsidePort)+"/", isOutside)
	if now := w.relayed(t, "users/web", "outside"); now == before {
		t.Error("the agent has not asked about an address near those of the mesh")
	}
	// The thief may call next to nothing of it, as without on demand.
	w.denies(t, "users/thief", cartV1)
}

// onDemand has the clients' sidecars get services on demand until the test's end.
func (w *testMesh) onDemand(t *testing.T) {
	t.Helper()
	town := fmt.Sprintf(meshTemplate, w.Client, w.Server, longAccount)
	w.set(t, "town.yaml", strings.Replace(town, "sidecar-class: "+w.Client, "sidecar-class: "+w.Client+", openservicemesh.io/outbound-services: on-demand", 1))
	t.Cleanup(func() {
		if err := w.Apply(context.WithoutCancel(t.Context()), "town.yaml", town); err != nil {
			t.Error(err)
		}
	})
}

// testOnDemandAlone kills the controller.
func testOnDemandAlone(t *testing.T, w *testMesh) {
	w.serveOutside(t)
	w.apply(t, "alone.yaml", service("alone", "selector: {app: cart, version: v1}, ports: [{name: http, port: 80, targetPort: 8080}]"))
	w.configure(t, "", "")
	w.set(t, "mesh.yaml", strings.Replace(meshConfig("", ""), "enableEgress: false", "enableEgress: true", 1))
	w.onDemand(t)
	w.settled(t)
	outside := "http://" + net.JoinHostPort(nodeAddress, outsidePort) + "/"
	w.get(t, "users/web", cartV1, isFrom("cart-v1"))
	w.get(t, "users/web", outside, isOutside)
	if err := w.KillController(); err != nil {
		t.Fatal(err)
	}
	left, failed := w.relayed(t, "users/web", "outside"), w.relayed(t, "users/web", "error")
	if r, err := w.send(w.pod(t, "users/web"), request{url: "http://alone.shop/cart", timeout: 15 * time.Second}); err == nil && r.Status < 400 {
		t.Errorf("without a controller the first request to a service gets %d", r.Status)
	}
	if now := w.relayed(t, "users/web", "outside"); now != left {
		t.Errorf("%d connections to the service have left the mesh", now-left)
	}
	if now := w.relayed(t, "users/web", "error"); now == failed {
		t.Error("the agent counts no failure")
	}
	// What the controller has said about the address outside is older than five seconds now.
	if err := firstRequest(cartV1, "cart-v1").call(t, w); err != nil {
		t.Errorf("a known service: %v", err)
	}
	if r, err := w.send(w.pod(t, "users/web"), request{url: outside}); err != nil || isOutside(r) != nil {
		t.Errorf("a known address outside the mesh: %d, %v", r.Status, err)
	}
	if err := w.StartController(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.get(t, "users/web", "http://alone.shop/cart", isFrom("cart-v1"))
}

// relayed returns how many connections the agent of a pod has handed on.
func (w *testMesh) relayed(t *testing.T, pod, result string) int {
	t.Helper()
	r, err := w.send(w.pod(t, pod), request{url: "http://127.0.0.1:15901/metrics"})
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`unknown_connections_total\{result="` + result + `"\} (\d+)`).FindStringSubmatch(r.Body)
	if found == nil {
		t.Fatalf("the agent does not say how many connections it has handed on:\n%s", r.Body)
	}
	n, _ := strconv.Atoi(found[1])
	return n
}

// known returns how many destinations the sidecar of a pod knows.
func (w *testMesh) known(t *testing.T, pod string) int {
	t.Helper()
	text, err := w.Debug(t.Context(), "/debug/proxy?pod="+pod)
	if err != nil {
		t.Fatal(err)
	}
	var page struct {
		View struct {
			Outbound struct {
				Destinations map[string]any `json:"destinations"`
			} `json:"outbound"`
		} `json:"view"`
	}
	if err := json.Unmarshal(text, &page); err != nil {
		t.Fatal(err)
	}
	return len(page.View.Outbound.Destinations)
}
