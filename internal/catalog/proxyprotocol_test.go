package catalog

import (
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestProxyProtocol checks which ports have the PROXY protocol, and which have a Problem instead.
func TestProxyProtocol(t *testing.T) {
	asks := func(w *fact.Workload) {
		w.ProxyProtocol = []uint16{80, 81, 3306}
		w.Ports = []fact.WorkloadPort{{Number: 3306}}
		w.Redirection = mesh.Redirection{ExcludeInbound: []uint16{80}}
	}
	snapshot := Build(list(settings(), namespace("shop"), pod("shop/web-1", "web", "10.1.0.1", asks), pod("shop/web-2", "web", "10.1.0.2")))
	for uid, want := range map[string][]uint16{"uid-shop/web-1": {80, 81, 3306}, "uid-shop/web-2": nil} {
		view, ok := snapshot.Views.Get(uid)
		if !ok {
			t.Fatalf("no View of %s", uid)
		}
		var got []uint16
		for _, p := range view.Inbound.Ports {
			if p.ProxyProtocol && p.Protocol == mesh.TCP {
				got = append(got, p.Port)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s has the PROXY protocol at %v, want %v", uid, got, want)
		}
	}
	var problems []string
	for _, of := range snapshot.Problems.All() {
		for _, p := range of.List {
			if p.Field == fieldProxyProtocol {
				problems = append(problems, p.Reason)
			}
		}
	}
	if got := strings.Join(problems, " "); got != "NoEffect NoSuchPort" {
		t.Errorf("the Problems are %q", got)
	}
}
