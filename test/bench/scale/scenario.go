package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// errOmitted means that a scenario does not apply.
var errOmitted = errors.New("it does not apply")

// scenario measures one thing.
type scenario struct {
	name string
	run  func(*testMesh, context.Context, *Result) error
}

const (
	// scenarioIdle is measured before there are services; it is none of the others.
	scenarioIdle      = "idle"
	scenarioConnect   = "connect"
	scenarioMemory    = "memory"
	scenarioEndpoint  = "endpoint"
	scenarioScale     = "scale"
	scenarioRoute     = "route"
	scenarioSplit     = "split"
	scenarioAccess    = "access"
	scenarioRoll      = "roll"
	scenarioStall     = "stall"
	scenarioReconnect = "reconnect"
	scenarioRestart   = "restart"

	scenarioCertificates = "certificates"
	scenarioAtOnce       = "certificates-at-once"
)

// scenarios in the order in which they are run. The first connects the proxies.
var scenarios = []scenario{
	{scenarioConnect, (*testMesh).connect},
	{scenarioMemory, (*testMesh).perProxy},
	{scenarioEndpoint, (*testMesh).endpoint},
	{scenarioScale, (*testMesh).scale},
	{scenarioRoute, (*testMesh).route},
	{scenarioSplit, (*testMesh).split},
	{scenarioAccess, (*testMesh).access},
	{scenarioRoll, (*testMesh).rollPods},
	{scenarioStall, (*testMesh).stall},
	{scenarioReconnect, (*testMesh).reconnect},
	{scenarioRestart, (*testMesh).restart},
	{scenarioCertificates, (*testMesh).certificates},
	{scenarioAtOnce, (*testMesh).certificatesAtOnce},
}

func scenarioNames() []string {
	names := []string{scenarioIdle}
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

// longest is how many seconds all proxies may take to be served.
const longest = 600

// run measures a scenario, and restores the objects that it has changed.
func (m *testMesh) run(ctx context.Context, s scenario, r *Result) (err error) {
	defer func() {
		for _, undo := range slices.Backward(m.undo) {
			err = errors.Join(err, undo(ctx))
		}
		m.undo = nil
	}()
	if err := s.run(m, ctx, r); err != nil {
		return err
	}
	r.Memory, err = m.plane.memory()
	return err
}

// afterwards restores objects when the scenario has ended.
func (m *testMesh) afterwards(undo func(context.Context) error) { m.undo = append(m.undo, undo) }

// subject is the service that changes, about in the middle of those whose proxies are
// connected.
func (m *testMesh) subject() int { return min(m.city.services, m.proxies) / 2 }

// seers are the proxies that see a service.
func (m *testMesh) seers(service int) []int {
	if m.mode != modePermissive {
		return slices.DeleteFunc(callersOf(service, m.city.services), func(proxy int) bool { return proxy >= m.proxies })
	}
	return firstPods(m.proxies)
}

// address returns the bytes by which a configuration names the address of a pod. In a message
// of Envoy's it is the field address of a SocketAddress, and in a file a string that the port
// follows.
func (m *testMesh) address(service, pod int) [][]byte {
	address := addressOf(service, pod)
	if m.protocol == protocolFiles {
		return [][]byte{[]byte(`"` + address + `:`)}
	}
	return [][]byte{protowire.AppendString(protowire.AppendTag(nil, 2, protowire.BytesType), address)}
}

// connect connects all proxies at once.
func (m *testMesh) connect(ctx context.Context, r *Result) error {
	r.Signed = median(m.signed)
	r.Started = m.loaded
	if err := m.plane.quiet(ctx); err != nil {
		return err
	}
	return m.all(r, Order{Do: doConnect, Seconds: longest})
}

func (m *testMesh) reconnect(ctx context.Context, r *Result) error {
	if err := m.plane.quiet(ctx); err != nil {
		return err
	}
	return m.all(r, Order{Do: doReconnect, Seconds: longest})
}

// perProxy measures the memory of a connected proxy: what becomes free when every other proxy
// leaves. What the proxies share stays, because the others use it.
func (m *testMesh) perProxy(ctx context.Context, r *Result) error {
	// Longer than a control plane remembers a proxy that has left.
	const forgotten = 20 * time.Second
	if err := m.plane.quiet(ctx); err != nil {
		return err
	}
	with, err := m.plane.live()
	if err != nil {
		return err
	}
	var leave []int
	for proxy := 1; proxy < m.proxies; proxy += 2 {
		leave = append(leave, proxy)
	}
	if _, err := m.fleet.do(Order{Do: doLeave, Clients: leave}); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(forgotten):
	}
	without, err := m.plane.live()
	if err != nil {
		return err
	}
	r.Held = (with - without) / int64(len(leave))
	_, err = m.fleet.do(Order{Do: doConnect, Clients: leave, Seconds: longest})
	return err
}

