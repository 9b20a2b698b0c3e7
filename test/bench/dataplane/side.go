package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/test/lab"
)

// side is one of the paths from a client to a server that are compared.
type side struct {
	name string
	// host is where the client calls the server, and target whether with the ports of the
	// pod and not of the service. If port is not 0 it is the only one.
	client *lab.Pod
	host   string
	target bool
	port   int
	// sidecars are those of the client and the server, or none.
	sidecars []*sidecar

	conns    []exchanger
	samples  samples
	usage    []Usage
	failures []string
	counting counting
}

func (s *side) address(p protocol) string {
	number := ports[p].service
	if s.target {
		number = ports[p].target
	}
	if s.port != 0 {
		number = s.port
	}
	return fmt.Sprintf("%s:%d", s.host, number)
}

// timing says how long a path is measured.
type timing struct {
	rounds int
	// each is the length of a round, and warm that of the unmeasured first one.
	each, warm time.Duration
	// after is how long CPU time is counted after a round: Envoy passes records to the agent
	// once a second.
	after time.Duration
}

// compare measures all sides with the load, in alternating rounds, so that other work of the
// machine disturbs all alike. A side that fails is left out of further rounds.
func compare(ctx context.Context, sides []*side, l load, t timing) error {
	defer func() {
		for _, s := range sides {
			s.disconnect()
		}
	}()
	for _, s := range sides {
		s.samples, s.usage, s.failures, s.counting = samples{}, make([]Usage, len(s.sidecars)), nil, counting{}
		s.do(ctx, func() error { return s.connect(ctx, l, t.warm) })
	}
	for range t.rounds {
		for _, s := range sides {
			s.do(ctx, func() error { return s.round(ctx, l, t) })
		}
	}
	for _, s := range sides {
		s.do(ctx, s.remember)
		if len(s.failures) > 0 {
			s.usage = nil
		}
	}
	return ctx.Err()
}

// do calls the function, unless the side has failed.
func (s *side) do(ctx context.Context, f func() error) {
	if len(s.failures) > 0 || ctx.Err() != nil {
		return
	}
	if err := f(); err != nil {
		s.failures = append(s.failures, err.Error())
	}
}

// failure says why the side has failed, if it has.
func (s *side) failure() string { return strings.Join(s.failures, "; ") }

// connect opens the connections, and uses them for some time.
func (s *side) connect(ctx context.Context, l load, warm time.Duration) error {
	for range l.connections {
		conn, err := open(ctx, s.client, s.address(l.protocol), l.protocol)
		if err != nil {
			return err
		}
		s.conns = append(s.conns, conn)
	}
	_, err := send(ctx, s.conns, 0, warm)
	return err
}

func (s *side) disconnect() {
	for _, conn := range s.conns {
		conn.close()
	}
	s.conns = nil
}

func (s *side) round(ctx context.Context, l load, t timing) error {
	if err := s.count(); err != nil {
		return err
	}
	measured, err := send(ctx, s.conns, l.rate, t.each)
	s.samples.add(measured)
	s.counting.until = time.AfterFunc(t.after, func() { s.counting.done <- s.account(1) })
	return err
}

// counting is the CPU time that is being counted.
type counting struct {
	all []processes
	// until ends it, and done then gets the error.
	until *time.Timer
	done  chan error
}

// count begins to count CPU time, or goes on if the former round is still counted.
func (s *side) count() error {
	c := &s.counting
	if c.until != nil && c.until.Stop() {
		return nil
	}
	if err := s.counted(); err != nil {
		return err
	}
	*c = counting{done: make(chan error, 1)}
	for _, sidecar := range s.sidecars {
		p, err := sidecar.processes()
		if err != nil {
			return err
		}
		c.all = append(c.all, p)
	}
	return s.account(-1)
}

// counted waits until the CPU time of the last round is counted.
func (s *side) counted() error {
	if s.counting.until == nil {
		return nil
	}
	s.counting.until = nil
	return <-s.counting.done
}

// account adds the CPU times that the processes have used, or subtracts them.
func (s *side) account(sign time.Duration) error {
	for i := range s.counting.all {
		proxy, agent, err := s.counting.all[i].cpu()
		if err != nil {
			return err
		}
		s.usage[i].ProxyCPU += sign * proxy
		s.usage[i].AgentCPU += sign * agent
	}
	return nil
}

// remember keeps the memory of the sidecars, and divides their CPU time by the requests.
func (s *side) remember() error {
	if err := s.counted(); err != nil {
		return err
	}
	for i, sidecar := range s.sidecars {
		u := &s.usage[i]
		var err error
		if u.Proxy, u.Agent, err = sidecar.memory(); err != nil {
			return err
		}
		n := time.Duration(max(s.samples.sent(), 1))
		u.ProxyCPU /= n
		u.AgentCPU /= n
	}
	return nil
}
