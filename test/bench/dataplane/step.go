package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// Step is what one class uses with something switched off. Each step has switched off what
// those before it have, except for those with another access log and for those of the
// hand-written configuration, which are one series.
type Step struct {
	Class, Name string
	Latency
}

// step is a pair of a client and a server.
type step struct {
	name      string
	mode      mode
	accessLog string
	// noMetrics: the sidecar counts nothing.
	noMetrics bool
	// handWritten: the proxy has the minimal configuration, with or without TLS and
	// redirection.
	handWritten, noTLS, noRedirection bool
	// twoFrontends: the server's first frontend accepts connections, and hands them to a second
	// one, which handles the requests.
	twoFrontends bool
}

// The names of steps to which others are compared.
const (
	noMesh      = "no mesh"
	noLogs      = "access log none"
	handWritten = "hand-written, with TLS and redirection"
	handedOver  = "hand-written, with a second frontend"
)

var steps = []step{
	{name: "by policy, access log all", mode: byPolicy, accessLog: "all"},
	{name: "access log errors", mode: byPolicy, accessLog: "errors"},
	{name: noLogs, mode: byPolicy, accessLog: "none"},
	{name: "no metrics", mode: byPolicy, accessLog: "none", noMetrics: true},
	{name: "no access rules (permissive)", mode: permissive, accessLog: "none", noMetrics: true},
	{name: "no TLS", mode: plaintext, accessLog: "none", noMetrics: true},
	{name: handedOver, mode: permissive, handWritten: true, twoFrontends: true},
	{name: handWritten, mode: permissive, handWritten: true},
	{name: "hand-written, no TLS", mode: permissive, handWritten: true, noTLS: true},
	{name: "hand-written, no TLS, no redirection", mode: permissive, handWritten: true, noTLS: true, noRedirection: true},
}

// stepsOf returns the steps of a class. Pipy counts in its own scripts, which nothing
// switches off. Only HAProxy needs two frontends.
func stepsOf(class string) []step {
	all := slices.Clone(steps)
	if class != "haproxy" {
		all = slices.DeleteFunc(all, func(s step) bool { return s.twoFrontends })
	}
	if class != "pipy" {
		return all
	}
	for i := range all {
		all[i].noMetrics = false
	}
	return slices.DeleteFunc(all, func(s step) bool { return s.name == "no metrics" })
}

// pair are the pods of a step.
type pair struct {
	step
	client, server *member
}

// decompose measures the steps of a class, beside a pair of pods without a mesh.
func (b *bench) decompose(ctx context.Context, class string, loads []load, t timing, keep func([]Step)) error {
	var pairs []pair
	for i, s := range stepsOf(class) {
		pairs = append(pairs, pair{
			step:   s,
			client: &member{namespace: "bench", name: fmt.Sprintf("client-%d", i), class: class, accessLog: s.accessLog},
			// Not among the addresses that are given to other pods.
			server: &member{namespace: "bench", name: fmt.Sprintf("server-%d", i), class: class, accessLog: s.accessLog, address: fmt.Sprintf("198.18.254.%d", 10+i)},
		})
	}
	plain := pair{step: step{name: noMesh, mode: permissive}, client: &member{namespace: "plain", name: "client"}, server: &member{namespace: "plain", name: "server"}}
	return b.withModes(ctx, class, append(slices.Clone(pairs), plain), []mode{byPolicy, permissive, plaintext}, nil, func(meshes map[mode]*localmesh.Mesh) error {
		sides := []*side{pathOf(meshes[permissive], plain.name, plain.client, plain.server)}
		for i := range pairs {
			s := pairs[i].side(meshes[pairs[i].mode])
			if err := awaitAnswer(ctx, s, http1); err != nil {
				return err
			}
			sides = append(sides, s)
		}
		if b.inspect != nil {
			if err := b.inspect(ctx, meshes, pairs); err != nil {
				return err
			}
		}
		for _, l := range loads {
			b.say("%s: %s, %d connections, %s", class, l.protocol, l.connections, rateText(l.rate))
			if err := compare(ctx, sides, l, t); err != nil {
				return err
			}
			var rows []Step
			for _, s := range sides {
				rows = append(rows, Step{class, s.name, s.result(l)})
			}
			keep(rows)
		}
		return nil
	})
}

