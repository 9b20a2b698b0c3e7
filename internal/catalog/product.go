package catalog

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// maxProduct bounds what one object may add to the configuration of a proxy where that has each of
// some parts for each of others, in bytes as sizeOf counts them. An object that exceeds it allows
// nothing.
const maxProduct = 8 << 20

// sizeOf estimates the size of matches in a proxy's configuration.
func sizeOf(matches []mesh.HTTPMatch) int {
	// What proxies write around each text.
	const around = 100
	size := 0
	for i := range matches {
		m := &matches[i]
		size += around + sizeOfText(m.Path)
		for _, method := range m.Methods {
			size += len(method)
		}
		for _, keys := range [][]mesh.KeyMatch{m.Headers, m.Query} {
			for _, k := range keys {
				size += around + len(k.Name) + sizeOfText(k.StringMatch)
			}
		}
	}
	return size
}

func sizeOfText(m mesh.StringMatch) int { return len(m.Exact) + len(m.Prefix) + len(m.Regex) }

// size is the size of a rule in the configuration of proxies that have its requests for each
// source. Without a source nobody has them, but they are read.
func (g *grant) size() int { return max(len(g.Sources), 1) * g.bytes }

// inspectProduct reports a rule that allows nothing because of its size.
func inspectProduct(g *grant, f *fault) {
	if g.size() > maxProduct {
		f.add(ReasonTooLarge, "spec.sources", "its %d sources and at least %d kinds of requests, each of them for each source, make more than %d KiB of configuration for a proxy, of at most %d, so it allows nothing; use several TrafficTargets, or a path for several matches", len(g.Sources), len(g.HTTP), g.size()>>10, maxProduct>>10)
	}
}

// egressSize is the size of a rule in the configuration of a proxy, which has its matches and
// address ranges for each host at each port.
func (j *join) egressSize(r *graph.Reader, rule *fact.EgressRule) int {
	const address = 50
	each := len(rule.Ranges) * address
	if len(rule.Groups) > 0 && slices.ContainsFunc(rule.Ports, func(p fact.EgressPort) bool { return p.Protocol == mesh.EgressHTTP }) {
		each += sizeOf(j.matchesOf(r, rule.Namespace, rule.Groups))
	}
	return len(rule.Hosts) * len(rule.Ports) * each
}

func (j *join) inspectEgressProduct(r *graph.Reader, rule *fact.EgressRule, f *fault) {
	if size := j.egressSize(r, rule); size > maxProduct {
		f.add(ReasonTooLarge, "spec.hosts", "its matches and address ranges, each of them for each of %d hosts at %d ports, make about %d KiB of configuration for a proxy, of at most %d, so it allows nothing; use several Egresses, or a path for several matches", len(rule.Hosts), len(rule.Ports), size>>10, maxProduct>>10)
	}
}
