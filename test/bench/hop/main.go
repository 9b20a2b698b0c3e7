// Command hop measures what the mesh adds to one request: an application that calls
// another through both sidecars, beside the same two without a mesh. Both run in turns
// on one lab, so that noise meets both, and it ends by itself.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/internal/lab"
	"github.com/outrigger-mesh/outrigger/internal/localmesh"
)

const manifests = `
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec: {sidecar: {sidecarClass: %s}, traffic: {enablePermissiveTrafficPolicyMode: true}}
---
apiVersion: v1
kind: Namespace
metadata:
  name: bench
  labels: {openservicemesh.io/monitored-by: osm}
  annotations: {openservicemesh.io/sidecar-injection: enabled}
---
apiVersion: v1
kind: Namespace
metadata: {name: plain}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: bench}
spec: {serviceAccountName: client, containers: [{name: app, image: in-the-bench}]}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: bench, labels: {app: server}}
spec: {serviceAccountName: server, containers: [{name: app, image: in-the-bench}]}
---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: bench}
spec: {selector: {app: server}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: plain}
spec: {containers: [{name: app, image: in-the-bench}]}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: plain}
spec: {containers: [{name: app, image: in-the-bench}]}
`

func main() {
	requests := flag.Int("n", 2000, "requests a round")
	rounds := flag.Int("rounds", 5, "rounds of each kind")
	class := flag.String("class", "envoy", "the sidecars' class")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *class, *requests, *rounds)
	stop()
	if errors.Is(err, lab.ErrUnavailable) || errors.Is(err, errNoProxy) {
		fmt.Println("SKIPPED:", err)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "hop:", err)
		os.Exit(1)
	}
}

// side is one of the two ways that are compared.
type side struct {
	name    string
	client  *http.Client
	url     string
	times   []time.Duration
	elapsed time.Duration
	// cpu is what the sidecars have used.
	cpu time.Duration
}

// errNoProxy says that there is nothing to measure on this machine.
var errNoProxy = errors.New("there is no such proxy")

func run(ctx context.Context, class string, requests, rounds int) (err error) {
	dir, err := os.MkdirTemp("", "outrigger-hop-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	programs, err := localmesh.BuildPrograms(ctx, dir, "")
	if err != nil {
		return err
	}
	if err := programs.Missing[class]; err != nil {
		return fmt.Errorf("%w: %w", errNoProxy, err)
	}
	mesh, err := localmesh.New(ctx, localmesh.Options{
		Dir: filepath.Join(dir, "mesh"), Manifests: map[string]string{"bench.yaml": fmt.Sprintf(manifests, class)}, Programs: programs,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mesh.Close()) }()
	for _, name := range []string{"bench/server", "plain/server"} {
		listener, err := mesh.Pod(name).Listen(ctx, "tcp", ":8080")
		if err != nil {
			return err
		}
		server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "ok")
		})}
		go func() { _ = server.Serve(listener) }()
		defer server.Close()
	}
	if err := mesh.WaitReady(ctx); err != nil {
		return err
	}
	sides := []*side{
		newSide("without a mesh", mesh.Pod("plain/client"), "http://"+net.JoinHostPort(mesh.Pod("plain/server").Addresses()[0].String(), "8080")),
		newSide("through both sidecars", mesh.Pod("bench/client"), "http://server.bench"),
	}
	sidecars := []*lab.Container{mesh.Pod("bench/client").Container("outrigger-proxy"), mesh.Pod("bench/server").Container("outrigger-proxy")}
	for _, s := range sides {
		// The first requests are on their way to warm.
		if err := s.round(ctx, requests/4, class, nil); err != nil {
			return err
		}
		s.times, s.elapsed, s.cpu = nil, 0, 0
	}
	for range rounds {
		for _, s := range sides {
			if err := s.round(ctx, requests, class, sidecars); err != nil {
				return err
			}
		}
	}
	fmt.Printf("one request at a time over one connection, %d requests each\n", requests*rounds)
	for _, s := range sides {
		fmt.Printf("  %-22s p50 %8v  p99 %8v  CPU of the sidecars %6v a request\n", s.name,
			s.percentile(50), s.percentile(99), (s.cpu / time.Duration(len(s.times))).Round(time.Microsecond))
	}
	fmt.Printf("  added                  p50 %8v  p99 %8v\n", sides[1].percentile(50)-sides[0].percentile(50), sides[1].percentile(99)-sides[0].percentile(99))
	return nil
}

func newSide(name string, client *lab.Pod, url string) *side {
	return &side{name: name, url: url, client: &http.Client{
		Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: client.Dial},
	}}
}

// round asks so many times, one after the other.
func (s *side) round(ctx context.Context, requests int, class string, sidecars []*lab.Container) error {
	before, err := cpuOf(class, sidecars)
	if err != nil {
		return err
	}
	for range requests {
		begin := time.Now()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
		if err != nil {
			return err
		}
		response, err := s.client.Do(request)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, response.Body)
		if err = errors.Join(err, response.Body.Close()); err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s", s.url, response.Status)
		}
		s.times = append(s.times, time.Since(begin))
	}
	after, err := cpuOf(class, sidecars)
	s.cpu += after - before
	return err
}

func (s *side) percentile(p int) time.Duration {
	slices.Sort(s.times)
	return s.times[len(s.times)*p/100].Round(time.Microsecond)
}

// cpuOf returns what the processes of sidecars have used of the processors. In a lab a
// proxy's program is named as its class.
func cpuOf(class string, sidecars []*lab.Container) (time.Duration, error) {
	var total time.Duration
	for _, sidecar := range sidecars {
		for _, program := range []string{class, "outrigger-agent"} {
			pids, err := sidecar.PIDs(program)
			if err != nil {
				return 0, err
			}
			for _, pid := range pids {
				used, err := cpuOfOne(pid)
				if err != nil {
					return 0, err
				}
				total += used
			}
		}
	}
	return total, nil
}

// cpuOfOne reads user and system time, which proc(5) gives in hundredths of a second
// as the fields 14 and 15, counted from the process's name in brackets.
func cpuOfOne(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}
