package delivery

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// draft describes a View by words: "d:NAMESPACE/NAME=CONTENT" is a destination with a
// backend "b:", "e:HOST=CONTENT" an egress match and "r:NAMESPACE/NAME=CONTENT" a
// permission. The proxy's namespace is "own".
func draft(words ...string) *mesh.View {
	destinations, backends := map[string]*mesh.Destination{}, map[string]*mesh.Backend{}
	var egress []mesh.EgressHost
	var rules []mesh.Permission
	path := func(content string) mesh.HTTPMatch {
		return mesh.HTTPMatch{Path: mesh.StringMatch{Exact: "/" + content}}
	}
	for _, word := range words {
		kind, rest, _ := strings.Cut(word, ":")
		name, content, _ := strings.Cut(rest, "=")
		namespace, service, _ := strings.Cut(name, "/")
		port := mesh.ServicePort{Name: mesh.Name{Namespace: namespace, Name: service}, Port: 80}
		switch kind {
		case "d":
			destinations[name] = mesh.Seal(&mesh.Destination{
				Name: name, Service: port, Protocol: mesh.HTTP, Port: 80,
				Routes: []mesh.Route{{Match: path(content), Backends: []mesh.WeightedBackend{{Backend: name, Weight: 1}}}},
			})
		case "b":
			backends[name] = mesh.Seal(&mesh.Backend{Name: name, Service: port, Protocol: mesh.HTTP, ExternalName: content})
		case "e":
			egress = append(egress, mesh.EgressHost{Host: name, Matches: []mesh.HTTPMatch{path(content), path("good")}})
		case "r":
			rules = append(rules, mesh.Permission{Origin: drivertest.Origin("TrafficTarget", name), Requests: []mesh.HTTPMatch{path(content)}})
		}
	}
	return mesh.NewView(mesh.Seal(&mesh.Proxy{Name: mesh.Name{Namespace: "own", Name: "pod"}, UID: "1"}), mesh.Seal(&mesh.Settings{}),
		mesh.Seal(&mesh.Inbound{Ports: []mesh.InboundPort{{Port: 80, Protocol: mesh.HTTP, Access: mesh.Access{Rules: rules}}}}),
		mesh.NewOutbound("own/a", mesh.TableOf(destinations), mesh.TableOf(backends)),
		mesh.Seal(&mesh.Egress{Ports: []mesh.EgressRoutes{{Port: 80, Protocol: mesh.EgressHTTP, Hosts: egress}}}))
}

// texts returns what a proxy is given of a View, as the words of draft; a destination
// without its routes is "d:NAME=500".
func texts(v *mesh.View) []string {
	var words []string
	for name, d := range v.Outbound.Destinations.All() {
		content := "500"
		if backend := d.Routes[0].Backends[0].Backend; backend != "" {
			content = strings.TrimPrefix(d.Routes[0].Match.Path.Exact, "/")
		}
		words = append(words, "d:"+name+"="+content)
	}
	for name, b := range v.Outbound.Backends.All() {
		words = append(words, "b:"+name+"="+b.ExternalName)
	}
	for _, host := range v.Egress.Ports[0].Hosts {
		for _, match := range host.Matches {
			words = append(words, "e:"+host.Host+"="+strings.TrimPrefix(match.Path.Exact, "/"))
		}
	}
	for _, rule := range v.Inbound.Ports[0].Access.Rules {
		words = append(words, "r:"+rule.Origin.Name()+"="+strings.TrimPrefix(rule.Requests[0].Path.Exact, "/"))
	}
	slices.Sort(words)
	return words
}

// settle has a proxy answer until nothing is left to try: it refuses what contains "bad".
// It returns what the proxy runs in the end, and the Views that it was given.
func settle(t *testing.T, q *Quarantine, offered *mesh.View) (runs *mesh.View, given [][]string) {
	t.Helper()
	for range 100 {
		given = append(given, texts(offered))
		bad := slices.IndexFunc(texts(offered), func(word string) bool { return strings.Contains(word, "bad") })
		var next *mesh.View
		if bad < 0 {
			runs = offered
			next = q.Accepted()
		} else {
			next = q.Refused(Refusal{Message: "it says " + texts(offered)[bad]})
		}
		if next.Digest() == offered.Digest() {
			return runs, given
		}
		offered = next
	}
	t.Fatalf("100 versions were made; the last is %v", given[len(given)-1])
	return nil, nil
}

