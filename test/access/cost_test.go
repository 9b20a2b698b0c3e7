package access

import (
	"flag"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// manyRules is how many rules a pod may have.
const manyRules = 1000

var measures = flag.Bool("cost", false, "whether to measure what many rules cost a request")

// TestCost measures what a thousand rules cost a request, beside a port with one.
func TestCost(t *testing.T) {
	if !*measures {
		t.Skip("it measures times, with -args -cost")
	}
	last := path(mesh.StringMatch{Prefix: "/last"})
	rules := func(n int) (allow, deny mesh.Access) {
		deny.Anyone = true
		for i := range n {
			m := mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: fmt.Sprintf("/team-%d", i)}, Methods: []string{http.MethodGet}}
			allow.Rules = append(allow.Rules, mesh.Permission{Origin: drivertest.Origin("AccessPolicy", fmt.Sprintf("shop/%d", i)), Sources: []mesh.Identity{identity(fmt.Sprintf("team-%d", i%100), fmt.Sprint("account-", i))}, Requests: []mesh.HTTPMatch{m}})
			deny.Denials = append(deny.Denials, mesh.Denial{Origin: drivertest.Origin("AccessPolicy", fmt.Sprintf("shop/%d", i)), Everyone: true, Requests: []mesh.HTTPMatch{m}})
		}
		allow.Rules = append(allow.Rules, mesh.Permission{Origin: drivertest.Origin("AccessPolicy", "shop/last"), Sources: []mesh.Identity{identity("shop", "")}, Requests: []mesh.HTTPMatch{last}})
		return allow, deny
	}
	in := &mesh.Inbound{TLS: mesh.Strict}
	for i, n := range []int{1, manyRules} {
		allow, deny := rules(n)
		for j, a := range []mesh.Access{allow, deny} {
			in.Ports = append(in.Ports, mesh.InboundPort{Port: uint16(firstPort + 2*i + j), Protocol: mesh.HTTP, Access: a})
		}
	}
	in = mesh.Seal(in)
	w := newWorkshop(t)
	for _, c := range classes {
		if w.programs[c.name] == "" {
			continue
		}
		p, err := w.start(t.Context(), c, in)
		if err != nil {
			t.Fatal(err)
		}
		client := &client{proxy: p, configs: w.configs, kept: make(map[string]*connection)}
		// Few and many rules take turns, so that both have the same share of a busy machine.
		times := make([][]time.Duration, len(in.Ports))
		for range 600 {
			for i := range in.Ports {
				q := get("/last/one")
				q.Port = in.Ports[i].Port
				began := time.Now()
				if o := client.ask(t.Context(), in, &q); !o.reached() {
					t.Fatalf("%s: port %d: %v", c.name, q.Port, o.answer)
				}
				times[i] = append(times[i], time.Since(began))
			}
		}
		client.close()
		if err := p.stop(); err != nil {
			t.Fatal(err)
		}
		for i, kind := range []string{"that allow", "that deny"} {
			few, many := quartile(times[i]), quartile(times[i+2])
			t.Logf("%s: a request takes %v with one rule and %v with %d %s: %v more", c.name, few, many, manyRules, kind, many-few)
		}
	}
}

// quartile returns the time that a quarter of the requests do not exceed.
func quartile(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/4]
}
