package catalog

import (
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestAccessLog checks that a pod's access log wins over its namespace's, and that over the
// mesh's, and that proxies with equal ones share their settings.
func TestAccessLog(t *testing.T) {
	errors, share, none := mesh.AccessLog{Enabled: true}, mesh.AccessLog{Enabled: true, Sampled: 1000}, mesh.AccessLog{}
	of := func(log mesh.AccessLog) func(*fact.Workload) {
		return func(w *fact.Workload) { w.AccessLog = &log }
	}
	j := newJoin(Options{})
	for _, f := range list(
		settings(func(s *mesh.Settings) { s.AccessLog = errors }), namespace("shop", func(n *fact.Namespace) { n.AccessLog = &share }), namespace("bank"),
		pod("shop/web-1", "web", "10.1.0.1"), pod("shop/web-2", "web", "10.1.0.2"), pod("shop/quiet", "web", "10.1.0.3", of(none)), pod("shop/mesh", "web", "10.1.0.4", of(errors)),
		pod("bank/teller", "teller", "10.1.9.1"), pod("bank/vault", "vault", "10.1.9.2", of(none)),
	) {
		j.set(f)
	}
	check := func(wants map[string]mesh.AccessLog) {
		t.Helper()
		s := j.snapshot()
		instances := map[mesh.AccessLog]*mesh.Settings{s.Settings.AccessLog: s.Settings}
		for uid, want := range wants {
			view, ok := s.Views.Get(uid)
			if !ok {
				t.Fatalf("%s has no View", uid)
			}
			if got := view.Settings.AccessLog; got != want {
				t.Errorf("the access log of %s is %+v, want %+v", uid, got, want)
			}
			if first := instances[want]; first != nil && first != view.Settings {
				t.Errorf("the settings of %s are another instance than those of others with the access log %+v", uid, want)
			}
			instances[want] = view.Settings
		}
	}
	check(map[string]mesh.AccessLog{
		"uid-shop/web-1": share, "uid-shop/web-2": share, "uid-shop/quiet": none, "uid-shop/mesh": errors, "uid-bank/teller": errors, "uid-bank/vault": none,
	})
	j.set(namespace("shop"))
	j.set(settings(func(s *mesh.Settings) { s.AccessLog = mesh.FullAccessLog() }))
	check(map[string]mesh.AccessLog{
		"uid-shop/web-1": mesh.FullAccessLog(), "uid-shop/quiet": none, "uid-shop/mesh": errors, "uid-bank/teller": mesh.FullAccessLog(), "uid-bank/vault": none,
	})
}