// all measures an order after which all proxies are served.
func (m *testMesh) all(r *Result, o Order) error {
	// What was sent before does not count.
	if _, err := m.fleet.do(Order{Do: doCount}); err != nil {
		return err
	}
	before, err := m.plane.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	report, err := m.fleet.do(o)
	if err != nil {
		return err
	}
	r.All = time.Since(began)
	after, err := m.plane.cpu()
	r.CPU, r.Median, r.Max = after-before, median(report.Took), slices.Max(report.Took)
	r.received(report)
	return err
}

// restart ends the controller and starts it again.
func (m *testMesh) restart(ctx context.Context, r *Result) error {
	if err := m.plane.quiet(ctx); err != nil {
		return err
	}
	if _, err := m.fleet.do(Order{Do: doCount}); err != nil {
		return err
	}
	if err := m.plane.stop(); err != nil {
		return err
	}
	began := time.Now()
	started, err := m.plane.start(ctx)
	if err != nil {
		return err
	}
	report, err := m.fleet.do(Order{Do: doServed, Seconds: longest})
	if err != nil {
		return err
	}
	r.Started, r.All, r.Median, r.Max = started, time.Since(began), median(report.Took), slices.Max(report.Took)
	r.received(report)
	r.CPU, err = m.plane.cpu()
	return err
}

