package xds

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// message is a response of either protocol. A full SotW response removes the resources
// that it lacks.
type message struct {
	typeURL, nonce, version string
	contents, versions      map[string]string
	removed                 []string
	full                    bool
}

func decode(t testing.TB, sotw bool, r *response) message {
	t.Helper()
	m := message{contents: map[string]string{}, versions: map[string]string{}}
	bytes := r.parts.Materialize()
	if sotw {
		var d discoveryv3.DiscoveryResponse
		if err := proto.Unmarshal(bytes, &d); err != nil {
			t.Fatal(err)
		}
		m.typeURL, m.nonce, m.version = d.TypeUrl, d.Nonce, d.VersionInfo
		m.full = d.TypeUrl == clusters || d.TypeUrl == listeners
		for word := range strings.FieldsSeq(sotwText(&d)) {
			if name, content, ok := strings.Cut(word, "="); ok {
				m.contents[name], m.versions[name] = content, "?"
			}
		}
		return m
	}
	var d discoveryv3.DeltaDiscoveryResponse
	if err := proto.Unmarshal(bytes, &d); err != nil {
		t.Fatal(err)
	}
	m.typeURL, m.nonce, m.removed = d.TypeUrl, d.Nonce, d.RemovedResources
	for _, resource := range d.Resources {
		m.contents[resource.Name], m.versions[resource.Name] = contentOf(resource.Resource.Value), resource.Version
	}
	return m
}

// walker is a proxy that randomly does what a proxy may do, and checks what it is sent.
type walker struct {
	t      *testing.T
	random *rand.Rand
	core   *core
	server *Server
	sotw   bool
	stream *stream
	// slow is set if it may take too long on this stream. Then it gets the next View before it has
	// answered, and perhaps a resource again that it has.
	slow bool

	// has and versions are the contents and versions that it runs.
	has, versions map[string]map[string]string
	asked         map[string]map[string]bool
	accepted      map[string]string
	nonces        map[string]string
	// unanswered are the unacknowledged responses, at most one of each type.
	unanswered map[string]message
	// refused are contents that were rejected alone on this stream and not replaced since.
	refused map[string]string
	// uncertain are resources that were rejected together with others.
	uncertain map[string]bool
	target    state
}

var walkTypes = []string{clusters, endpoints, listeners, routes}

func newWalker(t *testing.T, seed uint64, sotw bool) *walker {
	w := &walker{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), core: newCore(t), sotw: sotw,
		has: map[string]map[string]string{}, versions: map[string]map[string]string{}, target: state{},
	}
	for _, typeURL := range walkTypes {
		w.has[typeURL], w.versions[typeURL] = map[string]string{}, map[string]string{}
	}
	w.core.set("p", w.target)
	h := w.core.serve(t, forever)
	w.server = h.server
	w.connect()
	return w
}

// connect opens a stream with the current View.
func (w *walker) connect() {
	w.stream = newStream(w.server, w.sotw, driver.Peer{ProxyUID: "p", Identity: proxyOf("p").Identity}, time.Now())
	w.stream.conn, w.slow = w.core.connection(), w.random.IntN(3) == 0
	for t := range w.stream.all {
		// So few resources need several responses only if these are small.
		t.limits = limits{bytes: 20 + w.random.IntN(100), asking: 1 + w.random.IntN(4), few: w.random.IntN(8)}
	}
	view, _ := w.core.View("p")
	w.stream.retarget(view, w.core.translate(view), time.Time{})
	w.uncertain = map[string]bool{}
	w.unanswered, w.refused, w.nonces, w.asked = map[string]message{}, map[string]string{}, map[string]string{}, map[string]map[string]bool{}
	for _, typeURL := range walkTypes {
		w.asked[typeURL] = map[string]bool{}
	}
	if w.accepted == nil {
		w.accepted = map[string]string{}
	}
	for _, typeURL := range walkTypes {
		// Resources applied from rejected responses have no known version.
		maps.DeleteFunc(w.has[typeURL], func(name, _ string) bool { return !w.sotw && w.versions[typeURL][name] == "" })
		names := w.wanted(typeURL)
		if typeURL == endpoints || typeURL == routes {
			unwanted := func(name, _ string) bool { return !slices.Contains(names, name) }
			maps.DeleteFunc(w.has[typeURL], unwanted)
			maps.DeleteFunc(w.versions[typeURL], unwanted)
			if len(names) == 0 {
				continue
			}
		}
		r := request{typeURL: typeURL, initial: maps.Clone(w.versions[typeURL]), subscribe: names, names: names, version: w.accepted[typeURL]}
		for _, name := range names {
			w.asked[typeURL][name] = true
		}
		w.send(r)
	}
}

