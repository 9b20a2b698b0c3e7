package access

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/test/lab"
)

var (
	firstSeed = flag.Uint64("seed", 1, "the seed of the first round")
	count     = flag.Int("number", 0, "how many decisions all proxies make, at least")
	only      = flag.String("classes", "envoy,haproxy,pipy", "the classes of proxies, with commas between them")
	reduces   = flag.Bool("reduce", true, "whether to look for the smallest request and rules that show a difference")
	each      = flag.Int("each", 40, "how many requests each port gets in a round")
)

func TestMain(m *testing.M) {
	lab.Enter()
	os.Exit(m.Run())
}

// outcome is what became of a request at a proxy.
type outcome struct {
	answer
	// got is what the application received, nil if it received nothing or a connection.
	got *received
}

// reached reports whether the application got the request or the connection.
func (o outcome) reached() bool { return o.seen != "" }

// client sends requests to a proxy, over connections that it keeps.
type client struct {
	*proxy
	configs map[string]*tls.Config
	kept    map[string]*connection
	sent    int
}

func (c *client) close() {
	for _, conn := range c.kept {
		conn.Close()
	}
	clear(c.kept)
}

// ask sends the request. It repeats it once over a new connection if an old one was closed, or if
// the proxy did not reach the application.
func (c *client) ask(ctx context.Context, in *mesh.Inbound, r *request) outcome {
	c.sent++
	port, _ := in.PortOf(r.Port)
	key := fmt.Sprint(r.Port, r.Caller, r.Six, r.Version == "2", r.Version == "1.0")
	odd := r.odd(c.class, &port) != ""
	for again := false; ; again = true {
		conn, fresh := c.kept[key], false
		if conn == nil {
			fresh = true
			var err error
			conn, err = connect(ctx, func(ctx context.Context) (net.Conn, error) { return c.dial(ctx, r.Port, r.Six) }, c.configs[r.Caller], r.Version == "2" && port.Protocol.IsHTTP())
			if early := (tls.RecordHeaderError{}); errors.As(err, &early) && strings.HasPrefix(greeting, string(early.RecordHeader[:])) {
				// An application without TLS was reached with TLS.
				return outcome{answer: answer{status: 200, seen: "greeting"}}
			}
			if err != nil {
				return outcome{answer: answer{err: err}}
			}
		}
		delete(c.kept, key)
		var o outcome
		if port.Protocol.IsHTTP() {
			o.answer = conn.ask(r, odd)
		} else {
			o.answer = conn.greeted()
		}
		if conn.over || o.status == 0 || o.status != 200 && o.status != 403 {
			conn.Close()
		} else {
			c.kept[key] = conn
		}
		if o.status == 0 && !fresh || o.status >= 502 && !again {
			continue
		}
		if o.seen != "" && port.Protocol.IsHTTP() {
			got, ok := c.workshop.app.seen(o.seen)
			if !ok {
				o.err = errors.New("the application does not know the request")
			}
			o.got = &got
		}
		return o
	}
}

// judge returns what is wrong with the outcome, or "". The explanation says why a proxy may refuse a
// request that the model allows.
func judge(c *class, in *mesh.Inbound, r *request, o outcome) (fault, explanation string) {
	port, _ := in.PortOf(r.Port)
	if o.reached() {
		if d := may(in, r, o.got); !d.Allowed {
			return fmt.Sprintf("it reached the application, and the model says %s of what came: %v", d.Reason, o.got), ""
		}
		if why := claims(r, &port, o.got); why != "" {
			return why, ""
		}
		if callerNamed(r.Caller).refused {
			return "it reached the application without a handshake", ""
		}
		return "", ""
	}
	if why := r.odd(c, &port); why != "" {
		return "", why
	}
	d := must(in, r, c.forwarding)
	if d.Allowed {
		return fmt.Sprintf("it was refused with %v, and the model says %s", o.answer, d.Reason), ""
	}
	if o.status >= 500 {
		return fmt.Sprintf("it was refused with %v", o.answer), ""
	}
	return "", ""
}

// claims returns what is wrong with what the application is told about the caller, or "".
func claims(r *request, port *mesh.InboundPort, got *received) string {
	a := r.arrival(port)
	if got == nil || a.Security == mesh.OtherTLS {
		return ""
	}
	told := got.values("x-forwarded-client-cert")
	switch {
	case a.Peer == mesh.Identity{} && len(told) > 0, a.Peer != mesh.Identity{} && len(told) != 1:
	case len(told) == 1 && !strings.HasSuffix(told[0], "URI="+a.Peer.String()):
	default:
		return ""
	}
	return fmt.Sprintf("the application is told of the caller %q, of what came: %v", told, got)
}

// difference is an outcome that the model does not explain.
type difference struct {
	class   *class
	request request
	port    mesh.InboundPort
	mode    mesh.TLSMode
	others  mesh.Access
	fault   string
}

// tally counts what became of the requests of a class.
type tally struct {
	reached, refused, odd int
	took                  time.Duration
	explained             map[string]int
	// each, if set, is called for each request, by one goroutine at a time.
	each func(*request, outcome)
}

func newTally() *tally { return &tally{explained: make(map[string]int)} }

// round asks all proxies.
type round struct {
	seed     uint64
	in       *mesh.Inbound
	requests []request
}

func newRound(seed uint64, each int) round {
	g := newGenerator(seed)
	r := round{seed: seed, in: g.inbound()}
	mesh.Seal(r.in)
	ports := slices.Clone(r.in.Ports)
	ports = append(ports, mesh.InboundPort{Port: othersPort, Protocol: mesh.TCP, Access: r.in.Others})
	for i := range ports {
		n := each
		if !ports[i].Protocol.IsHTTP() {
			n = max(each/25, 5)
		}
		for range n {
			r.requests = append(r.requests, g.request(&ports[i]))
		}
	}
	return r
}

