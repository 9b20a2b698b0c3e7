package xds

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/status"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// FuzzRequests sends arbitrary requests in arbitrary order while the configuration
// changes: a stream never panics, and does not send without end.
func FuzzRequests(f *testing.F) {
	f.Add(false, []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16})
	f.Add(true, []byte("state of the world, and more of it than anybody asked for"))
	f.Add(false, []byte("\x00\x00\x01\x40\x00\x01\x80\x01\x01\xc0\x02\x02"))
	f.Fuzz(func(t *testing.T, sotw bool, script []byte) {
		if len(script) > 512 {
			script = script[:512]
		}
		core := newCore(t)
		target := shop
		core.set("p", target)
		s := newStream(core.server(t, t.Context(), time.Minute), sotw, driver.Peer{ProxyUID: "p", Identity: proxyOf("p").Identity}, time.Now())
		s.conn = core.connection()
		view, _ := core.View("p")
		s.retarget(view, core.translate(view), time.Time{})
		types := []string{clusters, endpoints, listeners, routes, secrets, "", "type.googleapis.com/test.Other"}
		names := []string{"a", "b", "a@1", "b@1", "l", "r", "s", "*", "", "x", "\xff", strings.Repeat("y", maxNameBytes)}
		var nonces []string
		next := func() int {
			if len(script) == 0 {
				return 0
			}
			b := script[0]
			script = script[1:]
			return int(b)
		}
		some := func() []string {
			var out []string
			for n := next(); n > 0; n /= 4 {
				out = append(out, names[(n+next())%len(names)])
			}
			return out
		}
		for len(script) > 0 {
			switch op := next(); op % 8 {
			case 0:
				target = target.with(testTypes[next()%len(testTypes)].URL, names[next()%7], []string{"", "1", "2", "3"}[next()%4])
				core.set("p", target)
				s.notify(false, time.Now())
			case 1:
				s.notify(true, time.Now())
			case 2:
				s.stopWaiting(time.Now().Add(time.Hour))
			default:
				r := request{typeURL: types[next()%len(types)], subscribe: some(), unsubscribe: some(), names: some()}
				if n := next(); len(nonces) > 0 && n%4 > 0 {
					r.nonce = nonces[len(nonces)-1-n%len(nonces)]
				}
				if n := next(); n%3 == 0 {
					r.refusal = &status.Status{Message: names[n%len(names)]}
				}
				if n := next(); n%2 == 0 {
					r.version, r.initial = fmt.Sprint(n), map[string]string{names[n%len(names)]: resourceOf(clusters, "a", "1").version()}
				}
				if s.handle(r) != nil {
					return
				}
			}
			sent := 0
			if _, err := s.sendPending(func(r *response) error {
				m := decode(t, sotw, r)
				nonces = append(nonces, m.nonce)
				if sent++; sent > 100 {
					t.Fatal("it does not stop sending")
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			flights := 0
			for state := range s.all {
				if state.flight != nil {
					flights++
				}
			}
			if flights > len(testTypes)+2 {
				t.Fatalf("%d responses are not answered", flights)
			}
		}
	})
}
