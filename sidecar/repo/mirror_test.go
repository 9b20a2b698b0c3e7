package repo

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// TestChangeReachesAWaitingAgent follows a change: it is noticed, sent as a difference, and
// acknowledged by the next request.
func TestChangeReachesAWaitingAgent(t *testing.T) {
	c := newCore(t)
	first := c.set("a", testMain, "1", "config/x.json", "{}")
	h := c.serve(t)
	client := h.client(t, "a")

	has := poll(t, client, mirror.Set{})
	if mirror.Version(has) != mirror.Version(first) {
		t.Fatalf("the agent has %v", has.Names())
	}
	type result struct {
		change *mirror.Change
		err    error
	}
	answered := make(chan result, 1)
	go func() {
		change, err := client.Poll(t.Context(), mirror.Version(has))
		answered <- result{change, err}
	}()
	eventually(t, "the first version is acknowledged", func() bool { return c.reported("acked "+mirror.Version(first)) == 1 })
	second := c.set("a", testMain, "1", "config/x.json", `{"changed": true}`)
	got := <-answered
	if got.err != nil || got.change == nil {
		t.Fatalf("the change is %v, %v", got.change, got.err)
	}
	if len(got.change.Files) != 1 || got.change.Files[0].Name != "config/x.json" || got.change.Base != mirror.Version(first) {
		t.Errorf("the difference is wrong: %+v", got.change)
	}
	client.Wait = -1
	if change, err := client.Poll(t.Context(), got.change.Version); change != nil || err != nil {
		t.Errorf("there is another change: %v, %v", change, err)
	}
	if c.reported("acked "+mirror.Version(second)+" timed") != 1 {
		t.Errorf("the registry gets %q", c.events)
	}
}

// TestProxyVersion has an agent name the version of its proxy, which changes when another version
// takes over.
func TestProxyVersion(t *testing.T) {
	c := newCore(t)
	c.set("a", testMain, "1")
	client, version := c.serve(t).client(t, "a"), ""
	client.Wait, client.Proxy = -1, func() string { return version }
	has := poll(t, client, mirror.Set{})
	for _, version = range []string{"2.6.12", "2.6.12", "", "3.2.26", strings.Repeat("9", 300)} {
		if change, err := client.Poll(t.Context(), mirror.Version(has)); change != nil || err != nil {
			t.Fatal(change, err)
		}
	}
	for event, want := range map[string]int{"version ": 0, "version 2.6.12": 1, "version 3.2.26": 1, "version " + strings.Repeat("9", 128) + "...": 1} {
		if got := c.reported(event); got != want {
			t.Errorf("%q was reported %d times, want %d", event, got, want)
		}
	}
}

// TestRefusedVersion lets a proxy refuse a version, which the user then repairs.
func TestRefusedVersion(t *testing.T) {
	c := newCore(t)
	good := c.set("a", testMain, "1", "config/x.json", "{}", "config/y.json", "{}")
	h := c.serve(t)
	client := h.client(t, "a")
	client.Wait = -1
	has := poll(t, client, mirror.Set{})
	if change, err := client.Poll(t.Context(), mirror.Version(has)); change != nil || err != nil {
		t.Fatal(change, err)
	}
	c.set("a", testMain, "1", "config/x.json", "{", "config/y.json", "{ }")
	bad := ""
	eventually(t, "the change comes", func() bool {
		change, err := client.Poll(t.Context(), mirror.Version(has))
		if err != nil {
			t.Fatal(err)
		}
		if change != nil {
			bad = change.Version
		}
		return change != nil
	})
	for range 2 {
		if err := client.Report(t.Context(), mirror.Status{Version: bad, Error: "in config/x.json: unexpected end"}); err != nil {
			t.Fatal(err)
		}
	}
	want := []driver.Rejection{{
		Version: bad, Message: "in config/x.json: unexpected end", Resources: []string{"config/x.json"},
		Objects: []mesh.ObjectRef{{Kind: "Service", Namespace: "shop", Name: "config/x.json"}},
	}}
	if diff := cmp.Diff(want, c.refusals()); diff != "" {
		t.Errorf("rejections (-want +got):\n%s", diff)
	}
	if change, err := client.Poll(t.Context(), mirror.Version(has), bad); change != nil || err != nil {
		t.Errorf("the refused version is sent again: %v, %v", change, err)
	}
	c.put(proxyOf("a"), good)
	acked := "acked " + mirror.Version(good)
	eventually(t, "the return is acknowledged", func() bool {
		if change, err := client.Poll(t.Context(), mirror.Version(has), bad); change != nil || err != nil {
			t.Fatal(change, err)
		}
		return c.reported(acked)+c.reported(acked+" timed") == 2
	})
}

// TestReplicasAgree lets an agent switch replicas.
func TestReplicasAgree(t *testing.T) {
	one, other := newCore(t), newCore(t)
	if err := other.Trust(one.ca.Authority); err != nil {
		t.Fatal(err)
	}
	other.ca = one.ca
	files := []string{testMain, "1", "config/x.json", "{}"}
	has := one.set("a", files...)
	other.set("b", "unrelated", "")
	other.set("a", files...)
	for _, c := range []*core{one, other} {
		client := c.serve(t).client(t, "a")
		client.Wait = -1
		if change, err := client.Poll(t.Context(), mirror.Version(has)); change != nil || err != nil {
			t.Errorf("a replica has another version: %v, %v", change, err)
		}
		if c.reported("acked "+mirror.Version(has)) != 1 {
			t.Errorf("a replica does not know the version in use: %q", c.events)
		}
	}
}

