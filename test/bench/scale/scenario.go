package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// errOmitted means that a scenario does not apply.
var errOmitted = errors.New("it does not apply")

// scenario measures one thing.
type scenario struct {
	name string
	run  func(*testMesh, context.Context, *Result) error
}

// scenarios in the order in which they are run. The first connects the proxies.
var scenarios = []scenario{
	{"connect", (*testMesh).connect},
	{"endpoint", (*testMesh).endpoint},
	{"scale", (*testMesh).scale},
	{"route", (*testMesh).route},
	{"split", (*testMesh).split},
	{"access", (*testMesh).access},
	{"roll", (*testMesh).rollPods},
	{"reconnect", (*testMesh).reconnect},
	{"restart", (*testMesh).restart},
}

func scenarioNames() []string {
	var names []string
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

func (m *testMesh) run(ctx context.Context, name string, r *Result) error {
	i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
	if err := scenarios[i].run(m, ctx, r); err != nil {
		return err
	}
	memory, err := m.controller.memory()
	r.Memory = memory
	return err
}

// subject is the service that changes. It is not the first, whose pods have proxies as those
// of all others.
func (m *testMesh) subject() int { return m.city.services / 2 }

// seers is how many proxies see the service that changes.
func (m *testMesh) seers() int {
	if m.mode == "policy" && !m.other.is() {
		return len(callersOf(m.subject(), m.city.services))
	}
	return m.city.services
}

// connect connects all proxies at once.
func (m *testMesh) connect(_ context.Context, r *Result) error {
	r.Signed = median(m.signed)
	r.Started = m.loaded
	return m.all(r, Order{Do: doConnect, Seconds: 600})
}

func (m *testMesh) reconnect(_ context.Context, r *Result) error {
	return m.all(r, Order{Do: doReconnect, Seconds: 600})
}

// all measures an order after which all proxies are served.
func (m *testMesh) all(r *Result, o Order) error {
	before, err := m.controller.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	report, err := m.fleet.do(o)
	if err != nil {
		return err
	}
	took := time.Since(began)
	after, err := m.controller.cpu()
	r.CPU, r.Median, r.Max = after-before, median(report.Took), took
	r.received(report)
	return err
}

// restart ends the controller and starts it again.
func (m *testMesh) restart(ctx context.Context, r *Result) error {
	if _, err := m.fleet.do(Order{Do: doCount}); err != nil {
		return err
	}
	if err := m.controller.stop(); err != nil {
		return err
	}
	began := time.Now()
	started, err := m.controller.start(ctx)
	if err != nil {
		return err
	}
	report, err := m.fleet.do(Order{Do: doServed, Seconds: 300})
	if err != nil {
		return err
	}
	r.Started, r.Max, r.Median = started, time.Since(began), median(report.Took)
	r.received(report)
	r.CPU, err = m.controller.cpu()
	return err
}

// change makes a change several times. write makes it, and returns what a proxy must
// acknowledge to have it.
func (m *testMesh) change(ctx context.Context, r *Result, seers int, write func(round int) (func() error, [][]byte, error)) error {
	var times, cpus []time.Duration
	for round := range m.rounds + 1 {
		do, markers, err := write(round)
		if err != nil {
			return err
		}
		if err := m.quiet(ctx); err != nil {
			return err
		}
		took, cpu, report, err := m.measureOne(seers, markers, do)
		if err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		if round == 0 {
			// The first one makes what later ones find.
			continue
		}
		times, cpus = append(times, took), append(cpus, cpu)
		r.received(report)
	}
	r.Rounds = m.rounds
	r.Median, r.Max, r.CPU = median(times), slices.Max(times), median(cpus)
	return nil
}

// measureOne returns how long it takes from the API server's answer until the last proxy has
// acknowledged the change, and the controller's CPU time for it.
func (m *testMesh) measureOne(seers int, markers [][]byte, do func() error) (time.Duration, time.Duration, *Report, error) {
	if _, err := m.fleet.do(Order{Do: doExpect, Markers: markers, Count: seers}); err != nil {
		return 0, 0, nil, err
	}
	before, err := m.controller.cpu()
	if err != nil {
		return 0, 0, nil, err
	}
	if err := do(); err != nil {
		return 0, 0, nil, err
	}
	written := time.Now()
	report, err := m.fleet.do(Order{Do: doAwait})
	if err != nil {
		return 0, 0, nil, fmt.Errorf("%w: %d of %d", err, len(report.At), seers)
	}
	after, err := m.controller.cpu()
	return report.At[len(report.At)-1].Sub(written), after - before, report, err
}

// quiet waits until the controller has nothing left to do, and long enough that the next
// change is one after a quiet time.
func (m *testMesh) quiet(ctx context.Context) error {
	const step = 600 * time.Millisecond
	for range 120 {
		before, err := m.controller.cpu()
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(step):
		}
		after, err := m.controller.cpu()
		if err != nil || after-before < step/50 {
			return err
		}
	}
	return errors.New("the controller does not become idle")
}

