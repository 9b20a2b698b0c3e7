package main

import (
	"context"
	"fmt"
	"time"

	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// Latency is what one load has measured on one path.
type Latency struct {
	// Client and Server are the classes of the sidecars. They are empty without a mesh.
	Client, Server string
	Protocol       protocol
	Connections    int
	// Rate is the planned rate in requests a second, 0 for as many as possible.
	Rate int
	// Failure says why there is no result.
	Failure string `json:",omitempty"`
	// Requests is how many were answered. The latencies contain those that were not sent
	// because others took too long, with the time that they have waited.
	Requests  int
	PerSecond float64
	P50, P99  time.Duration
	// Sidecars are the usage of the client's and of the server's sidecar: CPU time for each
	// request, and memory with the connections open.
	Sidecars []Usage
}

// pairs measures all pairs of classes beside a pair of pods without a mesh.
func (b *bench) pairs(ctx context.Context, loads []load, t timing, keep func([]Latency)) error {
	plainClient, plainServer := &member{namespace: "plain", name: "client"}, &member{namespace: "plain", name: "server"}
	o := meshOptions{mode: permissive, class: b.classes[0], clients: []*member{plainClient}, servers: []*member{plainServer}}
	// Each pair has its own pods: the CPU time of a pod is still counted when the next pair is
	// measured.
	var pairs []pair
	for _, client := range b.classes {
		for _, server := range b.classes {
			name := client + "-to-" + server
			p := pair{
				client: &member{namespace: "bench", name: "from-" + name, class: client},
				server: &member{namespace: "bench", name: name, class: server},
			}
			pairs = append(pairs, p)
			o.clients, o.servers = append(o.clients, p.client), append(o.servers, p.server)
		}
	}
	return b.withMesh(ctx, &o, func(mesh *localmesh.Mesh) error {
		sides := []*side{pathOf(mesh, "without a mesh", plainClient, plainServer)}
		for i := range pairs {
			s := pathOf(mesh, pairs[i].server.name, pairs[i].client, pairs[i].server)
			for _, p := range protocols {
				if err := awaitAnswer(ctx, s, p); err != nil {
					return err
				}
			}
			sides = append(sides, s)
		}
		for _, l := range loads {
			b.say("%s, %d connections, %s", l.protocol, l.connections, rateText(l.rate))
			if err := compare(ctx, sides, l, t); err != nil {
				return err
			}
			var rows []Latency
			for _, s := range sides {
				row := s.result(l)
				if len(s.sidecars) > 0 {
					row.Client, row.Server = s.sidecars[0].class, s.sidecars[1].class
				}
				rows = append(rows, row)
			}
			keep(rows)
		}
		return nil
	})
}

func (s *side) result(l load) Latency {
	return Latency{
		Protocol: l.protocol, Connections: l.connections, Rate: l.rate, Failure: s.failure(),
		Requests: s.samples.sent(), PerSecond: s.samples.perSecond(),
		P50: s.samples.percentile(50), P99: s.samples.percentile(99), Sidecars: s.usage,
	}
}

func rateText(rate int) string {
	if rate == 0 {
		return "as many as possible"
	}
	return fmt.Sprintf("%d a second", rate)
}
