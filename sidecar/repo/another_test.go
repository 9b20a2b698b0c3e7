package repo

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// TestAnotherIdentityJoins connects with a pod's UID and the certificate of another identity
// while the pod itself is connected.
func TestAnotherIdentityJoins(t *testing.T) {
	c := newCore(t)
	has := c.set("a", testMain, "1")
	h := c.serve(t)
	answered := make(chan *mirror.Change, 1)
	go func() {
		change, err := h.client(t, "a").Poll(t.Context(), mirror.Version(has))
		if err != nil {
			t.Error(err)
		}
		answered <- change
	}()
	eventually(t, "the agent waits", func() bool { return c.reported("acked "+mirror.Version(has)) == 1 })

	thief := *proxyOf("a")
	thief.Identity.ServiceAccount = "thief"
	client := h.http(t, c.ca.SignFor(&thief, time.Hour))
	for _, accept := range []string{"*/*", mirror.ChangeType} {
		got := ask(t, client, "GET", h.url("a"), "", "Accept", accept)
		if got.code != http.StatusForbidden || !strings.Contains(got.body, "/sa/cart, and the proxy's certificate says") {
			t.Errorf("the other identity gets %d %s", got.code, got.body)
		}
	}
	next := c.set("a", testMain, "2")
	if change := <-answered; change == nil || change.Version != mirror.Version(next) {
		t.Errorf("the pod itself gets %v", change)
	}
}

// TestPodBecomesAnother changes the identity or the class of a connected pod: it gets no
// more files.
func TestPodBecomesAnother(t *testing.T) {
	for name, change := range map[string]func(*mesh.Proxy){
		"identity": func(p *mesh.Proxy) { p.Identity.ServiceAccount = "other" },
		"class":    func(p *mesh.Proxy) { p.Class = "another" },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCore(t)
			has := c.set("a", testMain, "1")
			h := c.serve(t)
			client := h.client(t, "a")
			answered := make(chan error, 1)
			go func() {
				change, err := client.Poll(t.Context(), mirror.Version(has))
				if change != nil {
					err = fmt.Errorf("the files %v are served", change.Files)
				}
				answered <- err
			}()
			eventually(t, "the agent waits", func() bool { return c.reported("acked "+mirror.Version(has)) == 1 })
			other := *proxyOf("a")
			change(&other)
			c.put(&other, setOf(t, testMain, "of the other"))
			if err := <-answered; err != nil {
				// The connection may also be closed, but nothing may be served.
				if strings.Contains(err.Error(), "served") {
					t.Error(err)
				}
			}
			client.Wait = -1
			if _, err := client.Poll(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "403") {
				t.Errorf("the next request gets %v", err)
			}
		})
	}
}
