package source

import (
	"math"

	split "github.com/outrigger-mesh/outrigger/apis/split/v1alpha4"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// trafficSplit returns nil for an invalid split. All traffic then goes to the root's
// endpoints.
func trafficSplit(obj *split.TrafficSplit, n *notes) mesh.Digester {
	spec := &obj.Spec
	s := &fact.Split{Name: nameOf(&obj.ObjectMeta), Age: ageOf(&obj.ObjectMeta)}
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

// ownService parses the name of a service that must be in the object's namespace.
func (n *notes) ownService(path, namespace, host, outcome string) (string, bool) {
	name, ok := serviceOf(namespace, host)
	if !ok {
		n.add(ReasonInvalid, path, "%q is not the name of a service, so %s; write a name, or its DNS name in the cluster", host, outcome)
		return "", false
	}
	if name.Namespace != namespace {
		n.add(ReasonOtherNamespace, path, "%q is a service of the namespace %q, so %s; only services of the object's own namespace %q are supported here",
			host, name.Namespace, outcome, namespace)
		return "", false
	}
	return name.Name, true
}

// splitBackends returns the valid backends, or nil if traffic can't be split. Weights
// that are all 0 are valid here: the route then answers 503.
func (n *notes) splitBackends(namespace string, declared []split.TrafficSplitBackend) []fact.SplitBackend {
	const path = "spec.backends"
	if len(declared) == 0 {
		n.needed(path, 0, "backend, so traffic is not split")
		return nil
	}
	var backends []fact.SplitBackend
	seen := make(map[string]bool)
	sum := uint64(0)
	for i, b := range declared {
		name, ok := n.ownService(index(path, i)+".service", namespace, b.Service, "the backend is ignored")
		if !ok {
			continue
		}
		if seen[name] {
			n.add(ReasonDuplicate, index(path, i)+".service", "%q is already a backend, so this one is ignored; add up the weights", b.Service)
			continue
		}
		weight, err := b.Weight.Parse()
		if err != nil {
			n.add(ReasonInvalid, index(path, i)+".weight", "%v; the backend is ignored", err)
			continue
		}
		seen[name] = true
		sum += uint64(weight)
		backends = append(backends, fact.SplitBackend{Service: name, Weight: weight})
	}
	if sum > math.MaxUint32 {
		n.add(ReasonInvalid, path, "the sum of the weights is %d, above %d, so traffic is not split; scale them down", sum, uint32(math.MaxUint32))
		return nil
	}
	return backends
}
