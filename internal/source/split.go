package source

import (
	"math"

	split "github.com/outrigger-mesh/outrigger/apis/split/v1alpha4"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// trafficSplit returns nothing for a split that cannot be carried out; the root's
// traffic stays with the root then.
func trafficSplit(obj *split.TrafficSplit, n *notes) mesh.Content {
	spec := &obj.Spec
	s := &mesh.Split{Name: nameOf(&obj.ObjectMeta), Age: ageOf(&obj.ObjectMeta)}
	root, ok := n.ownService("spec.service", obj.Namespace, spec.Service, "traffic is not split")
	s.Root = root
	s.Backends = n.splitBackends(obj.Namespace, spec.Backends)
	refs := n.references("spec.matches", spec.Matches, kindHTTPRouteGroup)
	s.Matches = refs.groups
	if n.noGroup("spec.matches", refs) || !ok || len(s.Backends) == 0 {
		return nil
	}
	return mesh.Seal(s)
}

// ownService reads the name of a service that must be in the object's namespace.
func (n *notes) ownService(path, namespace, host, outcome string) (string, bool) {
	name, ok := serviceOf(namespace, host)
	if !ok {
		n.add(ReasonInvalid, path, "%q is not the name of a service, so %s; write a name, or its DNS name in the cluster", host, outcome)
		return "", false
	}
	if name.Namespace != namespace {
		n.add(ReasonOtherNamespace, path, "%q is a service of the namespace %q, so %s; only services of the object's own namespace %q can stand here",
			host, name.Namespace, outcome, namespace)
		return "", false
	}
	return name.Name, true
}

// splitBackends returns those that can get traffic, or none if traffic cannot be
// split among them. That all of them have a weight of 0 is for the routes to say,
// which answer 503 then.
func (n *notes) splitBackends(namespace string, declared []split.TrafficSplitBackend) []mesh.SplitBackend {
	const path = "spec.backends"
	if len(declared) == 0 {
		n.needed(path, 0, "backend, so traffic is not split")
		return nil
	}
	var backends []mesh.SplitBackend
	seen := make(map[string]bool)
	sum := uint64(0)
	for i, b := range declared {
		name, ok := n.ownService(index(path, i)+".service", namespace, b.Service, "the backend is left out")
		if !ok {
			continue
		}
		if seen[name] {
			n.add(ReasonDuplicate, index(path, i)+".service", "%q is a backend already, so this one is left out; add the weights up", b.Service)
			continue
		}
		weight, err := b.Weight.Parse()
		if err != nil {
			n.add(ReasonInvalid, index(path, i)+".weight", "%v; the backend is left out", err)
			continue
		}
		seen[name] = true
		sum += uint64(weight)
		backends = append(backends, mesh.SplitBackend{Service: name, Weight: weight})
	}
	if sum > math.MaxUint32 {
		n.add(ReasonInvalid, path, "the weights add up to %d, more than %d, so traffic is not split; divide them all by the same number", sum, uint32(math.MaxUint32))
		return nil
	}
	return backends
}
