package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/lab"
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
		s.samples, s.usage, s.failures = samples{}, make([]Usage, len(s.sidecars)), nil
		s.do(ctx, func() error { return s.connect(ctx, l, t.warm) })
	}
	for range t.rounds {
		for _, s := range sides {
			s.do(ctx, func() error { return s.round(ctx, l, t.each) })
		}
	}
	for _, s := range sides {
		s.do(ctx, s.remember)
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

func (s *side) round(ctx context.Context, l load, d time.Duration) error {
	all := make([]processes, len(s.sidecars))
	for i, sidecar := range s.sidecars {
		var err error
		if all[i], err = sidecar.processes(); err != nil {
			return err
		}
	}
	if err := s.account(all, -1); err != nil {
		return err
	}
	measured, err := send(ctx, s.conns, l.rate, d)
	s.samples.add(measured)
	return errors.Join(err, s.account(all, 1))
}

// account adds the CPU times that the processes have used, or subtracts them.
func (s *side) account(all []processes, sign time.Duration) error {
	for i := range all {
		proxy, agent, err := all[i].cpu()
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
	for i, sidecar := range s.sidecars {
		u := &s.usage[i]
		var err error
		if u.Proxy, u.Agent, err = sidecar.memory(); err != nil {
			return err
		}
		n := time.Duration(max(len(s.samples.latencies), 1))
		u.ProxyCPU /= n
		u.AgentCPU /= n
	}
	return nil
}
