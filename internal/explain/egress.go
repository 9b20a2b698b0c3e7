package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// leaveToHost has the caller call a host outside the mesh.
func (x *inquiry) leaveToHost(c caller, host string, port uint16) {
	d := mesh.Departure{To: netip.AddrPortFrom(netip.Addr{}, port), ServerName: host, Request: &x.request}
	if x.mayLeave(c, d, host+", port "+strconv.Itoa(int(port))) {
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
	decision := c.view.Egress.Decide(d)
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
	if !decision.Allowed {
		x.end(Denied, "egress", text, details...)
		return false
	}
	x.say("egress", text, details...)
	return true
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
			if port.Protocol == mesh.EgressHTTP {
				text = cmp.Or(lack(host.Matches, d.Request), text)
			}
			details = append(details, host.Host+" is open for "+text)
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
