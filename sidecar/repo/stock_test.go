package repo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// pipyClient speaks as a Pipy without an agent does.
type pipyClient struct {
	*harness
	t      *testing.T
	uid    string
	client *http.Client
}

func (h *harness) pipy(t *testing.T, uid string) *pipyClient {
	return &pipyClient{h, t, uid, h.http(t, h.ca.workload(t, proxyOf(uid), time.Hour))}
}

func (p *pipyClient) get(name string) answer {
	p.t.Helper()
	return ask(p.t, p.client, "GET", p.url(p.uid)+name, "")
}

// says posts a status.
func (p *pipyClient) says(uuid, version string) {
	p.t.Helper()
	body, err := json.Marshal(map[string]any{
		"timestamp": 1, "uuid": uuid, "modules": map[string]any{"/main.js": map[string]any{"version": "not this"}},
		"version": version, "logs": []string{"version"},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	if got := ask(p.t, p.client, "POST", p.url(p.uid), string(body), "Content-Type", "application/json"); got.code != http.StatusPartialContent {
		p.t.Errorf("a status is answered %d %s", got.code, got.body)
	}
}

// socket opens the WebSocket.
func (p *pipyClient) socket() *websocket.Conn {
	p.t.Helper()
	socket, _, err := websocket.Dial(p.t.Context(), p.url(p.uid)+"uuid", &websocket.DialOptions{HTTPClient: p.client})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = socket.CloseNow() })
	if err := socket.Write(p.t.Context(), websocket.MessageText, nil); err != nil {
		p.t.Fatal(err)
	}
	return socket
}

// command returns the next command of the WebSocket.
func (p *pipyClient) command(socket *websocket.Conn) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	_, text, err := socket.Read(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(text)
}

// TestStockProtocol loads a program as a Pipy does.
func TestStockProtocol(t *testing.T) {
	c := newCore(t)
	set := c.set("a", "b.js", "of b", testMain, "of main", "config/z.json", "{}")
	p := c.serve(t).pipy(t, "a")
	version := mirror.Version(set)

	head := ask(t, p.client, "HEAD", p.url("a"), "")
	if head.code != 200 || head.header.Get("ETag") != `"`+version+`"` || head.body != "" {
		t.Errorf("HEAD is answered %d %v", head.code, head.header)
	}
	manifest := p.get("")
	if want := "/main.js\n/b.js\n/config/z.json\n"; manifest.body != want || manifest.header.Get("ETag") != `"`+version+`"` {
		t.Errorf("the manifest is %q of %v", manifest.body, manifest.header)
	}
	tags := make(map[string]string)
	for _, name := range []string{"main.js", "b.js", "config/z.json"} {
		file, _ := set.Get(name)
		got := p.get(name)
		if got.code != 200 || got.body != file.Text {
			t.Errorf("%s is %d %q", name, got.code, got.body)
		}
		tags["/"+name] = got.header.Get("ETag")
		if head := ask(t, p.client, "HEAD", p.url("a")+name, ""); head.header.Get("ETag") != tags["/"+name] || head.body != "" {
			t.Errorf("HEAD of %s is %v", name, head)
		}
	}
	listed := make(map[string]string)
	for line := range strings.Lines(p.get("_etags").body) {
		name, tag, _ := strings.Cut(strings.TrimSpace(line), "#")
		listed[name] = tag
	}
	if diff := cmp.Diff(tags, listed); diff != "" {
		t.Errorf("the list of tags (-tags of the files +list):\n%s", diff)
	}
	if got := p.get("c.js"); got.code != http.StatusNotFound {
		t.Errorf("a file that there is not is answered %d", got.code)
	}
}

