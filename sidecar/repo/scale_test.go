package repo

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
	"github.com/outrigger-mesh/outrigger/test/fleet"
	"github.com/outrigger-mesh/outrigger/test/race"
)

func TestMain(m *testing.M) { fleet.Main(m, run) }

// run is an agent that accepts every change.
func run(address string, ca drivertest.TestAuthority, number int, connected func()) error {
	proxy := proxyOf(fmt.Sprint("p", number))
	client := mirror.Client{
		URL: "https://" + address + Prefix + proxy.UID + "/",
		HTTP: &http.Client{Transport: &http.Transport{ReadBufferSize: 1 << 10, WriteBufferSize: 1 << 10, TLSClientConfig: &tls.Config{
			RootCAs: ca.Pool(), Certificates: []tls.Certificate{ca.SignFor(proxy, time.Hour)}, ServerName: "controller",
		}}},
	}
	has := ""
	for {
		change, err := client.Poll(context.Background(), has)
		if err != nil {
			return err
		}
		if has == "" {
			connected()
		}
		if change != nil {
			has = change.Version
		}
	}
}

// documents returns a proxy's files for some services.
func documents(t testing.TB, services int) mirror.Set {
	var files []string
	for i := range services {
		name := fmt.Sprintf("shop/service-%d:80.json", i)
		files = append(files, "config/destinations/"+name, strings.Repeat("d", 600), "config/backends/"+name, strings.Repeat("e", 900))
	}
	return setOf(t, files...)
}

// TestThousandAgents bounds the cost of a change of one endpoint that concerns a thousand
// proxies, and the cost of idle proxies. The agents run in another process.
func TestThousandAgents(t *testing.T) {
	if race.Enabled {
		t.Skip("it is a measurement")
	}
	c := newCore(t)
	h := c.serve(t)
	const manyServices = 300
	shared := documents(t, manyServices)
	set := func(shared mirror.Set) {
		for i := range fleet.Size {
			own, _ := mirror.NewFile("config/settings.json", fmt.Sprintf(`{"pod": "p%d"}`, i))
			c.put(proxyOf(fmt.Sprint("p", i)), shared.With(mesh.Change[*mirror.File]{Name: own.Name, Value: own}))
		}
	}
	set(shared)
	before := fleet.Memory()

	check := fleet.Start(t, h.address, c.ca.Authority)
	acked := func(n int) func() bool {
		return func() bool {
			check()
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.acks >= n
		}
	}
	began := fleet.CPU()
	eventually(t, "all proxies run their first version", acked(fleet.Size))
	t.Logf("connecting %d proxies with %d services: %s of CPU", fleet.Size, manyServices, fleet.CPU()-began)

	idle := (fleet.Memory() - before) / fleet.Size
	t.Logf("an idle proxy: %d KiB", idle>>10)
	if limit := uint64(64 << 10); idle > limit {
		t.Errorf("an idle proxy takes %d bytes, more than %d", idle, limit)
	}

	var costs []time.Duration
	var allocations uint64
	for round := range 5 {
		const name = "config/backends/shop/service-7:80.json"
		changed, err := mirror.NewFile(name, strings.Repeat(fmt.Sprint(round), 900))
		if err != nil {
			t.Fatal(err)
		}
		next := shared.With(mesh.Change[*mirror.File]{Name: name, Value: changed})
		c.mu.Lock()
		sent, size := c.sent, c.size
		c.mu.Unlock()
		var m, n runtime.MemStats
		runtime.ReadMemStats(&m)
		began, at := fleet.CPU(), time.Now()
		set(next)
		put := fleet.CPU() - began
		eventually(t, "all proxies run the next version", acked(fleet.Size*(round+2)))
		cost := fleet.CPU() - began
		runtime.ReadMemStats(&n)
		costs, allocations = append(costs, cost), n.Mallocs-m.Mallocs
		c.mu.Lock()
		sent, size = c.sent-sent, c.size-size
		c.mu.Unlock()
		t.Logf("a changed endpoint: %s, %s of CPU (%s of the test itself), %d allocations and %d bytes a proxy",
			time.Since(at), cost, put, allocations/fleet.Size, size/fleet.Size)
		if sent != fleet.Size || size > 1300*fleet.Size {
			t.Errorf("%d files are sent, in %d bytes", sent, size)
		}
	}
	idle = (fleet.Memory() - before) / fleet.Size
	t.Logf("an idle proxy after changes: %d KiB", idle>>10)
	if best := slices.Min(costs); best > 400*time.Millisecond {
		t.Errorf("a change costs %s of CPU, more than 400 ms", best)
	}
	if each := allocations / fleet.Size; each > 250 {
		t.Errorf("a change costs %d allocations a proxy", each)
	}
}