// withModes starts a mesh for each mode, one inside the other, with the pairs of that mode.
func (b *bench) withModes(ctx context.Context, class string, pairs []pair, modes []mode, running map[mode]*localmesh.Mesh, f func(map[mode]*localmesh.Mesh) error) error {
	if len(modes) == 0 {
		return f(running)
	}
	o := meshOptions{mode: modes[0], class: class, change: func(pod *corev1.Pod) error { return b.change(pod, pairs) }}
	for i := range pairs {
		if pairs[i].mode != modes[0] {
			continue
		}
		o.clients, o.servers = append(o.clients, pairs[i].client), append(o.servers, pairs[i].server)
		if modes[0] == byPolicy {
			o.more += allow(pairs[i].client, pairs[i].server)
		}
	}
	return b.withMesh(ctx, &o, func(mesh *localmesh.Mesh) error {
		if running == nil {
			running = make(map[mode]*localmesh.Mesh)
		}
		running[modes[0]] = mesh
		return b.withModes(ctx, class, pairs, modes[1:], running, f)
	})
}

func (p *pair) side(mesh *localmesh.Mesh) *side {
	s := pathOf(mesh, p.name, p.client, p.server)
	switch {
	case p.noRedirection:
		s.host, s.port = "127.0.0.1", driver.OutboundPort
	case p.handWritten:
		s.host, s.target = p.server.address, true
	}
	return s
}

// change changes the pods of steps that no setting of the mesh makes.
func (b *bench) change(pod *corev1.Pod, pairs []pair) error {
	i := slices.IndexFunc(pairs, func(p pair) bool {
		return p.client.path() == pod.Namespace+"/"+pod.Name || p.server.path() == pod.Namespace+"/"+pod.Name
	})
	if i < 0 || pairs[i].client.class == "" {
		return nil
	}
	p := &pairs[i]
	var errs []error
	if p.handWritten {
		m := p.minimal(pod.Name == p.server.name)
		errs = append(errs, changeSpec(pod, func(s *agentspec.Spec) error { return m.spec(p.client.class, b.threads, s) }))
	}
	if p.noRedirection {
		errs = append(errs, disableRedirection(pod))
	}
	if p.noMetrics {
		errs = append(errs, changeSpec(pod, func(s *agentspec.Spec) error { return disableMetrics(p.client.class, s) }))
	}
	return errors.Join(errs...)
}

func (p *pair) minimal(server bool) *minimal {
	if server {
		return &minimal{Listen: driver.InboundPort, Next: "127.0.0.1", NextPort: ports[http1].target, AcceptTLS: !p.noTLS, TwoFrontends: p.twoFrontends}
	}
	m := &minimal{Listen: driver.OutboundPort, Next: p.server.address, NextPort: ports[http1].target}
	if p.noRedirection {
		m.NextPort = driver.InboundPort
	}
	if !p.noTLS {
		m.ServerName = p.server.name + "." + p.server.namespace + ".sa.cluster.local"
	}
	return m
}

// disableMetrics makes the proxy write no records for the agent, as in the pods of agents
// that read none.
func disableMetrics(class string, s *agentspec.Spec) error {
	switch class {
	case "haproxy":
		s.Records = nil
		return nil
	case "envoy":
		const on, off = "outrigger.records: 100,", "outrigger.records: 0,"
		for i := range s.Files {
			if strings.Contains(s.Files[i].Content, on) {
				s.Files[i].Content = strings.Replace(s.Files[i].Content, on, off, 1)
				return nil
			}
		}
		return errors.New("the bootstrap of Envoy does not say " + on)
	}
	return fmt.Errorf("nothing switches the metrics of class %s off", class)
}