func TestQuarantine(t *testing.T) {
	many := func(more ...string) []string {
		for i := range 60 {
			more = append(more, fmt.Sprintf("d:many/s%02d=x", i))
		}
		return more
	}
	for _, tt := range []struct {
		name string
		// before is the View that the proxy has accepted, and then the one that follows.
		before, then []string
		want         []string
		// revoked is whether the second version lacks the permission that is gone.
		revoked bool
		leftOut []string
		most    int
	}{
		{name: "nothing is refused", before: []string{"d:a/s=x"}, then: []string{"d:a/s=y"}, want: []string{"d:a/s=y"}, most: 1},
		{
			name: "a route of another namespace, and a permission that is gone", before: []string{"d:a/s=x", "r:own/one=x", "r:own/two=x"},
			then: []string{"d:a/s=bad", "r:own/two=x"}, want: []string{"d:a/s=500", "r:own/two=x"}, revoked: true,
			leftOut: []string{"destination a/s: it says d:a/s=bad"}, most: 4,
		},
		{
			name: "one among others that changed", before: []string{"d:a/s=x", "d:b/s=x", "d:c/s=x", "d:d/s=x"},
			then: []string{"d:a/s=y", "d:b/s=y", "d:c/s=bad", "d:d/s=x"}, want: []string{"d:a/s=y", "d:b/s=y", "d:c/s=500", "d:d/s=x"},
			leftOut: []string{"destination c/s: it says d:c/s=bad"}, most: 5,
		},
		{
			name: "two", before: []string{"d:a/s=x"}, then: []string{"d:a/s=bad", "d:b/s=y", "d:c/s=bad"}, want: []string{"d:a/s=500", "d:b/s=y", "d:c/s=500"},
			leftOut: []string{"destination a/s: it says d:a/s=bad", "destination c/s: it says d:c/s=bad"}, most: 7,
		},
		{
			name: "an egress match, whose host keeps the others", before: []string{"e:h.example=x"}, then: []string{"e:h.example=bad"}, want: []string{"e:h.example=good"},
			leftOut: []string{"egress match h.example:80: it says e:h.example=bad"}, most: 4,
		},
		{
			name: "of the own namespace", before: []string{"d:own/s=x", "d:a/s=x"}, then: []string{"d:own/s=bad", "d:a/s=y"}, want: []string{"d:a/s=y", "d:own/s=500"},
			leftOut: []string{"destination own/s: it says d:own/s=bad"}, most: 7,
		},
		{
			name: "a backend", before: []string{"d:a/s=x", "b:a/s=x"}, then: []string{"d:a/s=x", "b:a/s=bad"}, want: []string{"d:a/s=500"},
			leftOut: []string{"backend a/s: it says b:a/s=bad"}, most: 4,
		},
		{
			name: "a permission", before: []string{"r:own/one=x"}, then: []string{"r:own/one=bad", "r:own/two=x", "d:a/s=y"}, want: []string{"d:a/s=y", "r:own/two=x"},
			leftOut: []string{"permission own/one: it says r:own/one=bad"}, most: 10,
		},
		{
			name: "a new pod", then: many("d:a/s=bad", "r:own/one=x"), want: many("d:a/s=500", "r:own/one=x"),
			leftOut: []string{"destination a/s: it says d:a/s=bad"}, most: 16,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q := NewQuarantine(NewConvictions())
			if tt.before != nil {
				settle(t, q, q.Offer(draft(tt.before...)))
			}
			runs, given := settle(t, q, q.Offer(draft(tt.then...)))
			slices.Sort(tt.want)
			if diff := cmp.Diff(tt.want, texts(runs)); diff != "" {
				t.Errorf("the proxy runs (-want +got):\n%s", diff)
			}
			if len(given) > tt.most {
				t.Errorf("it took %d versions, want at most %d: %v", len(given), tt.most, given)
			}
			if tt.revoked && slices.Contains(given[1], "r:own/one=x") {
				t.Errorf("the second version still has the permission that is gone: %v", given[1])
			}
			var leftOut []string
			for _, c := range q.LeftOut() {
				leftOut = append(leftOut, c.Part.String()+": "+c.Message)
			}
			if diff := cmp.Diff(tt.leftOut, leftOut); diff != "" {
				t.Errorf("left out (-want +got):\n%s", diff)
			}
			if !q.Settled() {
				t.Error("it has not settled")
			}
		})
	}
}

// TestQuarantineAgain changes what was convicted, and gives another proxy of the class the
// same View.
func TestQuarantineAgain(t *testing.T) {
	now := time.Unix(1, 0)
	class := NewConvictions()
	class.now = func() time.Time { return now }
	bad := draft("d:a/s=bad", "d:b/s=x")
	first := NewQuarantine(class)
	settle(t, first, first.Offer(bad))

	second := NewQuarantine(class)
	if _, given := settle(t, second, second.Offer(bad)); len(given) != 1 || len(second.LeftOut()) != 1 {
		t.Errorf("another proxy of the class was given %v and lacks %v, want a good version at once", given, second.LeftOut())
	}
	runs, given := settle(t, first, first.Offer(draft("d:a/s=mended", "d:b/s=x")))
	if diff := cmp.Diff([]string{"d:a/s=mended", "d:b/s=x"}, texts(runs)); diff != "" || len(given) != 1 || len(first.LeftOut()) != 0 {
		t.Errorf("after the change %d versions were given (-want +got):\n%s", len(given), diff)
	}
	now = now.Add(convictedFor)
	third := NewQuarantine(class)
	if _, given := settle(t, third, third.Offer(bad)); len(given) == 1 {
		t.Error("a conviction never ends")
	}
}

// TestQuarantineHopeless refuses whatever is left out, and then a change of the View.
func TestQuarantineHopeless(t *testing.T) {
	q := NewQuarantine(NewConvictions())
	offered := q.Offer(draft("d:a/s=x", "d:own/s=x", "b:a/s=x", "r:own/one=x"))
	var given []string
	for range 20 {
		given = append(given, fmt.Sprint(texts(offered)))
		offered = q.Refused(Refusal{Message: "never"})
	}
	if distinct := len(slices.Compact(slices.Clone(given))); distinct > 7 {
		t.Errorf("%d versions were made: %v", distinct, given)
	}
	if diff := cmp.Diff([]string{"b:a/s=x", "d:a/s=x", "d:own/s=x", "r:own/one=x"}, texts(offered)); diff != "" {
		t.Errorf("in the end something is left out (-want +got):\n%s", diff)
	}
	runs, _ := settle(t, q, q.Offer(draft("d:a/s=y")))
	if diff := cmp.Diff([]string{"d:a/s=y"}, texts(runs)); diff != "" || len(q.LeftOut()) > 0 {
		t.Errorf("after a change (-want +got):\n%s", diff)
	}
}
