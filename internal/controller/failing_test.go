package controller

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// eventLog is an origin that keeps the Events about pods.
type eventLog struct {
	origin
	live   *source.Live
	events []string
}

func (o *eventLog) settings() *source.Live { return o.live }

func (o *eventLog) warnPod(_ context.Context, namespace, pod, uid, message string) error {
	o.events = append(o.events, strings.Join([]string{namespace, pod, uid, message}, " "))
	return nil
}

// TestFailuresAreReported follows an agent's reports to the pod's Events and to the list of
// proxies.
func TestFailuresAreReported(t *testing.T) {
	from := &eventLog{live: source.NewLive(meshconfig.NewResolver().Resolve(nil))}
	proxies := registry.New(registry.Options{Registerer: prometheus.NewRegistry()})
	reports := failures{from, proxies, slog.New(slog.DiscardHandler)}
	cart := identity.Workload{Namespace: "shop", ServiceAccount: "cart", Pod: "cart-1", PodUID: "uid-1"}
	reports.take(t.Context(), cart, identity.ProxyReport{Failing: true, How: "signal: SIGABRT", LastWords: "too many open files", Starts: 3})
	const says = "the proxy does not stay up: signal: SIGABRT; it last printed: too many open files"
	if len(from.events) != 1 || from.events[0] != "shop cart-1 uid-1 "+says {
		t.Errorf("the Events are %q", from.events)
	}
	if list := proxies.Proxies(); len(list) != 1 || list[0].State != registry.Failing || list[0].Failure == nil || list[0].Failure.Text() != says {
		t.Errorf("the proxies are %+v, want one that is Failing, with %q", list, says)
	}
	reports.take(t.Context(), cart, identity.ProxyReport{})
	if left := proxies.Proxies(); len(left) > 0 {
		t.Errorf("after it has recovered there are %+v", left)
	}
}
