package source

import (
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// outboundServices parses the list. It returns nil if there is none or it is invalid, so
// that the list of the wider scope applies.
func (n *notes) outboundServices(namespace string, annotations map[string]string) fact.Services {
	text, ok := annotations[metadata.OutboundServices]
	if !ok {
		return nil
	}
	var services fact.Services
	for word := range strings.SplitSeq(text, ",") {
		word = strings.TrimSpace(word)
		if word == fact.OnDemand.Name {
			services = append(services, fact.OnDemand)
			continue
		}
		name := mesh.Name{Namespace: namespace, Name: word}
		if before, after, ok := strings.Cut(word, "/"); ok {
			name = mesh.Name{Namespace: before, Name: after}
		} else if word == fact.Any {
			name.Namespace = fact.Any
		}
		valid := isObjectLabel(name.Namespace) && (name.Name == fact.Any || isObjectLabel(name.Name))
		if !valid && word != fact.Any {
			n.add(ReasonInvalid, "metadata.annotations["+metadata.OutboundServices+"]",
				"%q is no service, so the annotation is ignored; write NAME, NAMESPACE/NAME, NAMESPACE/*, * or on-demand, separated by commas", word)
			return nil
		}
		services = append(services, name)
	}
	slices.SortFunc(services, mesh.Name.Compare)
	return slices.Compact(services)
}
