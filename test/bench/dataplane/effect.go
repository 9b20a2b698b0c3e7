package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// Effect is how long it takes from the writing of a policy until requests are answered by it,
// with the same class at both ends. Allowed is until the first one is let through, and Refused,
// when the policy is removed, until the first one is refused.
type Effect struct {
	Class               string
	Allowed, AllowedMax time.Duration
	Refused, RefusedMax time.Duration
	Rounds              int
}

// effectQuiet is how long nothing changes before a policy does. The controller collects changes
// that come in quick succession.
const effectQuiet = time.Second

// effects measures each class.
func (b *bench) effects(ctx context.Context, rounds int, keep func([]Effect)) error {
	b.say("time to effect")
	o := meshOptions{mode: byPolicy, class: b.classes[0]}
	for _, class := range b.classes {
		o.servers = append(o.servers, &member{namespace: "bench", name: "server-" + class, class: class})
		o.clients = append(o.clients, &member{namespace: "bench", name: "client-" + class, class: class})
	}
	return b.withMesh(ctx, &o, func(mesh *localmesh.Mesh) error {
		var rows []Effect
		for i, class := range b.classes {
			path := pathOf(mesh, class, o.clients[i], o.servers[i])
			var allowed, refused []time.Duration
			for range rounds {
				for _, change := range []struct {
					times *[]time.Duration
					allow bool
					make  func() error
				}{
					{&allowed, true, func() error { return mesh.Apply(ctx, "effect.yaml", allow(o.clients[i], o.servers[i])) }},
					{&refused, false, func() error { return mesh.Delete(ctx, "effect.yaml") }},
				} {
					took, err := takesEffect(ctx, path, change.allow, change.make)
					if err != nil {
						return err
					}
					*change.times = append(*change.times, took)
				}
			}
			row := Effect{Class: class, Rounds: rounds}
			row.Allowed, row.AllowedMax = middle(allowed)
			row.Refused, row.RefusedMax = middle(refused)
			rows = append(rows, row)
		}
		keep(rows)
		return nil
	})
}

// middle returns the median and the longest time.
func middle(times []time.Duration) (median, longest time.Duration) {
	slices.Sort(times)
	return times[len(times)/2], times[len(times)-1]
}

// takesEffect makes a change, and returns how long it takes until requests are answered, or are
// not any more.
func takesEffect(ctx context.Context, s *side, allowed bool, change func() error) (time.Duration, error) {
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(effectQuiet):
	}
	conn, err := open(ctx, s.client, s.address(http1), http1)
	if err != nil {
		return 0, err
	}
	defer conn.close()
	if err := conn.exchange(ctx); (err == nil) == allowed {
		return 0, fmt.Errorf("%s: before the policy changes, a request is allowed: %t (%w)", s.name, allowed, err)
	}
	changed := make(chan error, 1)
	begun := time.Now()
	go func() { changed <- change() }()
	for {
		if err = conn.exchange(ctx); (err == nil) == allowed {
			return time.Since(begun), <-changed
		}
		switch {
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case time.Since(begun) > 30*time.Second:
			return 0, fmt.Errorf("%s: a policy has no effect, a request is allowed: %t (%w)", s.name, !allowed, err)
		}
		time.Sleep(time.Millisecond)
	}
}