// workers is how many requests a proxy gets at a time.
const workers = 3

// run sends the requests through a proxy and returns the differences.
func (w *workshop) run(ctx context.Context, c *class, r round, t *tally) ([]difference, error) {
	if c.tokenless {
		r.in = withoutTokens(r.in)
	}
	p, err := w.start(ctx, c, r.in)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	var mu sync.Mutex
	var found []difference
	byPort := make(map[uint16][]request)
	for _, q := range r.requests {
		byPort[q.Port] = append(byPort[q.Port], q)
	}
	queue := make(chan []request, len(byPort))
	for _, number := range slices.Sorted(maps.Keys(byPort)) {
		queue <- byPort[number]
	}
	close(queue)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			client := &client{proxy: p, configs: w.configs, kept: make(map[string]*connection)}
			own := newTally()
			for list := range queue {
				for i := range list {
					o := client.ask(ctx, r.in, &list[i])
					if t.each != nil {
						mu.Lock()
						t.each(&list[i], o)
						mu.Unlock()
					}
					fault, explanation := judge(c, r.in, &list[i], o)
					switch {
					case fault != "":
						port, _ := r.in.PortOf(list[i].Port)
						mu.Lock()
						found = append(found, difference{c, list[i], port, r.in.TLS, r.in.Others, fault})
						mu.Unlock()
					case o.reached():
						own.reached++
					case explanation != "":
						own.odd++
						own.explained[explanation]++
					default:
						own.refused++
					}
				}
				client.close()
			}
			mu.Lock()
			defer mu.Unlock()
			t.reached, t.refused, t.odd = t.reached+own.reached, t.refused+own.refused, t.odd+own.odd
			for why, n := range own.explained {
				t.explained[why] += n
			}
		})
	}
	group.Wait()
	t.took += time.Since(began)
	found = append(found, w.unasked(c, r.in)...)
	return found, p.stop()
}

// unasked returns differences for requests that came to the application within others.
func (w *workshop) unasked(c *class, in *mesh.Inbound) []difference {
	var found []difference
	for _, got := range w.app.rest() {
		if got.values("x-smuggled") == nil {
			continue
		}
		caller := "plaintext"
		for i := range callers {
			if told := got.values("x-forwarded-client-cert"); len(told) == 1 && callers[i].peer != (mesh.Identity{}) && strings.HasSuffix(told[0], "URI="+callers[i].peer.String()) && callers[i].security == mesh.MeshTLS && !callers[i].refused {
				caller = callers[i].name
			}
		}
		q := request{Port: got.port, Caller: caller, Version: "1.1", Method: got.method, Target: got.target, Fields: got.fields}
		if d := may(in, &q, &got); !d.Allowed {
			port, _ := in.PortOf(got.port)
			found = append(found, difference{c, q, port, in.TLS, in.Others, fmt.Sprintf("it reached the application within another request, and the model says %s", d.Reason)})
		}
	}
	return found
}

// TestAccess compares the decisions of real proxies with those of the model.
func TestAccess(t *testing.T) {
	w := newWorkshop(t)
	tallies := make(map[string]*tally)
	total, began, last := 0, time.Now(), time.Now()
	for seed := *firstSeed; ; seed++ {
		r := newRound(seed, *each)
		for _, c := range classes {
			if w.programs[c.name] == "" || !strings.Contains(*only, c.name) {
				continue
			}
			if tallies[c.name] == nil {
				tallies[c.name] = newTally()
			}
			found, err := w.run(t.Context(), c, r, tallies[c.name])
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			total += len(r.requests)
			w.report(t, seed, found)
		}
		if total >= *count || t.Failed() {
			break
		}
		if time.Since(last) > 10*time.Second {
			last = time.Now()
			t.Logf("seed %d: %d decisions in %v, %.0f a second", seed, total, time.Since(began).Round(time.Second), float64(total)/time.Since(began).Seconds())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(tallies)) {
		s := tallies[name]
		n := s.reached + s.refused + s.odd
		t.Logf("%s: %d decisions, %d reached, %d refused, %d odd, %.0f a second", name, n, s.reached, s.refused, s.odd, float64(n)/s.took.Seconds())
		for _, why := range slices.Sorted(maps.Keys(s.explained)) {
			t.Logf("%s: %d explained: %s", name, s.explained[why], why)
		}
	}
	t.Logf("%d decisions in %v, %.0f a second", total, time.Since(began).Round(time.Second), float64(total)/time.Since(began).Seconds())
}

// mostReported is how many differences of a round are reduced and reported.
const mostReported = 5

// report reduces and reports differences, at first one of each kind of caller and answer.
func (w *workshop) report(t *testing.T, seed uint64, found []difference) {
	t.Helper()
	kinds := make(map[string]int)
	reported := make(map[string]bool)
	for _, d := range found {
		kind := d.kind() + d.request.Caller
		if kinds[kind]++; kinds[kind] > 1 || len(reported) >= mostReported {
			continue
		}
		small := d
		if *reduces {
			var err error
			if small, err = w.reduce(t.Context(), d); err != nil {
				t.Errorf("reducing a difference: %v", err)
			}
		}
		text := fmt.Sprintf("%s: %v\n%s\n%s", small.class.name, &small.request, small.fault, describe(small))
		if !reported[text] {
			t.Errorf("SEED=%d EACH=%d: %s", seed, *each, text)
		}
		reported[text] = true
	}
	if len(found) > 0 {
		t.Errorf("SEED=%d EACH=%d: %s: %d differences: %v", seed, *each, found[0].class.name, len(found), kinds)
	}
}
