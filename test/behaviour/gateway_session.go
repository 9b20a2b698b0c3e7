package behaviour

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// visitor is a client of the service cart. The name is that of the cookie or header with its
// token; rows have different ones, since the route of one may still apply when the next begins.
type visitor struct {
	*testMesh
	name string
}

// kept is a service with the endpoints of the pods that the selector chooses.
func kept(selector string) string {
	return service("kept", "selector: {app: cart"+selector+"}, ports: [{name: http, port: 80, targetPort: 8080}]")
}

// visit sends a request with a token, if it is not empty, by a version of HTTP. It returns the
// pod that has answered and the cookie of the answer, or nil.
func (w visitor) visit(t *testing.T, version int, token string) (string, *http.Cookie, error) {
	t.Helper()
	header := http.Header{http.CanonicalHeaderKey(w.name): {token}}
	if token != "" {
		header.Set("Cookie", "first=1; "+w.name+"="+token+"; last=2")
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(version == 1)
	protocols.SetUnencryptedHTTP2(version == 2)
	client := &http.Client{Timeout: limit, Transport: &http.Transport{DialContext: w.pod(t, "users/web").Dial, DisableKeepAlives: true, Protocols: protocols}}
	defer client.CloseIdleConnections()
	r, err := w.sendBy(client, request{url: cart, header: header})
	if err != nil {
		return "", nil, err
	}
	if r.Status != http.StatusOK || r.Pod != "cart-v1" && r.Pod != "cart-v2" {
		return "", nil, fmt.Errorf("the answer is %d of pod %q: %.200s", r.Status, r.Pod, r.Body)
	}
	if value := r.Header.Get(w.name); value != "" {
		return r.Pod, &http.Cookie{Name: w.name, Value: value}, nil
	}
	for _, cookie := range (&http.Response{Header: r.Header}).Cookies() {
		if cookie.Name == w.name {
			return r.Pod, cookie, nil
		}
	}
	return r.Pod, nil, nil
}

// begin begins sessions until each pod has one, and returns their cookies.
func (w visitor) begin(t *testing.T) map[string]*http.Cookie {
	t.Helper()
	sessions := map[string]*http.Cookie{}
	w.eventually(t, func() error {
		pod, cookie, err := w.visit(t, 1, "")
		switch {
		case err != nil:
			return err
		case cookie == nil:
			return fmt.Errorf("%s answers a request without a token, and the client gets none", pod)
		}
		if sessions[pod] = cookie; len(sessions) < 2 {
			return fmt.Errorf("all sessions are at %s", pod)
		}
		return nil
	})
	return sessions
}

// stays checks that all requests with the token are answered by the pod.
func (w visitor) stays(t *testing.T, version int, pod, token string) {
	t.Helper()
	for range 20 {
		got, cookie, err := w.visit(t, version, token)
		if err != nil || got != pod || cookie != nil {
			t.Fatalf("by HTTP/%d a request of a session at %s is answered by %q with the cookie %v, %v", version, pod, got, cookie, err)
		}
	}
}

// moves waits until a request with the token is answered by the pod, and the client gets a
// token for it, which it returns.
func (w visitor) moves(t *testing.T, pod, token string) string {
	t.Helper()
	var moved string
	w.eventually(t, func() error {
		got, cookie, err := w.visit(t, 1, token)
		switch {
		case err != nil || got != pod:
			return fmt.Errorf("a request is answered by %q, %v, want %s", got, err, pod)
		case cookie == nil:
			return fmt.Errorf("%s answers a request of another session, and the client gets no token", pod)
		}
		moved = cookie.Value
		return nil
	})
	return moved
}

func testCookieSessions(t *testing.T, m *testMesh) {
	w := visitor{m, "cart-session"}
	rule := func(session string) string {
		return route("HTTPRoute", "shop", "cart", "  - sessionPersistence: {sessionName: "+w.name+session+"}\n    backendRefs: [{name: kept, port: 80}]\n")
	}
	w.apply(t, "kept.yaml", kept(""))
	w.apply(t, "route.yaml", rule(""))
	w.settled(t)
	sessions := w.begin(t)
	for pod, cookie := range sessions {
		if !cookie.HttpOnly || cookie.Path != "/" || cookie.MaxAge != 0 || cookie.RawExpires != "" {
			t.Errorf("the cookie is %s", cookie)
		}
		for version := 1; version <= 2; version++ {
			w.stays(t, version, pod, cookie.Value)
		}
	}
	for _, token := range w.forged(t, sessions["cart-v1"].Value) {
		if pod, cookie, err := w.visit(t, 1, token); err != nil || cookie == nil {
			t.Errorf("with the forged token %q a request is answered by %q with the cookie %v, %v; want another token", token, pod, cookie, err)
		}
	}

	// The session of an endpoint that is gone continues at another one, and does not return.
	w.set(t, "kept.yaml", kept(", version: v1"))
	moved := w.moves(t, "cart-v1", sessions["cart-v2"].Value)
	w.set(t, "kept.yaml", kept(""))
	w.begin(t)
	w.settled(t)
	w.stays(t, 1, "cart-v1", moved)

	w.set(t, "route.yaml", rule(", absoluteTimeout: 3s, cookieConfig: {lifetimeType: Permanent}"))
	var token string
	w.eventually(t, func() error {
		_, cookie, err := w.visit(t, 1, "")
		if err != nil || cookie == nil || cookie.MaxAge != 3 {
			return fmt.Errorf("the permanent cookie is %v, %v; want one for 3 s", cookie, err)
		}
		token = cookie.Value
		return nil
	})
	if pod, cookie, err := w.visit(t, 1, token); err != nil || cookie != nil {
		t.Errorf("a new token is answered by %q with the cookie %v, %v; want no other one", pod, cookie, err)
	}
	w.eventually(t, func() error {
		if _, cookie, err := w.visit(t, 1, token); err != nil || cookie == nil {
			return fmt.Errorf("the token has not expired: %v", err)
		}
		return nil
	})
}

// forged returns tokens that lead to no endpoint of the route, although they look as if they
// did: that of a pod of another service, by its address and by its name.
func (w *testMesh) forged(t *testing.T, token string) []string {
	share, key, _ := strings.Cut(token, "-")
	db := w.pod(t, "shop/db-0").Addresses()[0]
	address := hex.EncodeToString([]byte(net.JoinHostPort(db.String(), "8080")))
	other := mesh.Endpoint{Workload: "shop/db-0", Port: 8080}.Key()
	return []string{
		share + "-" + address, share + "-" + other, "00000000-" + key, share + "-" + key + "-1", share, "-", "a;b", strings.Repeat("f", 4000),
	}
}

func testHeaderSessions(t *testing.T, m *testMesh) {
	w := visitor{m, "x-cart-session"}
	set := func(v1, v2 int, more string) {
		w.set(t, "route.yaml", route("HTTPRoute", "shop", "cart", fmt.Sprintf(`
  - sessionPersistence: {sessionName: %s, type: Header}
%s    backendRefs:
    - {name: cart-v1, port: 80, weight: %d, filters: [{type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: X-Backend, value: v1}]}}]}
    - {name: cart-v2, port: 80, weight: %d}
`, w.name, more, v1, v2)))
	}
	t.Cleanup(func() { w.forget(t, "route.yaml") })
	more := []string{""}
	if w.has(w.Client, mesh.FeatureRetries, mesh.FeatureRetryCodes) {
		more = append(more, "    retry: {attempts: 1, codes: [429]}\n")
	}
	for _, more := range more {
		set(1, 1, more)
		w.settled(t)
		sessions := w.begin(t)
		for pod, token := range sessions {
			for version := 1; version <= 2; version++ {
				w.stays(t, version, pod, token.Value)
			}
		}
		// Sessions survive that their backend gets no new ones.
		set(0, 1, more)
		w.eventually(t, func() error {
			for range 10 {
				if pod, _, err := w.visit(t, 1, ""); err != nil || pod != "cart-v2" {
					return fmt.Errorf("a new session is at %q, %v, want cart-v2", pod, err)
				}
			}
			return nil
		})
		w.settled(t)
		w.stays(t, 1, "cart-v1", sessions["cart-v1"].Value)
		set(0, 0, more)
		w.get(t, "users/web", cart, isStatus(http.StatusInternalServerError))
		w.settled(t)
		w.stays(t, 1, "cart-v2", sessions["cart-v2"].Value)
	}
}