// change makes a change several times. write makes it, and returns what a proxy must
// acknowledge to have it.
func (m *testMesh) change(ctx context.Context, r *Result, seers []int, write func(round int) (func() error, [][]byte, error)) error {
	var times, cpus []time.Duration
	for round := range m.rounds + 1 {
		do, markers, err := write(round)
		if err != nil {
			return err
		}
		if err := m.plane.quiet(ctx); err != nil {
			return err
		}
		took, cpu, report, err := m.measureOne(len(seers), markers, do)
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
	before, err := m.plane.cpu()
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
	after, err := m.plane.cpu()
	return report.At[len(report.At)-1].Sub(written), after - before, report, err
}

// endpoint replaces one endpoint of a service: one pod gets ready, and another one is no more.
func (m *testMesh) endpoint(ctx context.Context, r *Result) error {
	service := m.subject()
	if err := m.morePods(ctx, service, endpoints+2); err != nil {
		return err
	}
	return m.change(ctx, r, m.seers(service), func(round int) (func() error, [][]byte, error) {
		pod, other := endpoints+round%2, endpoints+(round+1)%2
		list := append(firstPods(endpoints), pod)
		return func() error { return m.city.setEndpoints(ctx, service, list, other) }, m.address(service, pod), nil
	})
}

// morePods creates the pods up to a number. They are not ready, as the EndpointSlice says.
func (m *testMesh) morePods(ctx context.Context, service, pods int) error {
	m.afterwards(func(ctx context.Context) error {
		var err error
		for pod := endpoints; pod < pods; pod++ {
			err = errors.Join(err, client.IgnoreNotFound(m.city.deletePod(ctx, service, pod)))
		}
		return errors.Join(err, m.city.setEndpoints(ctx, service, firstPods(endpoints)))
	})
	for pod := endpoints; pod < pods; pod++ {
		if err := m.city.createPod(ctx, service, pod); err != nil {
			return err
		}
	}
	return m.scaleTo(ctx, service, endpoints, pods)
}

// scaleTo makes the first of the pods of a service ready, and the others not.
func (m *testMesh) scaleTo(ctx context.Context, service, ready, pods int) error {
	all := firstPods(pods)
	return m.city.setEndpoints(ctx, service, all[:ready], all[ready:]...)
}

// many is how many endpoints a service gets in place of 10.
const many = 100

// scale gives a service many endpoints.
func (m *testMesh) scale(ctx context.Context, r *Result) error {
	service := m.subject() + 1
	if err := m.morePods(ctx, service, many); err != nil {
		return err
	}
	return m.change(ctx, r, m.seers(service), func(int) (func() error, [][]byte, error) {
		if err := m.scaleTo(ctx, service, endpoints, many); err != nil {
			return nil, nil, err
		}
		return func() error { return m.scaleTo(ctx, service, many, many) }, m.address(service, many-1), nil
	})
}

// route adds an HTTPRoute.
func (m *testMesh) route(ctx context.Context, r *Result) error {
	service := m.subject() + 2
	m.afterwards(func(ctx context.Context) error { return m.city.remove(ctx, route(service, "", 50)) })
	return m.change(ctx, r, m.seers(service), func(round int) (func() error, [][]byte, error) {
		header := fmt.Sprintf("route-%d-", round)
		text := route(service, header, 50)
		if round > 0 {
			if err := m.city.remove(ctx, text); err != nil {
				return nil, nil, err
			}
		}
		return func() error { return m.city.apply(ctx, text) }, [][]byte{[]byte(header)}, nil
	})
}

// split changes the weights of an HTTPRoute.
func (m *testMesh) split(ctx context.Context, r *Result) error {
	service := m.subject() + 3
	m.afterwards(func(ctx context.Context) error { return m.city.remove(ctx, route(service, "", 50)) })
	return m.change(ctx, r, m.seers(service), func(round int) (func() error, [][]byte, error) {
		header := fmt.Sprintf("split-%d-", round)
		return func() error { return m.city.apply(ctx, route(service, header, 10+round%80)) }, [][]byte{[]byte(header)}, nil
	})
}

// access lets one more identity call a service.
func (m *testMesh) access(ctx context.Context, r *Result) error {
	if m.mode != modePolicy || m.proxies <= 2*maxCallees+2 {
		return errOmitted
	}
	service := m.subject()
	caller := (service + 1) % m.city.services
	before, text := "", target(service, "-more", caller)
	if m.plane.name == istiod {
		known := calleesOf(caller, m.city.services)
		before = visibility(caller, known...)
		text = authorization(service, "-more", caller) + "---" + visibility(caller, append(known, service)...)
	}
	remove := func(ctx context.Context) error {
		if m.plane.name == istiod {
			return errors.Join(m.city.remove(ctx, authorization(service, "-more", caller)), m.city.apply(ctx, before))
		}
		return m.city.remove(ctx, text)
	}
	m.afterwards(remove)
	// The caller gets the endpoints, and the service's own proxy the caller's name.
	markers := append(m.address(service, 0), fmt.Appendf(nil, "/ns/%s/sa/%s", namespaceOf(caller), serviceName(caller)))
	return m.change(ctx, r, []int{caller, service}, func(round int) (func() error, [][]byte, error) {
		if round > 0 {
			if err := remove(ctx); err != nil {
				return nil, nil, err
			}
		}
		return func() error { return m.city.apply(ctx, text) }, markers, nil
	})
}

// rollPods replaces 100 pods a minute, each of another service.
func (m *testMesh) rollPods(ctx context.Context, r *Result) error {
	const every = time.Minute / 100
	// The last endpoint is replaced by another pod, and that one by the last again.
	replaced := []int{endpoints - 1, endpoints + 5}
	if err := m.plane.quiet(ctx); err != nil {
		return err
	}
	before, err := m.plane.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	next := time.NewTicker(every)
	defer next.Stop()
	var times []time.Duration
	for round := 0; time.Since(began) < m.roll; round++ {
		service, turn := (m.subject()+5+round)%m.proxies, round/m.proxies%2
		gone, pod := replaced[turn], replaced[1-turn]
		replace := func(ctx context.Context, gone, pod int) error {
			return errors.Join(
				m.city.createPod(ctx, service, pod),
				m.city.setEndpoints(ctx, service, append(firstPods(endpoints-1), pod)),
				m.city.deletePod(ctx, service, gone))
		}
		took, _, report, err := m.measureOne(len(m.seers(service)), m.address(service, pod), func() error { return replace(ctx, gone, pod) })
		m.afterwards(func(ctx context.Context) error { return replace(ctx, pod, gone) })
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
	after, err := m.plane.cpu()
	r.Rounds = len(times)
	r.Median, r.Max, r.CPU = median(times), slices.Max(times), (after-before)/time.Duration(len(times))
	return err
}

// stall lets some of the proxies that see a service stop to read from their connections, and
// makes changes as scale does, of which the others must get each.
func (m *testMesh) stall(ctx context.Context, r *Result) error {
	const most = 10
	service := m.subject() + 1
	seers := m.seers(service)
	stalled := seers[:min(most, len(seers)/2)]
	if len(stalled) == 0 {
		return errOmitted
	}
	if err := m.morePods(ctx, service, many+1); err != nil {
		return err
	}
	if err := m.plane.quiet(ctx); err != nil {
		return err
	}
	before, err := m.plane.live()
	if err != nil {
		return err
	}
	if _, err := m.fleet.do(Order{Do: doStall, Clients: stalled}); err != nil {
		return err
	}
	m.afterwards(func(context.Context) error {
		_, err := m.fleet.do(Order{Do: doResume, Clients: stalled})
		return err
	})
	err = m.change(ctx, r, seers[len(stalled):], func(int) (func() error, [][]byte, error) {
		if err := m.scaleTo(ctx, service, endpoints, many+1); err != nil {
			return nil, nil, err
		}
		return func() error { return m.scaleTo(ctx, service, many, many+1) }, m.address(service, many-1), nil
	})
	if err != nil {
		return err
	}
	after, err := m.plane.live()
	if err != nil {
		return err
	}
	r.Held = (after - before) / int64(len(stalled))
	if _, err := m.fleet.do(Order{Do: doExpect, Markers: m.address(service, many), Count: len(seers)}); err != nil {
		return err
	}
	if err := m.scaleTo(ctx, service, many+1, many+1); err != nil {
		return err
	}
	if err := m.plane.quiet(ctx); err != nil {
		return err
	}
	began := time.Now()
	if _, err := m.fleet.do(Order{Do: doResume, Clients: stalled}); err != nil {
		return err
	}
	report, err := m.fleet.do(Order{Do: doAwait})
	if err != nil {
		return fmt.Errorf("after the proxies read again: %w", err)
	}
	r.CaughtUp = report.At[len(report.At)-1].Sub(began)
	r.Broken += report.Broken
	return nil
}

func median(times []time.Duration) time.Duration {
	if len(times) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(times))
	return s[len(s)/2]
}