// wanted returns the names to which the proxy subscribes: the endpoints of its clusters
// and the routes of its listeners.
func (w *walker) wanted(typeURL string) []string {
	names := map[string]bool{}
	switch typeURL {
	case endpoints:
		for name, content := range w.has[clusters] {
			names[name+"@"+content] = true
		}
	case routes:
		for name := range w.has[listeners] {
			names["r-"+name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func (w *walker) send(r request) {
	w.t.Helper()
	if err := w.stream.receive(r, time.Now()); err != nil {
		w.t.Fatal(err)
	}
	w.pump()
}

func (w *walker) pump() {
	w.t.Helper()
	if _, err := w.stream.sendPending(func(r *response) error {
		w.sent(decode(w.t, w.sotw, r))
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	// Replaced versions may be tried again.
	for key, content := range w.refused {
		for i, typeURL := range []string{clusters, endpoints, listeners, routes} {
			if name, ok := strings.CutPrefix(key, typeURL); ok {
				if r, ok := w.stream.config[i+1].Get(name); !ok || contentOf(r.Body()) != content {
					delete(w.refused, key)
				}
			}
		}
	}
}

// sent checks a response.
func (w *walker) sent(m message) {
	w.t.Helper()
	if _, ok := w.unanswered[m.typeURL]; ok {
		w.t.Fatalf("%s is sent again before the answer", shortType(m.typeURL))
	}
	w.unanswered[m.typeURL] = m
	if len(m.contents) == 1 && !w.sotw {
		for name, content := range m.contents {
			if w.refused[m.typeURL+name] == content {
				w.t.Fatalf("rejected %s %s is sent again", shortType(m.typeURL), name)
			}
		}
	}
	if w.sotw {
		return
	}
	for name, version := range m.versions {
		if !w.asks(m.typeURL, name) {
			w.t.Fatalf("%s %s is sent, but not asked for", shortType(m.typeURL), name)
		}
		if w.versions[m.typeURL][name] == version && !w.uncertain[m.typeURL+name] && !w.slow {
			w.t.Fatalf("unchanged %s %s is sent again", shortType(m.typeURL), name)
		}
	}
	if m.typeURL == listeners && len(w.stream.refusals) == 0 && len(m.contents) > 0 {
		for name := range w.stream.config[1].All() {
			content, ok := w.has[clusters][name]
			if !ok || w.has[endpoints][name+"@"+content] == "" {
				w.t.Fatalf("listeners are sent before cluster %s=%s and its endpoints were accepted", name, content)
			}
		}
	}
}

// asks reports whether the proxy subscribes to the resource.
func (w *walker) asks(typeURL, name string) bool {
	return typeURL == clusters || typeURL == listeners || w.asked[typeURL][name]
}

func bad(content string) bool { return strings.HasPrefix(content, "bad") }

// answer accepts or rejects the response of the type.
func (w *walker) answer(typeURL string) {
	m, ok := w.unanswered[typeURL]
	if !ok {
		return
	}
	delete(w.unanswered, typeURL)
	w.nonces[typeURL] = m.nonce
	var wrong []string
	for name, content := range m.contents {
		if bad(content) {
			wrong = append(wrong, name)
		}
	}
	r := request{typeURL: typeURL, nonce: m.nonce}
	if len(wrong) > 0 {
		r.refusal = &status.Status{Message: "?"}
		if w.random.IntN(2) == 0 {
			r.refusal.Message = "Error: " + strings.Join(wrong, ", ")
		}
		if !w.sotw && len(m.contents) == 1 {
			w.refused[typeURL+wrong[0]] = m.contents[wrong[0]]
		}
		for name := range m.contents {
			w.uncertain[typeURL+name] = w.uncertain[typeURL+name] || len(m.contents) > 1
		}
		if w.random.IntN(2) == 0 {
			// Good resources are applied, but their versions are not kept.
			for name, content := range m.contents {
				if !bad(content) && w.asks(typeURL, name) {
					w.has[typeURL][name] = content
					delete(w.versions[typeURL], name)
				}
			}
			delete(w.accepted, typeURL)
		}
	} else {
		w.accepted[typeURL] = m.version
		if m.full {
			w.has[typeURL] = map[string]string{}
		}
		for name, content := range m.contents {
			if !w.asks(typeURL, name) {
				continue
			}
			w.has[typeURL][name], w.versions[typeURL][name] = content, m.versions[name]
			delete(w.refused, typeURL+name)
			delete(w.uncertain, typeURL+name)
		}
		for _, name := range m.removed {
			delete(w.has[typeURL], name)
			delete(w.versions[typeURL], name)
		}
	}
	r.version, r.names = w.accepted[typeURL], slices.Sorted(maps.Keys(w.asked[typeURL]))
	w.send(r)
}

// follow subscribes to the names now needed, and unsubscribes from the others.
func (w *walker) follow(typeURL string) {
	wanted := w.wanted(typeURL)
	r := request{typeURL: typeURL, nonce: w.nonces[typeURL], names: wanted, version: w.accepted[typeURL]}
	if !w.sotw {
		r.nonce = ""
	}
	for _, name := range wanted {
		if !w.asked[typeURL][name] {
			r.subscribe = append(r.subscribe, name)
		}
	}
	for name := range w.asked[typeURL] {
		if !slices.Contains(wanted, name) {
			r.unsubscribe = append(r.unsubscribe, name)
			delete(w.has[typeURL], name)
			delete(w.versions[typeURL], name)
			delete(w.refused, typeURL+name)
		}
	}
	if len(r.subscribe)+len(r.unsubscribe) == 0 {
		return
	}
	w.asked[typeURL] = map[string]bool{}
	for _, name := range wanted {
		w.asked[typeURL][name] = true
	}
	w.send(r)
}

// change changes the configuration. Each cluster has its endpoints, and each listener
// its routes.
func (w *walker) change() {
	for range 1 + w.random.IntN(4) {
		name := fmt.Sprintf("n%d:", w.random.IntN(8))
		content := fmt.Sprint(w.random.IntN(3))
		if w.random.IntN(6) == 0 {
			content = "bad" + content
		}
		gone := w.random.IntN(4) == 0
		switch w.random.IntN(4) {
		case 0:
			for former := range w.target[clusters] {
				if former == name {
					w.target = w.target.with(endpoints, name+"@"+w.target[clusters][name], "")
				}
			}
			if gone {
				w.target = w.target.with(clusters, name, "")
			} else {
				w.target = w.target.with(clusters, name, content).with(endpoints, name+"@"+content, "0")
			}
		case 1:
			if c, ok := w.target[clusters][name]; ok {
				w.target = w.target.with(endpoints, name+"@"+c, content)
			}
		case 2:
			if gone {
				w.target = w.target.with(listeners, name, "").with(routes, "r-"+name, "")
			} else {
				w.target = w.target.with(listeners, name, content).with(routes, "r-"+name, "0")
			}
		case 3:
			if _, ok := w.target[listeners][name]; ok {
				w.target = w.target.with(routes, "r-"+name, content)
			}
		}
	}
	w.core.set("p", w.target)
	w.stream.notify(false, time.Now())
	w.pump()
}

// settle answers and subscribes until nothing more is sent.
func (w *walker) settle() {
	w.t.Helper()
	for range 1000 {
		busy := len(w.unanswered) > 0
		for _, typeURL := range walkTypes {
			w.answer(typeURL)
		}
		w.follow(endpoints)
		w.follow(routes)
		if !busy && len(w.unanswered) == 0 {
			return
		}
	}
	w.t.Fatal("it does not end")
}

// check compares what the proxy runs with what it should run.
func (w *walker) check() {
	w.t.Helper()
	for _, typeURL := range walkTypes {
		want := maps.Clone(w.target[typeURL])
		if typeURL == endpoints || typeURL == routes {
			maps.DeleteFunc(want, func(name, _ string) bool { return !slices.Contains(w.wanted(typeURL), name) })
		}
		got := maps.Clone(w.has[typeURL])
		for name, content := range want {
			if !bad(content) {
				continue
			}
			// Any good version may have stayed in place of a rejected one.
			delete(want, name)
			if bad(got[name]) {
				w.t.Fatalf("%s %s runs %s", shortType(typeURL), name, got[name])
			}
			delete(got, name)
		}
		if typeURL == endpoints || typeURL == routes {
			// Their removals may be suppressed, and resources that refer to them rejected.
			maps.DeleteFunc(got, func(name, _ string) bool { return w.target[typeURL][name] == "" })
		}
		if diff := cmp.Diff(want, got, cmp.Transformer("empty", func(m map[string]string) map[string]string {
			if len(m) == 0 {
				return nil
			}
			return m
		})); diff != "" {
			w.t.Fatalf("%s (-want +got):\n%s", shortType(typeURL), diff)
		}
	}
	if !w.stream.finished() {
		w.t.Fatal("the stream is not finished, but sends nothing more")
	}
}

// TestRandomWalk has proxies act in random order. In the end each must run its
// configuration.
func TestRandomWalk(t *testing.T) {
	for _, sotw := range []bool{false, true} {
		for seed := range uint64(30) {
			t.Run(fmt.Sprintf("sotw=%t/%d", sotw, seed), func(t *testing.T) {
				w := newWalker(t, seed, sotw)
				for range 60 {
					for range w.random.IntN(12) {
						switch w.random.IntN(8) {
						case 0, 1, 2:
							w.stream.timedOut = w.slow && w.random.IntN(2) == 0
							w.change()
						case 3:
							w.follow(walkTypes[1+2*w.random.IntN(2)])
						case 4:
							if w.random.IntN(8) == 0 {
								w.connect()
							}
						default:
							w.answer(walkTypes[w.random.IntN(len(walkTypes))])
						}
					}
					w.settle()
					w.check()
				}
			})
		}
	}
	if *unsent != (exception{}) || *awaited != (exception{awaited: true}) || *sending != (exception{inFlight: true}) {
		t.Error("an exception that all clients share has been changed")
	}
}
