package source

import (
	"encoding/json"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// RedirectionOf returns the redirection by the init container of an injected pod. It
// returns the zero Redirection, which redirects everything, if there is no such container
// or its variable is invalid.
func RedirectionOf(pod *corev1.Pod) agentspec.Redirection {
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.Name != driver.InitContainer {
			continue
		}
		for _, variable := range c.Env {
			var r agentspec.Redirection
			if variable.Name == agentspec.EnvRedirection && json.Unmarshal([]byte(variable.Value), &r) == nil {
				return r
			}
		}
	}
	return agentspec.Redirection{}
}

// redirection converts to the mesh's type. Invalid ports and ranges, with which the init
// container fails, are ignored.
func redirection(r agentspec.Redirection) mesh.Redirection {
	return mesh.Redirection{
		DisableInbound: r.DisableInbound, DisableOutbound: r.DisableOutbound,
		ExcludeInbound: portNumbers(r.ExcludeInboundPorts), IncludeInbound: portNumbers(r.IncludeInboundPorts),
		ExcludeOutbound: portNumbers(r.ExcludeOutboundPorts), IncludeOutbound: portNumbers(r.IncludeOutboundPorts),
		ExcludeRanges: prefixes(r.ExcludeOutboundRanges), IncludeRanges: prefixes(r.IncludeOutboundRanges),
	}
}

func portNumbers(numbers []int) []uint16 {
	var ports []uint16
	for _, number := range numbers {
		if number > 0 && number < 1<<16 {
			ports = append(ports, uint16(number))
		}
	}
	return ports
}

func prefixes(texts []string) []netip.Prefix {
	var ranges []netip.Prefix
	for _, text := range texts {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			ranges = append(ranges, prefix.Masked())
		}
	}
	return ranges
}
