package inject

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// redirection merges the mesh's and the pod's settings of which traffic is
// redirected.
func (p *plan) redirection(c *candidate, traffic *v1alpha2.TrafficSpec) error {
	var r agentspec.Redirection
	for _, port := range traffic.InboundPortExclusionList {
		r.ExcludeInboundPorts = append(r.ExcludeInboundPorts, int(port))
	}
	for _, port := range traffic.OutboundPortExclusionList {
		r.ExcludeOutboundPorts = append(r.ExcludeOutboundPorts, int(port))
	}
	r.ExcludeOutboundRanges = slices.Clone(traffic.OutboundIPRangeExclusionList)
	r.IncludeOutboundRanges = slices.Clone(traffic.OutboundIPRangeInclusionList)
	r.ExcludeInterfaces = slices.Clone(traffic.NetworkInterfaceExclusionList)
	if err := c.redirectionLists(&r); err != nil {
		return invalid(err)
	}
	if f := c.lookup(metadata.ConnectionsPerSource); f.ok {
		each, err := parseConnections(f.value)
		if err != nil {
			return invalid(f.errorf("%v", err))
		}
		r.InboundConnectionsEach = each
	}
	if c.config.settings.Compat.Istio {
		if err := istioRedirection(c.pod.Annotations, &r); err != nil {
			return invalid(err)
		}
	}
	none, err := c.interceptsNothing(traffic.InterceptionMode)
	if err != nil {
		return invalid(err)
	}
	if none || isStandalone(c.pod) || sidecar.IsProxyless(p.context.Sidecar.Class) {
		r.DisableInbound, r.DisableOutbound = true, true
	}
	for _, ports := range []*[]int{&r.ExcludeInboundPorts, &r.ExcludeOutboundPorts, &r.IncludeInboundPorts, &r.IncludeOutboundPorts} {
		*ports = sortedSet(*ports)
	}
	for _, names := range []*[]string{&r.ExcludeOutboundRanges, &r.IncludeOutboundRanges, &r.ExcludeInterfaces} {
		*names = sortedSet(*names)
	}
	inj := p.context
	r.TranslateIPv6 = sidecar.TranslatesIPv6(inj.Sidecar.Class)
	inj.Redirection = r
	inj.InboundPortExclusionList, inj.OutboundPortExclusionList = r.ExcludeInboundPorts, r.ExcludeOutboundPorts
	inj.OutboundIPRangeExclusionList, inj.OutboundIPRangeInclusionList = r.ExcludeOutboundRanges, r.IncludeOutboundRanges
	return nil
}

// annotateRedirection sets the annotation that tells the CNI plug-in what to redirect. It
// rejects pods that already have it: the pod must not choose its own redirection.
func annotateRedirection(pod *corev1.Pod, inj *driver.InjectorContext) error {
	if !inj.Sidecar.CNI || inj.Redirection.DisableInbound && inj.Redirection.DisableOutbound {
		return nil
	}
	if _, ok := pod.Annotations[agentspec.RedirectionAnnotation]; ok {
		return invalid(fmt.Errorf("the pod has the annotation %s, which only the injector may set; remove it, and use annotations such as %s to exclude traffic from redirection",
			agentspec.RedirectionAnnotation, metadata.InboundPortExclusion))
	}
	value, err := json.Marshal(inj.Redirection)
	if err != nil {
		return deny("internal_error", err)
	}
	setAnnotation(&pod.Annotations, agentspec.RedirectionAnnotation, string(value))
	return nil
}

// redirectionLists adds the lists in the pod's annotations to r.
func (c *candidate) redirectionLists(r *agentspec.Redirection) error {
	for _, list := range []struct {
		key  string
		into *[]int
	}{
		{metadata.InboundPortExclusion, &r.ExcludeInboundPorts}, {metadata.OutboundPortExclusion, &r.ExcludeOutboundPorts},
		{metadata.InboundPortInclusion, &r.IncludeInboundPorts}, {metadata.OutboundPortInclusion, &r.IncludeOutboundPorts},
	} {
		if err := addList(c.onPod(list.key), parsePorts, list.into); err != nil {
			return err
		}
	}
	for _, list := range []struct {
		key  string
		into *[]string
	}{{metadata.OutboundRangeExclusion, &r.ExcludeOutboundRanges}, {metadata.OutboundRangeInclusion, &r.IncludeOutboundRanges}} {
		if err := addList(c.onPod(list.key), parseRanges, list.into); err != nil {
			return err
		}
	}
	return addList(c.onPod(metadata.InterfaceExclusion), parseInterfaces, &r.ExcludeInterfaces)
}

// addList adds the entries of an annotation, which may be empty or missing.
func addList[T any](f found, parse func(string) ([]T, error), into *[]T) error {
	if !f.ok || strings.TrimSpace(f.value) == "" {
		return nil
	}
	entries, err := parse(f.value)
	if err != nil {
		return f.errorf("%v", err)
	}
	*into = append(*into, entries...)
	return nil
}

// interceptsNothing reports whether redirection is off for the pod.
func (c *candidate) interceptsNothing(mesh v1alpha2.InterceptionMode) (bool, error) {
	mode := strings.ToLower(string(mesh))
	f := c.lookup(metadata.InterceptionMode)
	if f.ok {
		mode = strings.ToLower(f.value)
		if mode != "iptables" && mode != "none" {
			return false, f.errorf("%q must be iptables or none", f.value)
		}
	}
	return mode == "none", nil
}

// redirectsInbound reports whether connections to a port of the pod go through the
// proxy.
func redirectsInbound(r *agentspec.Redirection, port int) bool {
	return !r.DisableInbound && !slices.Contains(r.ExcludeInboundPorts, port) &&
		(len(r.IncludeInboundPorts) == 0 || slices.Contains(r.IncludeInboundPorts, port))
}
