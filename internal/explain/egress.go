package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// toHost is a departure to a host whose address is unknown.
func (x *inquiry) toHost(host string, port uint16) mesh.Departure {
	return mesh.Departure{To: netip.AddrPortFrom(netip.Addr{}, port), ServerName: host, Request: &x.request}
}

// leaveToHost calls a host outside the mesh.
func (x *inquiry) leaveToHost(c caller, host string, port uint16) {
	c = x.redirectToHost(c, host, port)
	if c.view != nil && c.workload.Redirection.HasRanges() {
		if decision, _ := c.decideEgress(x.toHost(host, port)); !decision.Allowed {
			x.end(Mixed, "egress", fmt.Sprintf("it depends on the address that %s resolves to: connections to some addresses bypass the sidecar, which denies the others", host))
			return
		}
	}
	if x.mayLeave(c, x.toHost(host, port), host+", port "+strconv.Itoa(int(port))) {
		x.end(Allowed, "destination", host+" is outside the mesh")
	}
}

// mayLeave reports whether the caller's sidecar lets the request leave the mesh. What
// describes the destination.
func (x *inquiry) mayLeave(c caller, d mesh.Departure, what string) bool {
	if c.view == nil {
		x.say("egress", "without a sidecar, the caller can reach "+what)
		return true
	}
	x.namespaces = append(x.namespaces, c.workload.Namespace)
	decision, depends := c.decideEgress(d)
	var text string
	switch decision.Reason {
	case mesh.AllowedByRule:
		text = "an Egress allows " + account(c.view.Proxy.Identity) + " to call " + what
		if decision.Outside != "" {
			text += ", by " + decision.Outside
		}
	case mesh.EgressOpen:
		text = "no Egress matches " + what + ", and the mesh allows all other egress"
	case mesh.RequestRefused:
		text = "the Egress for " + decision.Outside + " does not allow this request to " + what
	default:
		text = "no Egress allows " + account(c.view.Proxy.Identity) + " to call " + what + ", and egress is off in the mesh: the connection is closed"
	}
	x.involve(mesh.ObjectsOf(originsOfEgress(c.view.Egress, d, decision))...)
	details := x.nearEgress(c.view.Egress, d)
	switch {
	case decision.Allowed:
	case depends:
		x.end(Mixed, "egress", "it depends on the address that "+what+" resolves to: an Egress allows only some addresses", details...)
		return false
	case decision.Reason == mesh.RequestRefused && x.asked() == nil:
		x.end(Mixed, "egress", "for "+what+" it depends on the request; add its METHOD and PATH", details...)
		return false
	default:
		x.refuse(Denied, telemetry.ReasonEgress, "egress", text, details...)
		return false
	}
	x.say("egress", text, details...)
	return true
}

// originsOfEgress returns the origins of what decides: the host by which the request is allowed
// or refused, or the ranges of the port.
func originsOfEgress(e *mesh.Egress, d mesh.Departure, decision mesh.Decision) []mesh.Origin {
	if decision.Reason != mesh.AllowedByRule && decision.Reason != mesh.RequestRefused {
		return nil
	}
	i := slices.IndexFunc(e.Ports, func(p mesh.EgressRoutes) bool { return p.Port == d.To.Port() })
	for _, host := range e.Ports[i].Hosts {
		if host.Host == decision.Outside {
			return host.Origins
		}
	}
	return e.Ports[i].Origins
}

// decideEgress returns the decision of the caller's sidecar. If the address is unknown,
// ranges that cover all addresses count as a match; with other ranges the decision
// depends on the address.
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
		request, normal := port.RequestOf(d)
		if host, ok := port.HostOf(d); ok && normal {
			for _, within := range host.Within {
				for _, r := range within.Ranges {
					depends = depends || host.Allows(request, r.Addr())
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

// nearEgress describes what is allowed at the port.
func (x *inquiry) nearEgress(e *mesh.Egress, d mesh.Departure) []string {
	var details []string
	for _, port := range e.Ports {
		if port.Port != d.To.Port() {
			var others []string
			for _, host := range port.Hosts {
				if mesh.MatchesName(host.Host, d.ServerName) {
					others = append(others, host.Host)
				}
			}
			if len(others) > 0 {
				details = append(details, fmt.Sprintf("port %d is open to this host (%s)", port.Port, list(others, mostShown)))
			}
			continue
		}
		details = append(details, fmt.Sprintf("port %d has protocol %s", port.Port, port.Protocol))
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
			details = append(details, "allowed hosts: "+list(hosts, mostShown))
		}
		if len(port.Ranges) > 0 {
			details = append(details, "allowed addresses: "+list(texts(port.Ranges), mostShown))
		}
	}
	return details
}