// TestNothingBeforeTheSnapshot polls before the controller has loaded the mesh.
func TestNothingBeforeTheSnapshot(t *testing.T) {
	c := newCore(t)
	ready := c.NotReady()
	c.set("a", testMain, "1")
	h := c.serve(t)
	client := h.client(t, "a")
	_, err := client.Poll(t.Context(), "")
	refused, ok := errors.AsType[*mirror.Error](err)
	if !ok || refused.Code != http.StatusServiceUnavailable || refused.RetryAfter == 0 {
		t.Fatalf("the answer is %v", err)
	}
	if len(c.events) != 0 {
		t.Errorf("the registry gets %q", c.events)
	}
	ready()
	poll(t, client, mirror.Set{})
}

// TestGoneProxy removes the pod while its agent waits, and adds another.
func TestGoneProxy(t *testing.T) {
	c := newCore(t)
	has := c.set("a", testMain, "1")
	h := c.serve(t)
	client := h.client(t, "a")
	client.Wait = mirror.MaxWait
	ended := make(chan error, 1)
	go func() {
		_, err := client.Poll(t.Context(), mirror.Version(has))
		ended <- err
	}()
	eventually(t, "the agent waits", func() bool { return c.reported("acked "+mirror.Version(has)) == 1 })
	c.SetView("a", nil)
	dropped := time.Now()
	if err := <-ended; err != nil {
		t.Errorf("the poll ended with %v", err)
	}
	if took := time.Since(dropped); took > time.Minute {
		t.Errorf("the poll ended %s later", took)
	}
	_, err := client.Poll(t.Context(), mirror.Version(has))
	if refused, ok := errors.AsType[*mirror.Error](err); !ok || refused.Code != http.StatusForbidden {
		t.Errorf("a removed pod gets %v", err)
	}
	if c.reported("close") != 1 {
		t.Errorf("the registry gets %q", c.events)
	}
}

// TestGrace disconnects an agent: it counts as connected for a while.
func TestGrace(t *testing.T) {
	c := newCore(t)
	has := c.set("a", testMain, "1")
	h := c.serve(t, func(s *Server) { s.grace = 3 * time.Second })
	client := h.client(t, "a")
	client.Wait = -1
	for range 3 {
		if _, err := client.Poll(t.Context(), mirror.Version(has)); err != nil {
			t.Fatal(err)
		}
		// Another connection, at once.
		client.HTTP.CloseIdleConnections()
	}
	if n := c.reported("connect shop/pod-a a"); n != 1 {
		t.Errorf("it has connected %d times", n)
	}
	eventually(t, "its end is reported", func() bool { return c.reported("close") == 1 })
	if _, err := client.Poll(t.Context(), mirror.Version(has)); err != nil {
		t.Fatal(err)
	}
	if n := c.reported("connect shop/pod-a a"); n != 2 {
		t.Errorf("it has connected %d times", n)
	}
}

// TestResync checks that a change is found without a message.
func TestResync(t *testing.T) {
	c := newCore(t)
	has := c.set("a", testMain, "1")
	h := c.serve(t)
	client := h.client(t, "a")
	answered := make(chan *mirror.Change, 1)
	go func() {
		change, err := client.Poll(t.Context(), mirror.Version(has))
		if err != nil {
			t.Error(err)
		}
		answered <- change
	}()
	eventually(t, "the agent waits", func() bool { return c.reported("acked "+mirror.Version(has)) == 1 })
	c.Silence()
	c.SetResyncInterval(time.Millisecond)
	next := c.set("a", testMain, "2")
	if change := <-answered; change == nil || change.Version != mirror.Version(next) {
		t.Errorf("the change is %v", change)
	}
}

// translator returns the files of a core's Views, or an error with the text of a file
// "error".
type translator struct{ *core }

func (c translator) Translate(view *mesh.View) ([]driver.File, error) {
	var files []driver.File
	for name, file := range c.translate(view).All() {
		if name == "error" {
			return nil, errors.New(file.Text)
		}
		files = append(files, driver.File{Name: name, Content: []byte(file.Text)})
	}
	return files, nil
}

// TestTranslator lets a driver's Translator succeed and fail: a proxy keeps its files, and
// one without files gets none.
func TestTranslator(t *testing.T) {
	c := newCore(t)
	c.set("a", testMain, "1")
	c.set("b", "error", "it can't be done")
	h := c.serve(t, func(s *Server) { s.options.Translate, s.options.Translator = nil, translator{c} })
	client := h.client(t, "a")
	client.Wait = -1
	has := poll(t, client, mirror.Set{})
	c.set("a", testMain, "2", "error", "it can't be done either")
	_, err := h.client(t, "b").Poll(t.Context(), "")
	if refused, ok := errors.AsType[*mirror.Error](err); !ok || refused.Code != 503 || !strings.Contains(refused.Message, "pod shop/pod-b: it can't be done") {
		t.Errorf("the answer is %v", err)
	}
	if change, err := client.Poll(t.Context(), mirror.Version(has)); change != nil || err != nil {
		t.Errorf("the proxy gets %v, %v", change, err)
	}
	next := c.set("a", testMain, "3")
	client.Wait = 0
	if got := poll(t, client, has); mirror.Version(got) != mirror.Version(next) {
		t.Errorf("the next version is %v", got.Names())
	}
}