// endpoint replaces one endpoint of a service: one pod gets ready, and another one is no more.
func (m *testMesh) endpoint(ctx context.Context, r *Result) error {
	service := m.subject()
	for pod := endpoints; pod < endpoints+2; pod++ {
		if err := m.city.createPod(ctx, service, pod); err != nil {
			return err
		}
	}
	err := m.change(ctx, r, m.seers(), func(round int) (func() error, [][]byte, error) {
		pod, other := endpoints+round%2, endpoints+(round+1)%2
		list := append(firstPods(endpoints), pod)
		return func() error { return m.city.setEndpoints(ctx, service, list, other) }, [][]byte{addressMarker(addressOf(service, pod))}, nil
	})
	if err != nil {
		return err
	}
	for pod := endpoints; pod < endpoints+2; pod++ {
		if err := m.city.deletePod(ctx, service, pod); err != nil {
			return err
		}
	}
	return m.city.setEndpoints(ctx, service, firstPods(endpoints))
}

// scale gives a service 100 endpoints in place of 10.
func (m *testMesh) scale(ctx context.Context, r *Result) error {
	const many = 100
	service := m.subject() + 1
	for pod := endpoints; pod < many; pod++ {
		if err := m.city.createPod(ctx, service, pod); err != nil {
			return err
		}
	}
	return m.change(ctx, r, m.seers(), func(round int) (func() error, [][]byte, error) {
		if err := m.city.setEndpoints(ctx, service, firstPods(endpoints)); err != nil {
			return nil, nil, err
		}
		return func() error { return m.city.setEndpoints(ctx, service, firstPods(many)) }, [][]byte{addressMarker(addressOf(service, many-1))}, nil
	})
}

// route adds an HTTPRoute.
func (m *testMesh) route(ctx context.Context, r *Result) error {
	service := m.subject() + 2
	return m.change(ctx, r, m.seers(), func(round int) (func() error, [][]byte, error) {
		text := route(service, fmt.Sprint("route-", round), 50)
		if round > 0 {
			if err := m.city.remove(ctx, text); err != nil {
				return nil, nil, err
			}
		}
		return func() error { return m.city.apply(ctx, text) }, [][]byte{fmt.Append(nil, "route-", round)}, nil
	})
}

// split changes the weights of an HTTPRoute.
func (m *testMesh) split(ctx context.Context, r *Result) error {
	service := m.subject() + 3
	return m.change(ctx, r, m.seers(), func(round int) (func() error, [][]byte, error) {
		return func() error { return m.city.apply(ctx, route(service, fmt.Sprint("split-", round), 10+round)) }, [][]byte{fmt.Append(nil, "split-", round)}, nil
	})
}

// access lets one more identity call a service.
func (m *testMesh) access(ctx context.Context, r *Result) error {
	if m.mode != "policy" || m.other.is() || m.city.services <= 2*callees+2 {
		return errOmitted
	}
	service := m.subject()
	caller := (service + 1) % m.city.services
	text := target(service, "-more", caller)
	return m.change(ctx, r, 2, func(round int) (func() error, [][]byte, error) {
		if round > 0 {
			if err := m.city.remove(ctx, text); err != nil {
				return nil, nil, err
			}
		}
		// The caller gets the endpoints, and the service's own proxy the caller's name.
		markers := [][]byte{addressMarker(addressOf(service, 0)), fmt.Appendf(nil, "/ns/%s/sa/%s", namespaceOf(caller), serviceName(caller))}
		return func() error { return m.city.apply(ctx, text) }, markers, nil
	})
}

// rollPods replaces 100 pods a minute, each of another service.
func (m *testMesh) rollPods(ctx context.Context, r *Result) error {
	const every = time.Minute / 100
	if err := m.quiet(ctx); err != nil {
		return err
	}
	before, err := m.controller.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	next := time.NewTicker(every)
	defer next.Stop()
	var times []time.Duration
	for round := 0; time.Since(began) < m.roll; round++ {
		service := (m.subject() + 5 + round) % m.city.services
		pod := endpoints + 5
		took, _, report, err := m.measureOne(m.seers(), [][]byte{addressMarker(addressOf(service, pod))}, func() error {
			return errors.Join(
				m.city.createPod(ctx, service, pod),
				m.city.setEndpoints(ctx, service, append([]int{0, 1, 2, 3, 4, 5, 6, 7, 8}, pod)),
				m.city.deletePod(ctx, service, endpoints-1))
		})
		if err != nil {
			return err
		}
		r.received(report)
		times = append(times, took)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-next.C:
		}
	}
	after, err := m.controller.cpu()
	r.Rounds = len(times)
	r.Median, r.Max, r.CPU = median(times), slices.Max(times), (after-before)/time.Duration(len(times))
	return err
}

func median(times []time.Duration) time.Duration {
	if len(times) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(times))
	return s[len(s)/2]
}
