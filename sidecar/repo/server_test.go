package repo

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// TestAgentsOnly checks that only the complete set is served, by the agent's protocol.
// Proxies without an agent would request single files, and a WebSocket.
func TestAgentsOnly(t *testing.T) {
	c := newCore(t)
	c.set("a", "haproxy.cfg", "global")
	h := c.serve(t)
	client := h.http(t, c.ca.SignFor(proxyOf("a"), time.Hour))
	if got := ask(t, client, "GET", h.url("a"), ""); got.code != 200 || got.header.Get("Content-Type") != mirror.ChangeType {
		t.Errorf("the complete set gets %d %v", got.code, got.header)
	}
	for _, name := range []string{"haproxy.cfg", "_etags", "uuid"} {
		if got := ask(t, client, "GET", h.url("a")+name, "", "Upgrade", "websocket"); got.code != http.StatusNotFound {
			t.Errorf("%s gets %d", name, got.code)
		}
	}
	if got := ask(t, client, "POST", h.url("a"), "{}", "Content-Type", "application/json"); got.code != http.StatusUnsupportedMediaType {
		t.Errorf("a status of Pipy gets %d", got.code)
	}
	poll(t, h.client(t, "a"), mirror.Set{})
}

// TestDebug checks the pages of the proxies and their files.
func TestDebug(t *testing.T) {
	c := newCore(t)
	set := c.set("a", testMain, "one\ntwo\n", "config/x.json", `{"k": "v"}`)
	other := *proxyOf("other-class")
	other.Class = "another"
	c.put(&other, set)
	h := c.serve(t)
	client := h.client(t, "a")
	client.Wait = -1
	if _, err := client.Poll(t.Context(), mirror.Version(set)); err != nil {
		t.Fatal(err)
	}
	show := func(query string, page any) int {
		w := httptest.NewRecorder()
		h.server.Debug().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/repo"+query, nil))
		if w.Code == 200 {
			if err := json.Unmarshal(w.Body.Bytes(), page); err != nil {
				t.Fatal(err)
			}
		}
		return w.Code
	}
	var pages []sessionPage
	if code := show("", &pages); code != 200 || len(pages) != 1 {
		t.Fatalf("the page is %d %+v", code, pages)
	}
	if p := pages[0]; p.Proxy != "shop/pod-a" || p.UID != "a" || p.Version != mirror.Version(set) || p.Acked != p.Version || p.Files != 2 || p.Connections != 1 || p.Identity != proxyOf("a").Identity {
		t.Errorf("the proxy is shown as %+v", p)
	}
	var files map[string]any
	if code := show("?proxy=a", &files); code != 200 {
		t.Fatalf("the files are %d", code)
	}
	if diff := cmp.Diff(map[string]any{testMain: []any{"one", "two"}, "config/x.json": map[string]any{"k": "v"}}, files); diff != "" {
		t.Errorf("the files (-want +got):\n%s", diff)
	}
	for _, uid := range []string{"nobody", "other-class"} {
		if code := show("?proxy="+uid, &files); code != http.StatusNotFound {
			t.Errorf("%s gets %d", uid, code)
		}
	}
}

// TestNew checks that incomplete options are refused.
func TestNew(t *testing.T) {
	for name, options := range map[string]Options{
		"nothing":       {},
		"no controller": {Translate: func(*mesh.View) mirror.Set { return mirror.Set{} }},
	} {
		if _, err := New(options); err == nil || !strings.HasPrefix(err.Error(), "repo: ") {
			t.Errorf("%s: %v", name, fmt.Sprint(err))
		}
	}
}
