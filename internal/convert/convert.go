// Package convert turns SMI's TrafficSplits, with the HTTPRouteGroups and timeouts that apply
// to them, into routes of Gateway API, and TrafficTargets and IngressBackends into AccessPolicies.
package convert

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Note says what of an object has no equal among routes, or differs there.
type Note struct {
	Object mesh.ObjectRef `json:"object"`
	// Field is empty if the Note is about the whole object.
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}

// String returns the Note as one line of text.
func (n Note) String() string {
	if n.Field == "" {
		return n.Object.String() + ": " + n.Message
	}
	return n.Object.String() + ": " + n.Field + ": " + n.Message
}

// Routes returns an HTTPRoute or a TCPRoute for each service port with a TrafficSplit or a
// timeout, sorted by namespace and service, and Notes. The routes of a service do what its
// policies do; Services must be among the facts, since routes name ports. A port whose policies
// cannot be written as routes gets none, and a Note that says to keep the policies.
func Routes(facts []fact.Fact) ([]*unstructured.Unstructured, []Note) {
	c := &converter{
		services: map[mesh.Name]*fact.Service{}, splits: map[mesh.Name][]*fact.Split{}, groups: map[mesh.Name]*fact.RouteGroup{},
		settings: map[mesh.Name]*fact.UpstreamSetting{}, objects: map[mesh.Digester]mesh.ObjectRef{}, taken: map[routeName]bool{},
	}
	for _, f := range facts {
		c.add(f)
	}
	roots := make([]mesh.Name, 0, len(c.splits))
	for root := range c.splits {
		roots = append(roots, root)
	}
	for service, setting := range c.settings {
		if setting.Policy.RequestTimeout > 0 {
			roots = append(roots, service)
		}
	}
	slices.SortFunc(roots, mesh.Name.Compare)
	for _, root := range slices.Compact(roots) {
		c.convert(root)
	}
	slices.SortStableFunc(c.notes, func(a, b Note) int {
		return cmp.Or(strings.Compare(a.Object.Namespace, b.Object.Namespace), strings.Compare(a.Object.Name, b.Object.Name))
	})
	return c.made, c.notes
}

type converter struct {
	services map[mesh.Name]*fact.Service
	// splits are by root, the oldest first.
	splits   map[mesh.Name][]*fact.Split
	groups   map[mesh.Name]*fact.RouteGroup
	settings map[mesh.Name]*fact.UpstreamSetting
	// routes are those that exist already.
	routes  []*fact.Route
	objects map[mesh.Digester]mesh.ObjectRef
	// taken are the names of routes, of those that exist and of those that were made.
	taken map[routeName]bool

	made  []*unstructured.Unstructured
	notes []Note
}

// routeName is the name of a route of a kind.
type routeName struct {
	kind string
	mesh.Name
}

func (c *converter) note(of mesh.Digester, field, format string, args ...any) {
	n := Note{c.objects[of], field, fmt.Sprintf(format, args...)}
	if !slices.Contains(c.notes, n) {
		c.notes = append(c.notes, n)
	}
}

func (c *converter) add(f fact.Fact) {
	// A route of a Gateway, or one that is invalid, has a name too.
	c.taken[routeName{f.Object.Kind, mesh.Name{Namespace: f.Object.Namespace, Name: f.Object.Name}}] = true
	if f.Content == nil {
		return
	}
	c.objects[f.Content] = f.Object
	switch content := f.Content.(type) {
	case *fact.Service:
		c.services[content.Name] = content
	case *fact.Split:
		root := mesh.Name{Namespace: content.Namespace, Name: content.Root}
		c.splits[root] = append(c.splits[root], content)
		slices.SortFunc(c.splits[root], func(a, b *fact.Split) int {
			return cmp.Or(cmp.Compare(a.Created, b.Created), a.Name.Compare(b.Name))
		})
	case *fact.RouteGroup:
		if len(content.HTTP) > 0 {
			c.groups[content.Name] = content
		}
	case *fact.Route:
		c.routes = append(c.routes, content)
	case *fact.UpstreamSetting:
		service := content.Service()
		if former := c.settings[service]; service != (mesh.Name{}) && (former == nil || content.Created < former.Created) {
			c.settings[service] = content
		}
		c.note(content, "", "only the request's timeout has an equal; keep the object, which applies to routes too")
	case *fact.RetryRule:
		c.note(content, "", "it is for the requests of one service account, and routes are for those of all; keep it, since it applies to routes too")
	}
}

func (c *converter) convert(root mesh.Name) {
	splits, svc := c.splits[root], c.services[root]
	report := func(format string, args ...any) {
		for _, split := range splits {
			c.note(split, "spec.service", format, args...)
		}
	}
	switch {
	case svc == nil:
		report("there is no Service %s among the objects; add it, since a route names its ports", root)
		return
	case svc.Headless || svc.ExternalName != "":
		report("Service %s has no cluster IP, by which a route recognizes its requests", root)
		return
	}
	for _, spec := range svc.Ports {
		p := &port{converter: c, root: root, spec: spec, splits: splits}
		if existing := c.existing(root, spec); existing != nil {
			report("%s %s is already in force at port %d and replaces the splits there, so no route is made for it", existing.Kind, existing.Name, spec.Port)
			continue
		}
		p.convert(len(svc.Ports) > 1)
	}
}

// existing returns a route in the service's namespace that governs the port.
func (c *converter) existing(root mesh.Name, spec fact.PortSpec) *fact.Route {
	for _, route := range c.routes {
		governs := func(p fact.RouteParent) bool {
			return p.Service == root && (p.Port == 0 || p.Port == spec.Port) && (p.PortName == "" || p.PortName == spec.Name)
		}
		if route.Namespace == root.Namespace && route.Kind.IsHTTP() == spec.Protocol.IsHTTP() && slices.ContainsFunc(route.Parents, governs) {
			return route
		}
	}
	return nil
}

// name returns a name for a route that no other has.
func (c *converter) name(kind string, wanted mesh.Name) string {
	name := wanted.Name
	for n := 2; c.taken[routeName{kind, mesh.Name{Namespace: wanted.Namespace, Name: name}}]; n++ {
		// Routes of one age take effect in the order of their names.
		name = fmt.Sprintf("%s-split-%03d", wanted.Name, n)
	}
	c.taken[routeName{kind, mesh.Name{Namespace: wanted.Namespace, Name: name}}] = true
	return name
}

// print adds a route.
func (c *converter) print(kind string, route any) {
	c.made = append(c.made, asObject(gateway.GroupVersion.String(), kind, route))
}

// asObject returns what a manifest of an object has, which is no status.
func asObject(apiVersion, kind string, typed any) *unstructured.Unstructured {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	if err != nil {
		panic(err) // Impossible: the types are compiled in and tested.
	}
	delete(content, "status")
	object := &unstructured.Unstructured{Object: content}
	object.SetAPIVersion(apiVersion)
	object.SetKind(kind)
	unstructured.RemoveNestedField(object.Object, "metadata", "creationTimestamp")
	return object
}

// longestTimeout is the longest duration that Gateway API can write in hours.
const longestTimeout = 99999 * time.Hour

// durationText returns a duration in the form of Gateway API, in milliseconds at least.
func durationText(d time.Duration) gateway.Duration {
	var text strings.Builder
	d = max(d.Truncate(time.Millisecond), time.Millisecond)
	for _, unit := range []struct {
		name string
		of   time.Duration
	}{{"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}} {
		if n := d / unit.of; n > 0 {
			fmt.Fprintf(&text, "%d%s", n, unit.name)
			d -= n * unit.of
		}
	}
	return gateway.Duration(text.String())
}