// TestStockAcknowledges has a Pipy say what it runs: nothing before it has loaded a
// second version, and the old one when it could not start the new.
func TestStockAcknowledges(t *testing.T) {
	c := newCore(t)
	first := c.set("a", testMain, "1")
	h := c.serve(t)
	p := h.pipy(t, "a")
	p.says("x", "")
	if c.acks != 0 {
		t.Fatalf("before it has loaded anything: %q", c.events)
	}
	tag := p.get("").header.Get("ETag")
	p.says("y", "")
	if c.told("acked "+mirror.Version(first)) != 1 {
		t.Fatalf("after the first version: %q", c.events)
	}
	second := c.set("a", testMain, "2")
	version := func() string { return ask(t, p.client, "HEAD", p.url("a"), "").header.Get("ETag") }
	eventually(t, "there is another version", func() bool { return version() != tag })
	next := p.get("").header.Get("ETag")
	p.says("y", "")
	p.says("y", tag)
	if c.acks != 1 || len(c.refusals()) != 0 {
		t.Errorf("while it loads: %q", c.events)
	}
	p.says("y", next)
	if c.told("acked "+mirror.Version(second)+" timed") != 1 {
		t.Errorf("when it runs the second: %q", c.events)
	}
	c.set("a", testMain, "broken")
	eventually(t, "there is another version", func() bool { return version() != next })
	p.get("")
	session := h.server.each()[0]
	session.stock.mu.Lock()
	session.stock.loaded = session.stock.loaded.Add(-startWithin)
	session.stock.mu.Unlock()
	p.says("y", next)
	refused := c.refusals()
	if len(refused) != 1 || !strings.Contains(refused[0].Message, "goes on with the one before") || !cmp.Equal(refused[0].Resources, []string{testMain}) {
		t.Errorf("when it can't start the third: %+v", refused)
	}
}

// TestStockLoadsOneVersion changes the files while a Pipy asks for one after the other.
func TestStockLoadsOneVersion(t *testing.T) {
	c := newCore(t)
	c.set("a", testMain, "import old", "old.js", "1", "same.js", "1")
	h := c.serve(t)
	p := h.pipy(t, "a")
	tag := p.get("").header.Get("ETag")
	c.set("a", testMain, "import new", "new.js", "2", "same.js", "2")
	eventually(t, "there is another version", func() bool { return ask(t, p.client, "HEAD", p.url("a"), "").header.Get("ETag") != tag })
	for name, want := range map[string]string{testMain: "import old", "old.js": "1", "same.js": "1"} {
		if got := p.get(name); got.body != want {
			t.Errorf("%s is %d %q", name, got.code, got.body)
		}
	}
	p.get("")
	for name, want := range map[string]string{testMain: "import new", "new.js": "2", "same.js": "2"} {
		if got := p.get(name); got.body != want {
			t.Errorf("of the next version %s is %d %q", name, got.code, got.body)
		}
	}
	if got := p.get("old.js"); got.code != http.StatusNotFound {
		t.Errorf("of the next version old.js is %d", got.code)
	}
	// One that was loaded long ago does not count.
	c.set("a", testMain, "newest")
	session := h.server.each()[0]
	session.stock.mu.Lock()
	session.stock.loaded = session.stock.loaded.Add(-loadWithin)
	session.stock.mu.Unlock()
	eventually(t, "the newest file is served", func() bool { return p.get(testMain).body == "newest" })
}

// TestReload tells a Pipy of a change until it has loaded it.
func TestReload(t *testing.T) {
	c := newCore(t)
	c.set("a", testMain, "1")
	h := c.serve(t)
	p := h.pipy(t, "a")
	p.get("")
	socket := p.socket()
	eventually(t, "the socket is there", func() bool { return h.sockets("a") == 1 })
	c.set("a", testMain, "2")
	for i := range 2 {
		began := time.Now()
		if got := p.command(socket); got != "reload\n" {
			t.Errorf("the command is %q", got)
		}
		if took := time.Since(began); i == 1 && took < reloadAgain/2 {
			t.Errorf("it is told again after %s", took)
		}
	}
	p.get("")
	c.set("a", testMain, "3")
	if got := p.command(socket); got != "reload\n" {
		t.Errorf("the command is %q", got)
	}
}

