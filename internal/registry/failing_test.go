package registry

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestFailing has proxies that keep crashing. One of them is connected at times.
func TestFailing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		cart := Failure{Pod: mesh.Name{Namespace: "shop", Name: "cart-1"}, UID: "uid-1", How: "signal: SIGABRT", LastWords: "too many open files", Starts: 3}
		if !d.Failed(cart) || d.Failed(cart) {
			t.Error("only the first report is news")
		}
		list := d.Proxies()
		if len(list) != 1 || list[0].State != Failing || list[0].Name != cart.Pod || list[0].Failure == nil {
			t.Fatalf("the proxies are %+v", list)
		}
		if text := list[0].Failure.Text(); !strings.Contains(text, "SIGABRT") || !strings.Contains(text, "too many open files") {
			t.Errorf("it says %q", text)
		}
		count := func() float64 { return testutil.ToFloat64(d.Registry.metrics.failing.WithLabelValues("shop")) }
		if n := count(); n != 1 {
			t.Errorf("%v are counted", n)
		}
		d.Recovered("uid-1")
		if list := d.Proxies(); len(list) > 0 || count() != 0 {
			t.Errorf("after it has recovered there are %+v", list)
		}
		// A deleted pod sends no more reports.
		d.Failed(cart)
		time.Sleep(forgotten + 2*time.Second)
		if n := count(); n != 0 {
			t.Errorf("%v are counted that nobody has reported for long", n)
		}
		if list := d.Proxies(); len(list) > 0 {
			t.Errorf("there are still %+v", list)
		}
	})
}
