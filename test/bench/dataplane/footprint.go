package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/test/bench/process"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// Footprint is the memory of an idle sidecar in a mesh of some size.
type Footprint struct {
	Class        string
	Mode         mode
	Services     int
	Proxy, Agent process.Memory
}

// callable is how many services a client may call by policy, and how many it has called on
// demand.
const callable = 20

// endpoints is how many each service has.
const endpoints = 10

// town returns services whose pods are not started.
func town(m mode, services int, clients []*member) string {
	var text strings.Builder
	text.WriteString("---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: town\n  labels: {openservicemesh.io/monitored-by: osm}\n  annotations: {openservicemesh.io/sidecar-injection: enabled}\n")
	for i := range services {
		fmt.Fprintf(&text, `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: s%[1]d, namespace: town}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: s%[1]d}}
  template:
    metadata: {labels: {app: s%[1]d}}
    spec: {serviceAccountName: s%[1]d, containers: [{name: app, image: in-the-bench}]}
---
apiVersion: v1
kind: Service
metadata: {name: s%[1]d, namespace: town}
spec: {selector: {app: s%[1]d}, ports: [{name: http, port: 80, targetPort: 8080}]}
`, i, endpoints)
		if m != byPolicy || i >= callable {
			continue
		}
		for _, client := range clients {
			text.WriteString(allow(client, &member{namespace: "town", name: fmt.Sprintf("s%d", i)}))
		}
	}
	return text.String()
}

// footprints measures the memory of a sidecar of each class.
func (b *bench) footprints(ctx context.Context, m mode, services int, settle time.Duration, keep func([]Footprint)) error {
	o := meshOptions{mode: m, class: b.classes[0], starts: func(pod *corev1.Pod) bool { return pod.Namespace != "town" }}
	for _, class := range b.classes {
		o.clients = append(o.clients, &member{namespace: "bench", name: "client-" + class, class: class, onDemand: m == onDemand})
	}
	o.more = town(m, services, o.clients)
	b.say("memory with %d services, %s", services, m)
	return b.withMesh(ctx, &o, func(mesh *localmesh.Mesh) error {
		if err := awaitCurrent(ctx, mesh, len(o.clients)); err != nil {
			return err
		}
		if m == onDemand {
			if err := callAll(ctx, mesh, o.clients, min(callable, services)); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(settle):
		}
		var rows []Footprint
		for _, client := range o.clients {
			row := Footprint{Class: client.class, Mode: m, Services: services}
			var err error
			if row.Proxy, row.Agent, err = sidecarOf(mesh.Pod(client.path()), client.class).memory(); err != nil {
				return err
			}
			rows = append(rows, row)
		}
		keep(rows)
		return nil
	})
}

// callAll has each client call that many services. Their pods are not started, so each answer is
// that of the client's sidecar, which therefore knows the service.
func callAll(ctx context.Context, mesh *localmesh.Mesh, clients []*member, services int) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, client := range clients {
		pod := mesh.Pod(client.path())
		for i := range services {
			group.Go(func() error {
				transport := &http.Transport{DialContext: pod.Dial, DisableKeepAlives: true}
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://s%d.town/", i), nil)
				if err != nil {
					return err
				}
				response, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Do(request)
				if err != nil {
					return fmt.Errorf("calling a service from %s: %w", client.path(), err)
				}
				defer response.Body.Close()
				if response.StatusCode != http.StatusServiceUnavailable {
					return fmt.Errorf("%s, called from %s, answers %s", response.Request.URL, client.path(), response.Status)
				}
				return nil
			})
		}
	}
	return group.Wait()
}

// awaitCurrent waits until so many proxies run their configuration.
func awaitCurrent(ctx context.Context, mesh *localmesh.Mesh, n int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		proxies, err := mesh.Proxies(ctx)
		current := slices.DeleteFunc(proxies, func(p localmesh.Proxy) bool { return p.State != "Current" })
		if err == nil && len(current) >= n {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("only %d of %d proxies have their configuration: %w", len(current), n, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Start is how long a pod takes from its start until its sidecar is ready, with the init
// container and the first certificate. The lab has no images to fetch.
type Start struct {
	Class       string
	Median, Max time.Duration
	Rounds      int
}

// starts measures pods of each class.
func (b *bench) starts(ctx context.Context, rounds int, keep func([]Start)) error {
	b.say("starting pods")
	o := meshOptions{mode: permissive, class: b.classes[0]}
	return b.withMesh(ctx, &o, func(mesh *localmesh.Mesh) error {
		var rows []Start
		for _, class := range b.classes {
			var times []time.Duration
			for i := range rounds {
				m := &member{namespace: "bench", name: fmt.Sprintf("start-%s-%d", class, i), class: class}
				begun := time.Now()
				if err := mesh.Apply(ctx, "start.yaml", m.manifest(false)); err != nil {
					return err
				}
				if err := mesh.Pod(m.path()).Ready(ctx); err != nil {
					return err
				}
				times = append(times, time.Since(begun))
				if err := mesh.Delete(ctx, "start.yaml"); err != nil {
					return err
				}
			}
			slices.Sort(times)
			rows = append(rows, Start{Class: class, Median: times[len(times)/2], Max: times[len(times)-1], Rounds: rounds})
		}
		keep(rows)
		return nil
	})
}

// Program is the size of a program in bytes.
type Program struct {
	Name string
	Size int64
}

func (b *bench) sizes() ([]Program, error) {
	files := map[string]string{"agent": b.programs.Agent}
	for _, class := range b.classes {
		files[class] = b.programs.Proxies[class]
	}
	var sizes []Program
	for name, file := range files {
		real, err := filepath.EvalSymlinks(file)
		if err != nil {
			return nil, err
		}
		info, err := os.Stat(real)
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, Program{name, info.Size()})
	}
	slices.SortFunc(sizes, func(a, b Program) int { return strings.Compare(a.Name, b.Name) })
	return sizes, nil
}
