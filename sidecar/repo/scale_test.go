package repo

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
	"github.com/outrigger-mesh/outrigger/test/race"
)

// fleetVariable turns the test program into a fleet of agents; its value is the address to
// connect to.
const fleetVariable = "OUTRIGGER_TEST_FLEET"

const fleetSize = 1000

func TestMain(m *testing.M) {
	if address := os.Getenv(fleetVariable); address != "" {
		if err := runFleet(address); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// runFleet connects agents that accept every change, until the input ends. The variable's
// file has the key and the certificate of the authority.
func runFleet(address string) error {
	pemKey, err := os.ReadFile(os.Getenv(fleetVariable + "_CA"))
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(pemKey, pemKey)
	if err != nil {
		return err
	}
	ca := drivertest.TestAuthority{Authority: &drivertest.Authority{Certificate: pair}, T: new(testing.T)}
	slots := make(chan struct{}, 8)
	for i := range fleetSize {
		slots <- struct{}{}
		go func() {
			proxy := proxyOf(fmt.Sprint("p", i))
			client := mirror.Client{
				URL: "https://" + address + Prefix + proxy.UID + "/",
				HTTP: &http.Client{Transport: &http.Transport{ReadBufferSize: 1 << 10, WriteBufferSize: 1 << 10, TLSClientConfig: &tls.Config{
					RootCAs: ca.Pool(), Certificates: []tls.Certificate{ca.SignFor(proxy, time.Hour)}, ServerName: "controller",
				}}},
			}
			has := ""
			for {
				change, err := client.Poll(context.Background(), has)
				if has == "" {
					<-slots
				}
				if err != nil {
					panic(err)
				}
				if change != nil {
					has = change.Version
				}
			}
		}()
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
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

func cpu() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// memory returns the bytes of live objects and stacks.
func memory() uint64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// TestThousandAgents bounds the cost of a change of one endpoint that concerns a thousand
// proxies, and the cost of idle proxies. The agents run in another process.
func TestThousandAgents(t *testing.T) {
	if testing.Short() || race.Enabled {
		t.Skip("it is a measurement")
	}
	c := newCore(t)
	h := c.serve(t)
	const manyServices = 300
	shared := documents(t, manyServices)
	set := func(shared mirror.Set) {
		for i := range fleetSize {
			own, _ := mirror.NewFile("config/settings.json", fmt.Sprintf(`{"pod": "p%d"}`, i))
			c.put(proxyOf(fmt.Sprint("p", i)), shared.With(mesh.Change[*mirror.File]{Name: own.Name, Value: own}))
		}
	}
	set(shared)
	before := memory()

	file := filepath.Join(t.TempDir(), "ca.pem")
	key, err := x509.MarshalPKCS8PrivateKey(c.ca.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, slices.Concat(
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.ca.Certificate.Certificate[0]})), 0o600); err != nil {
		t.Fatal(err)
	}
	fleet := exec.Command(os.Args[0])
	fleet.Env = append(os.Environ(), fleetVariable+"="+h.address, fleetVariable+"_CA="+file)
	input, err := fleet.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var output bytes.Buffer
	fleet.Stdout, fleet.Stderr = &output, &output
	if err := fleet.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = fleet.Wait()
	}()
	defer func() {
		input.Close()
		<-gone
	}()
	acked := func(n int) func() bool {
		return func() bool {
			select {
			case <-gone:
				t.Fatalf("the fleet has ended: %s", output.String())
			default:
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.acks >= n
		}
	}
	began := cpu()
	eventually(t, "all proxies run their first version", acked(fleetSize))
	t.Logf("connecting %d proxies with %d services: %s of CPU", fleetSize, manyServices, cpu()-began)

	idle := (memory() - before) / fleetSize
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
		began, at := cpu(), time.Now()
		set(next)
		put := cpu() - began
		eventually(t, "all proxies run the next version", acked(fleetSize*(round+2)))
		cost := cpu() - began
		runtime.ReadMemStats(&n)
		costs, allocations = append(costs, cost), n.Mallocs-m.Mallocs
		c.mu.Lock()
		sent, size = c.sent-sent, c.size-size
		c.mu.Unlock()
		t.Logf("a changed endpoint: %s, %s of CPU (%s of the test itself), %d allocations and %d bytes a proxy",
			time.Since(at), cost, put, allocations/fleetSize, size/fleetSize)
		if sent != fleetSize || size > 1300*fleetSize {
			t.Errorf("%d files are sent, in %d bytes", sent, size)
		}
	}
	idle = (memory() - before) / fleetSize
	t.Logf("an idle proxy after changes: %d KiB", idle>>10)
	if best := slices.Min(costs); best > 400*time.Millisecond {
		t.Errorf("a change costs %s of CPU, more than 400 ms", best)
	}
	if each := allocations / fleetSize; each > 250 {
		t.Errorf("a change costs %d allocations a proxy", each)
	}
}
