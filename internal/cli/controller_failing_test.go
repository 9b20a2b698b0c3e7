package cli

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/registry"
)

// TestFailuresAreTold follows an agent's reports to the pod's Events and to the list.
func TestFailuresAreTold(t *testing.T) {
	var events []string
	live := (&controllerFlags{}).newLive()
	proxies := registry.New(registry.Options{Registerer: prometheus.NewRegistry()})
	told := failures{&origin{config: live, warnPod: func(_ context.Context, namespace, pod, uid, message string) error {
		events = append(events, strings.Join([]string{namespace, pod, uid, message}, " "))
		return nil
	}}, proxies, slog.New(slog.DiscardHandler)}
	cart := identity.Workload{Namespace: "shop", ServiceAccount: "cart", Pod: "cart-1", PodUID: "uid-1"}
	told.take(t.Context(), cart, identity.ProxyReport{Failing: true, How: "signal: SIGABRT", LastWords: "too many open files", Starts: 3})
	const says = "the proxy does not stay up: signal: SIGABRT; it last said: too many open files"
	if len(events) != 1 || events[0] != "shop cart-1 uid-1 "+says {
		t.Errorf("the Events are %q", events)
	}
	var list []listedProxy
	for _, p := range proxies.Proxies() {
		list = append(list, listedProxy{p, "controller"})
	}
	var out bytes.Buffer
	if err := printProxies(&out, list, false, time.Now()); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.Contains(text, "Failing") || !strings.Contains(text, "shop/cart-1: "+says) {
		t.Errorf("the list is\n%s", text)
	}
	told.take(t.Context(), cart, identity.ProxyReport{})
	if left := proxies.Proxies(); len(left) > 0 {
		t.Errorf("after it has recovered there are %+v", left)
	}
}