// TestReloadAfterRestart has a Pipy come to a controller that has just begun: it loads
// nothing again but what has changed.
func TestReloadAfterRestart(t *testing.T) {
	for name, test := range map[string]struct {
		status string
		change bool
	}{
		"runs another version":        {status: "of before"},
		"says nothing, and a change":  {change: true},
		"runs this one, and a change": {status: "this", change: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCore(t)
			set := c.set("a", testMain, "1")
			h := c.serve(t)
			p := h.pipy(t, "a")
			socket := p.socket()
			told := make(chan string, 1)
			go func() { told <- p.command(socket) }()
			eventually(t, "the socket is there", func() bool { return h.sockets("a") == 1 })
			if test.status == "this" {
				p.says("x", `"`+mirror.Version(set)+`"`)
			} else if test.status != "" {
				p.says("x", test.status)
			}
			if test.change {
				select {
				case <-told:
					t.Fatal("it is told to load what it has")
				case <-time.After(100 * time.Millisecond):
				}
				c.set("a", testMain, "2")
			}
			if got := <-told; got != "reload\n" {
				t.Errorf("the command is %q", got)
			}
		})
	}
}

// TestSocketEnds ends WebSockets with what they are for.
func TestSocketEnds(t *testing.T) {
	c := newCore(t)
	c.set("a", testMain, "1")
	h := c.serve(t)
	p := h.pipy(t, "a")
	sockets := []*websocket.Conn{p.socket(), p.socket()}
	if _, response, err := websocket.Dial(t.Context(), p.url("a")+"uuid", &websocket.DialOptions{HTTPClient: p.client}); err == nil || response == nil || response.StatusCode != 429 {
		t.Errorf("one too many is answered %v", err)
	}
	_ = sockets[0].CloseNow()
	eventually(t, "the first is gone", func() bool { return h.sockets("a") == 1 })
	c.drop("a")
	_, _, err := sockets[1].Read(t.Context())
	if websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("the socket of a pod that is gone is read as %v", err)
	}
	eventually(t, "the registry is told", func() bool { return c.told("close") == 1 })
}

// TestMirrorOnly serves no Pipy for a driver without a main file.
func TestMirrorOnly(t *testing.T) {
	c := newCore(t)
	c.set("a", "haproxy.cfg", "global")
	h := c.serve(t, func(s *Server) { s.options.Main = "" })
	client := h.http(t, c.ca.workload(t, proxyOf("a"), time.Hour))
	if got := ask(t, client, "GET", h.url("a"), ""); got.code != 200 || got.header.Get("Content-Type") != mirror.ChangeType {
		t.Errorf("the whole is answered %d %v", got.code, got.header)
	}
	for _, name := range []string{"haproxy.cfg", "_etags", "uuid"} {
		if got := ask(t, client, "GET", h.url("a")+name, "", "Upgrade", "websocket"); got.code != http.StatusNotFound {
			t.Errorf("%s is answered %d", name, got.code)
		}
	}
	if got := ask(t, client, "POST", h.url("a"), "{}", "Content-Type", "application/json"); got.code != http.StatusUnsupportedMediaType {
		t.Errorf("a status of Pipy's is answered %d", got.code)
	}
	poll(t, h.client(t, "a"), mirror.Set{})
}

// FuzzHost has a connection begin with anything: what is added is a Host, and no
// request becomes two.
func FuzzHost(f *testing.F) {
	f.Add([]byte("GET /repo/a/x HTTP/1.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\nmore"))
	f.Add([]byte("GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\n\r\n"))
	f.Add([]byte("GET / HTTP/1.0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, begin []byte) {
		got := withHost(begin)
		if got == nil {
			return
		}
		if without := strings.Replace(string(got), "\r\nHost: repository", "", 1); without != string(begin) {
			t.Errorf("%q becomes %q", begin, got)
		}
	})
}

// TestDebug shows the proxies and their files.
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
			t.Errorf("%s is answered %d", uid, code)
		}
	}
}

// TestNew refuses options that lack something.
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
