package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// toHost is a departure to a host, whose address is not known.
func (x *inquiry) toHost(host string, port uint16) mesh.Departure {
	return mesh.Departure{To: netip.AddrPortFrom(netip.Addr{}, port), ServerName: host, Request: &x.request}
}

// leaveToHost has the caller call a host outside the mesh.
func (x *inquiry) leaveToHost(c caller, host string, port uint16) {
	c = x.redirectToHost(c, host, port)
	if c.view != nil && c.workload.Redirection.HasRanges() {
		if decision, _ := c.decideEgress(x.toHost(host, port)); !decision.Allowed {
			x.end(Mixed, "egress", fmt.Sprintf("it depends on the address that the caller finds for %s: connections to some go past its sidecar, which does not let the others leave", host))
			return
		}
	}
	if x.mayLeave(c, x.toHost(host, port), host+", port "+strconv.Itoa(int(port))) {
		x.end(Allowed, "destination", host+" is outside the mesh")
	}
}

// mayLeave asks the caller's sidecar whether the request may leave the mesh, to what
// is said in words.
func (x *inquiry) mayLeave(c caller, d mesh.Departure, what string) bool {
	if c.view == nil {
		x.say("egress", "without a sidecar nothing keeps the caller from "+what)
		return true
	}
	x.namespaces = append(x.namespaces, c.workload.Namespace)
	decision, depends := c.decideEgress(d)
	var text string
	switch decision.Reason {
	case mesh.AllowedByRule:
		text = "an Egress lets " + account(c.view.Proxy.Identity) + " call " + what
		if decision.Rule != "" {
			text += ", by " + decision.Rule
		}
	case mesh.EgressOpen:
		text = "no Egress names " + what + ", and the mesh lets everything else out"
	case mesh.RequestRefused:
		text = "the Egress for " + decision.Rule + " does not allow such a request to " + what
	default:
		text = "no Egress lets " + account(c.view.Proxy.Identity) + " call " + what + ", and the mesh's egress is off: the connection is closed"
	}
	details := x.nearEgress(c.view.Egress, d)
	switch {
	case decision.Allowed:
	case depends:
		x.end(Mixed, "egress", "it depends on the address that the caller finds for "+what+": an Egress is for some addresses only", details...)
		return false
	case decision.Reason == mesh.RequestRefused && x.asked() == nil:
		x.end(Mixed, "egress", "to "+what+" it depends on the request; give its METHOD and PATH", details...)
		return false
	default:
		x.end(Denied, "egress", text, details...)
		return false
	}
	x.say("egress", text, details...)
	return true
}

// decideEgress asks the caller's sidecar. Where the address is not known, ranges that
// hold every address that the caller could connect to decide as well, and any others
// make it depend on the address.
func (c caller) decideEgress(d mesh.Departure) (decision mesh.Decision, depends bool) {
	decision = c.view.Egress.Decide(d)
	if decision.Reason == mesh.AllowedByRule || d.To.Addr().IsValid() {
		return decision, false
	}
	families := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	families = slices.DeleteFunc(families, func(family netip.Addr) bool {
		return len(c.workload.Addresses) > 0 && !c.address(family).IsValid()
	})
	open := 0
	for _, port := range c.view.Egress.Ports {
		if port.Port != d.To.Port() {
			continue
		}
		if host, ok := port.HostOf(d); ok {
			for _, within := range host.Within {
				for _, r := range within.Ranges {
					depends = depends || host.Allows(port.RequestOf(d), r.Addr())
				}
			}
		}
		if len(port.Ranges) == 0 {
			continue
		}
		depends = true
		for _, family := range families {
			if slices.Contains(port.Ranges, netip.PrefixFrom(family, 0)) {
				open++
			}
		}
	}
	if open < len(families) {
		return decision, depends && !decision.Allowed
	}
	d.To = netip.AddrPortFrom(families[0], d.To.Port())
	return c.view.Egress.Decide(d), false
}

// nearEgress says what the port is open for.
func (x *inquiry) nearEgress(e *mesh.Egress, d mesh.Departure) []string {
	var details []string
	for _, port := range e.Ports {
		if port.Port != d.To.Port() {
			var others []string
			for _, host := range port.Hosts {
				if mesh.MatchesHost(host.Host, d.ServerName) {
					others = append(others, host.Host)
				}
			}
			if len(others) > 0 {
				details = append(details, fmt.Sprintf("port %d is open to it, by %s", port.Port, list(others, mostShown)))
			}
			continue
		}
		details = append(details, fmt.Sprintf("port %d is for %s", port.Port, port.Protocol))
		if host, ok := port.HostOf(d); ok {
			text := describeMatches(host.Matches)
			if port.Protocol == mesh.EgressHTTP && d.Request.Method != "" {
				text = cmp.Or(lack(host.Matches, d.Request, mesh.HTTPMatch.Mismatch), text)
			}
			if len(host.Matches) > 0 || len(host.Within) == 0 {
				details = append(details, host.Host+" is open for "+text)
			}
			for _, within := range host.Within {
				details = append(details, fmt.Sprintf("%s is open at %s for %s", host.Host, list(texts(within.Ranges), mostShown), describeMatches(within.Matches)))
			}
		} else if len(port.Hosts) > 0 {
			var hosts []string
			for _, host := range port.Hosts {
				hosts = append(hosts, host.Host)
			}
			details = append(details, "hosts that it is open to: "+list(hosts, mostShown))
		}
		if len(port.Ranges) > 0 {
			details = append(details, "addresses that it is open to: "+list(texts(port.Ranges), mostShown))
		}
	}
	return details
}
