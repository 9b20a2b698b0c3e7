// Command hop measures the latency that the mesh adds to a request: one application calls
// another through both sidecars, and the same without a mesh. Both run alternately in one
// lab, so that noise affects both alike.
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
	"sync"
	"time"

	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/internal/lab"
	"github.com/outrigger-mesh/outrigger/internal/localmesh"
)

const manifests = `
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec: {sidecar: {sidecarClass: %s, concurrency: %d}, traffic: {enablePermissiveTrafficPolicyMode: true}, observability: {accessLog: %q}}
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
	requests := flag.Int("n", 2000, "requests per round")
	rounds := flag.Int("rounds", 5, "rounds of each kind")
	class := flag.String("class", "envoy", "the sidecars' class")
	threads := flag.Int("threads", 1, "worker threads of each sidecar")
	logs := flag.String("access-log", "all", "the sidecars' access logs: none, errors, a share such as 0.1, or all")
	clients := flag.Int("clients", 1, "number of concurrent connections")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *class, *logs, *threads, *clients, *requests, *rounds)
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

// side is one of the two paths that are compared.
type side struct {
	name string
	// clients have a connection each.
	clients []*http.Client
	url     string
	times   []time.Duration
	elapsed time.Duration
	// cpu is the CPU time of the sidecars.
	cpu time.Duration
}

// errNoProxy is returned if the proxy is not installed on this machine.
var errNoProxy = errors.New("the proxy is not installed")

func run(ctx context.Context, class, logs string, threads, clients, requests, rounds int) (err error) {
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
		Dir: filepath.Join(dir, "mesh"), Manifests: map[string]string{"bench.yaml": fmt.Sprintf(manifests, class, threads, logs)}, Programs: programs,
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
		newSide("without a mesh", clients, mesh.Pod("plain/client"), "http://"+net.JoinHostPort(mesh.Pod("plain/server").Addresses()[0].String(), "8080")),
		newSide("through both sidecars", clients, mesh.Pod("bench/client"), "http://server.bench"),
	}
	sidecars := []*lab.Container{mesh.Pod("bench/client").Container("outrigger-proxy"), mesh.Pod("bench/server").Container("outrigger-proxy")}
	for _, s := range sides {
		// Warm up.
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
	fmt.Printf("one request at a time over each of %d connections, %d requests on each path, %d threads per sidecar\n", clients, requests*rounds, threads)
	for _, s := range sides {
		fmt.Printf("  %-22s p50 %8v  p99 %8v  %6.0f requests/s  CPU of the sidecars per request %6v\n", s.name,
			s.percentile(50), s.percentile(99), float64(len(s.times))/s.elapsed.Seconds(), (s.cpu / time.Duration(len(s.times))).Round(time.Microsecond))
	}
	fmt.Printf("  added                  p50 %8v  p99 %8v\n", sides[1].percentile(50)-sides[0].percentile(50), sides[1].percentile(99)-sides[0].percentile(99))
	return nil
}

func newSide(name string, clients int, client *lab.Pod, url string) *side {
	s := &side{name: name, url: url}
	for range clients {
		s.clients = append(s.clients, &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: client.Dial}})
	}
	return s
}

// round sends the requests, divided among the clients, each one request at a time.
func (s *side) round(ctx context.Context, requests int, class string, sidecars []*lab.Container) error {
	before, err := cpuOf(class, sidecars)
	if err != nil {
		return err
	}
	begin := time.Now()
	times, errs := make([][]time.Duration, len(s.clients)), make([]error, len(s.clients))
	var group sync.WaitGroup
	for i, client := range s.clients {
		group.Go(func() { times[i], errs[i] = s.ask(ctx, client, requests/len(s.clients)) })
	}
	group.Wait()
	s.elapsed += time.Since(begin)
	after, err := cpuOf(class, sidecars)
	s.cpu += after - before
	s.times = append(s.times, slices.Concat(times...)...)
	return errors.Join(append(errs, err)...)
}

// ask sends the requests and returns the duration of each.
func (s *side) ask(ctx context.Context, client *http.Client, requests int) ([]time.Duration, error) {
	times := make([]time.Duration, 0, requests)
	for range requests {
		begin := time.Now()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
		if err != nil {
			return nil, err
		}
		response, err := client.Do(request)
		if err != nil {
			return nil, err
		}
		_, err = io.Copy(io.Discard, response.Body)
		if err = errors.Join(err, response.Body.Close()); err != nil {
			return nil, err
		}
		if response.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("%s answers %s", s.url, response.Status)
		}
		times = append(times, time.Since(begin))
	}
	return times, nil
}

func (s *side) percentile(p int) time.Duration {
	slices.Sort(s.times)
	return s.times[len(s.times)*p/100].Round(time.Microsecond)
}

// cpuOf returns the CPU time of the sidecars' processes. In a lab a proxy's program has the
// name of its class.
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

// cpuOfOne returns the user and system time of a process: fields 14 and 15 of its stat file
// in hundredths of a second (proc(5)). Fields are counted after the name in parentheses,
// which may contain blanks.
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
