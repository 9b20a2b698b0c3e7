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

// message is a response of either protocol. In that of the state of the world whole
// says that what it has not is gone.
type message struct {
	typeURL, nonce, version string
	contents, versions      map[string]string
	removed                 []string
	whole                   bool
}

func decode(t testing.TB, world bool, r *response) message {
	t.Helper()
	m := message{contents: map[string]string{}, versions: map[string]string{}}
	bytes := r.parts.Materialize()
	if world {
		var d discoveryv3.DiscoveryResponse
		if err := proto.Unmarshal(bytes, &d); err != nil {
			t.Fatal(err)
		}
		m.typeURL, m.nonce, m.version = d.TypeUrl, d.Nonce, d.VersionInfo
		m.whole = d.TypeUrl == clusters || d.TypeUrl == listeners
		for word := range strings.FieldsSeq(worldText(&d)) {
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

// walker is a proxy that does at random what a proxy may do, and looks whether what it
// is sent makes sense.
type walker struct {
	t      *testing.T
	random *rand.Rand
	core   *core
	server *Server
	world  bool
	stream *stream

	// has and versions are what it runs.
	has, versions map[string]map[string]string
	asked         map[string]map[string]bool
	accepted      map[string]string
	nonces        map[string]string
	// unanswered are responses, one of each type at most.
	unanswered map[string]message
	// refused are the contents that were refused alone on this stream and not followed
	// by others.
	refused map[string]string
	// unsure are the resources that were refused beside others.
	unsure map[string]bool
	target state
}

var walkTypes = []string{clusters, endpoints, listeners, routes}

func newWalker(t *testing.T, seed uint64, world bool) *walker {
	w := &walker{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), core: newCore(t), world: world,
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

// connect begins a stream with what there is.
func (w *walker) connect() {
	w.stream = newStream(w.server, w.world, driver.Peer{ProxyUID: "p", Identity: proxyOf("p").Identity}, "", time.Now())
	w.stream.conn = w.core.connection()
	view, _ := w.core.View("p")
	w.stream.retarget(view, w.core.translate(view), time.Time{})
	w.unsure = map[string]bool{}
	w.unanswered, w.refused, w.nonces, w.asked = map[string]message{}, map[string]string{}, map[string]string{}, map[string]map[string]bool{}
	for _, typeURL := range walkTypes {
		w.asked[typeURL] = map[string]bool{}
	}
	if w.accepted == nil {
		w.accepted = map[string]string{}
	}
	for _, typeURL := range walkTypes {
		// Nobody can know of what it took of responses that it refused.
		maps.DeleteFunc(w.has[typeURL], func(name, _ string) bool { return !w.world && w.versions[typeURL][name] == "" })
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
		w.say(r)
	}
}

// wanted returns the names that the proxy asks for: the endpoints of its clusters, and
// the routes of its listeners.
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

func (w *walker) say(r request) {
	w.t.Helper()
	if err := w.stream.receive(r, time.Now()); err != nil {
		w.t.Fatal(err)
	}
	w.pump()
}

func (w *walker) pump() {
	w.t.Helper()
	if _, err := w.stream.work(func(r *response) error {
		w.sent(decode(w.t, w.world, r))
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	// What was followed by others may be tried again.
	for key, content := range w.refused {
		for i, typeURL := range []string{clusters, endpoints, listeners, routes} {
			if name, ok := strings.CutPrefix(key, typeURL); ok {
				if r, ok := w.stream.config[i+1].Get(name); !ok || contentOf(r.Body) != content {
					delete(w.refused, key)
				}
			}
		}
	}
}

// sent looks at a response.
func (w *walker) sent(m message) {
	w.t.Helper()
	if _, ok := w.unanswered[m.typeURL]; ok {
		w.t.Fatalf("%s is sent again before it is answered", kindOf(m.typeURL))
	}
	w.unanswered[m.typeURL] = m
	if len(m.contents) == 1 && !w.world {
		for name, content := range m.contents {
			if w.refused[m.typeURL+name] == content {
				w.t.Fatalf("%s %s is sent again that was refused", kindOf(m.typeURL), name)
			}
		}
	}
	if w.world {
		return
	}
	for name, version := range m.versions {
		if w.versions[m.typeURL][name] == version && !w.unsure[m.typeURL+name] {
			w.t.Fatalf("%s %s is sent again that has not changed", kindOf(m.typeURL), name)
		}
	}
	if m.typeURL == listeners && len(w.stream.refusals) == 0 && len(m.contents) > 0 {
		for name := range w.stream.config[1].All() {
			content, ok := w.has[clusters][name]
			if !ok || w.has[endpoints][name+"@"+content] == "" {
				w.t.Fatalf("listeners are sent before cluster %s=%s and its endpoints were taken", name, content)
			}
		}
	}
}

// asks reports whether the proxy takes notice of the resource.
func (w *walker) asks(typeURL, name string) bool {
	return typeURL == clusters || typeURL == listeners || w.asked[typeURL][name]
}

func bad(content string) bool { return strings.HasPrefix(content, "bad") }

// answer takes or refuses the response of the type.
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
		if !w.world && len(m.contents) == 1 {
			w.refused[typeURL+wrong[0]] = m.contents[wrong[0]]
		}
		for name := range m.contents {
			w.unsure[typeURL+name] = w.unsure[typeURL+name] || len(m.contents) > 1
		}
		if w.random.IntN(2) == 0 {
			// What is good of it is taken, but not remembered.
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
		if m.whole {
			w.has[typeURL] = map[string]string{}
		}
		for name, content := range m.contents {
			if !w.asks(typeURL, name) {
				continue
			}
			w.has[typeURL][name], w.versions[typeURL][name] = content, m.versions[name]
			delete(w.refused, typeURL+name)
			delete(w.unsure, typeURL+name)
		}
		for _, name := range m.removed {
			delete(w.has[typeURL], name)
			delete(w.versions[typeURL], name)
		}
	}
	r.version, r.names = w.accepted[typeURL], slices.Sorted(maps.Keys(w.asked[typeURL]))
	w.say(r)
}

// follow asks for what there is to ask for, and no longer for what is needed no more.
func (w *walker) follow(typeURL string) {
	wanted := w.wanted(typeURL)
	r := request{typeURL: typeURL, nonce: w.nonces[typeURL], names: wanted, version: w.accepted[typeURL]}
	if !w.world {
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
	w.say(r)
}

// change makes another state, each of whose clusters has its endpoints, and each
// listener its routes.
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
	w.stream.notice(false, time.Now())
	w.pump()
}

// settle answers and asks until nothing more comes.
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

// check compares what the proxy runs with what it should.
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
			// Of what is refused the last good one stays, whatever it was.
			delete(want, name)
			if bad(got[name]) {
				w.t.Fatalf("%s %s runs %s", kindOf(typeURL), name, got[name])
			}
			delete(got, name)
		}
		if typeURL == endpoints || typeURL == routes {
			// The ends of these are not always told, and what asks for them may be refused.
			maps.DeleteFunc(got, func(name, _ string) bool { return w.target[typeURL][name] == "" })
		}
		if diff := cmp.Diff(want, got, cmp.Transformer("empty", func(m map[string]string) map[string]string {
			if len(m) == 0 {
				return nil
			}
			return m
		})); diff != "" {
			w.t.Fatalf("%s (-want +got):\n%s", kindOf(typeURL), diff)
		}
	}
	if !w.stream.finished() {
		w.t.Fatal("it is not finished, and nothing more comes")
	}
}

// TestRandomWalk has proxies do anything in any order, and ends with each having what
// it should.
func TestRandomWalk(t *testing.T) {
	for _, world := range []bool{false, true} {
		for seed := range uint64(30) {
			t.Run(fmt.Sprintf("world=%t/%d", world, seed), func(t *testing.T) {
				w := newWalker(t, seed, world)
				for range 60 {
					for range w.random.IntN(12) {
						switch w.random.IntN(8) {
						case 0, 1, 2:
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
}
