package xds

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestPanicEndsOneStream has the translation of one proxy's View panic, at first and
// after a change: its stream ends, and others are served as before.
func TestPanicEndsOneStream(t *testing.T) {
	h := newCore(t).serve(t, forever)
	other := connected(t, h)
	translate := h.server.options.Translate
	bad := make(map[mesh.Digest]bool)
	h.server.options.Translate = func(view *mesh.View) Config {
		h.mu.Lock()
		panics := bad[view.Digest()]
		h.mu.Unlock()
		if panics {
			panic("a View that nobody thought of")
		}
		return translate(view)
	}
	spoil := func(view *mesh.View) {
		h.mu.Lock()
		defer h.mu.Unlock()
		bad[view.Digest()] = true
	}
	spoil(h.set("bad", shop))
	first := h.delta(t, "bad")
	first.subscribe(clusters)
	wantEnd(t, first.ends(), codes.Internal, "failed")

	h.set("bad", shop)
	second := h.delta(t, "bad")
	second.subscribe(clusters)
	second.take("Cluster a=1 b=1")
	view := mesh.NewView(mesh.Seal(proxyOf("bad")), testSettings, testInbound,
		mesh.NewOutbound("bad", mesh.Table[*mesh.Destination]{}, mesh.Table[*mesh.Backend]{}), testEgress)
	h.mu.Lock()
	bad[view.Digest()] = true
	h.mu.Unlock()
	h.SetView("bad", view)
	wantEnd(t, second.ends(), codes.Internal, "failed")

	h.set("p", shop.with(endpoints, "a@1", "2"))
	other.take("Endpoint a@1=2")
	eventually(t, "nothing of it is left", func() bool { return len(h.server.streamsOf("bad")) == 0 })
}

// TestNothingIsLeftOfPods deletes pods while their proxies are connected: no goroutine
// and no state must be left.
func TestNothingIsLeftOfPods(t *testing.T) {
	h := newCore(t).serve(t, forever)
	round := func(n int) {
		var all []*deltaClient
		for i := range 20 {
			uid := fmt.Sprintf("pod-%d-%d", n, i)
			h.set(uid, shop)
			c := h.delta(t, uid)
			c.subscribe(clusters)
			c.take("Cluster a=1 b=1")
			all = append(all, c)
		}
		for i, c := range all {
			h.SetView(fmt.Sprintf("pod-%d-%d", n, i), nil)
			wantEnd(t, c.ends(), codes.PermissionDenied, "not in the mesh any more")
		}
		eventually(t, "no stream is left", func() bool { return len(h.server.allStreams()) == 0 })
	}
	streams := func() int {
		h.server.mu.Lock()
		defer h.server.mu.Unlock()
		return len(h.server.streams)
	}
	round(0)
	before := working(t)
	for n := range 5 {
		round(n + 1)
	}
	if n := streams(); n != 0 {
		t.Errorf("streams of %d proxies are left", n)
	}
	eventually(t, "as many goroutines work on streams as before", func() bool { return working(t) <= before })
}

// working returns the number of goroutines that serve streams. Connections of the
// tests' clients stay open until the end.
func working(t *testing.T) int {
	t.Helper()
	time.Sleep(time.Millisecond)
	records := make([]runtime.StackRecord, 1<<14)
	n, ok := runtime.GoroutineProfile(records)
	if !ok {
		t.Fatalf("there are %d goroutines", n)
	}
	count := 0
	for _, r := range records[:n] {
		frames := runtime.CallersFrames(r.Stack())
		for more := true; more; {
			var f runtime.Frame
			f, more = frames.Next()
			if isOfServer(f.Function) {
				count++
				break
			}
		}
	}
	return count
}

func isOfServer(function string) bool {
	_, name, _ := strings.Cut(function, "sidecar/xds.")
	return name == "(*Server).stream" || name == "(*Server).reader.func1" || name == "(*Server).await.func1"
}
