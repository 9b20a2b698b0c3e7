package capture

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

const (
	appUID   = 1000
	proxyUID = DefaultUID
)

// call is a connection and its expected result.
type call struct {
	what string
	// from is the client: the app, the proxy or the neighbour; source is its address, if
	// that matters.
	from, source string
	to           string
	want         string
}

// TestTraffic makes real connections through the rules.
func TestTraffic(t *testing.T) {
	for _, tt := range []struct {
		name        string
		redirection agentspec.Redirection
		options     Options
		calls       []call
	}{
		{
			name: "everything",
			calls: []call{
				{what: "the app calls a service", from: "app", to: "198.19.0.1:80", want: "outbound from 10.1.0.1 to 198.19.0.1:80"},
				{what: "the app calls a service by IPv6", from: "app", to: "[fd02::1]:80", want: "outbound from fd01::1 to [fd02::1]:80"},
				{what: "the proxy calls a service", from: "proxy", to: "198.19.0.1:80", want: "neighbour from 10.1.0.1"},
				{what: "the proxy calls a service by IPv6", from: "proxy", to: "[fd02::1]:80", want: "neighbour from fd01::1"},
				{what: "the app calls itself on localhost", from: "app", to: "127.0.0.1:8080", want: "app from 127.0.0.1"},
				{what: "the app calls itself on localhost by IPv6", from: "app", to: "[::1]:8080", want: "app from ::1"},
				{what: "the app calls its own address", from: "app", to: "10.1.0.1:8080", want: "app from 10.1.0.1"},
				{what: "the app calls its own address by IPv6", from: "app", to: "[fd01::1]:8080", want: "app from fd01::1"},
				{what: "the proxy calls its own pod", from: "proxy", to: "10.1.0.1:8080", want: "inbound from 10.1.0.1 to 10.1.0.1:8080"},
				{what: "the proxy calls its own pod by IPv6", from: "proxy", to: "[fd01::1]:8080", want: "inbound from fd01::1 to [fd01::1]:8080"},
				{what: "the proxy calls localhost", from: "proxy", to: "127.0.0.1:8080", want: "app from 127.0.0.1"},
				{what: "the proxy calls localhost by IPv6", from: "proxy", to: "[::1]:8080", want: "app from ::1"},
				{what: "the inbound side calls the app", from: "proxy", source: "127.0.0.6", to: "10.1.0.1:8080", want: "app from 127.0.0.6"},
				{what: "the inbound side calls the app by IPv6", from: "proxy", source: "::6", to: "[fd01::1]:8080", want: "app from ::6"},
				{what: "the proxy's metrics are asked for in the pod", from: "proxy", to: "10.1.0.1:15010", want: "open from 10.1.0.1"},
				{what: "a neighbour calls the app", from: "neighbour", to: "10.1.0.1:8080", want: "inbound from 10.1.0.2 to 10.1.0.1:8080"},
				{what: "a neighbour calls the app by IPv6", from: "neighbour", to: "[fd01::1]:8080", want: "inbound from fd01::2 to [fd01::1]:8080"},
				{what: "a neighbour asks for metrics", from: "neighbour", to: "10.1.0.1:15010", want: "open from 10.1.0.2"},
				{what: "a neighbour probes", from: "neighbour", to: "10.1.0.1:15901", want: "open from 10.1.0.2"},
				{what: "a neighbour probes by IPv6", from: "neighbour", to: "[fd01::1]:15901", want: "open from fd01::2"},
				{what: "a neighbour calls what only localhost has", from: "neighbour", to: "10.1.0.1:15000", want: "inbound from 10.1.0.2 to 10.1.0.1:15000"},

				{what: "the outbound port, in the pod", from: "app", to: "127.0.0.1:15001", want: "refused"},
				{what: "the outbound port, in the pod, by IPv6", from: "app", to: "[::1]:15001", want: "refused"},
				{what: "the inbound port, in the pod", from: "app", to: "10.1.0.1:15003", want: "refused"},
				{what: "the inbound side calls itself", from: "proxy", source: "127.0.0.6", to: "10.1.0.1:15003", want: "refused"},
				{what: "the inbound side calls the outbound side", from: "proxy", source: "::6", to: "[fd01::1]:15001", want: "refused"},
				{what: "the inbound port, from outside", from: "neighbour", to: "10.1.0.1:15003", want: "refused"},
				{what: "the inbound port, from outside, by IPv6", from: "neighbour", to: "[fd01::1]:15003", want: "refused"},
				{what: "the outbound port, from outside", from: "neighbour", to: "10.1.0.1:15001", want: "inbound from 10.1.0.2 to 10.1.0.1:15001"},
			},
		},
		{
			name: "ports",
			redirection: agentspec.Redirection{
				ExcludeInboundPorts: []int{8080}, ExcludeOutboundPorts: []int{80, 81},
			},
			calls: []call{
				{from: "neighbour", to: "10.1.0.1:8080", want: "app from 10.1.0.2"},
				{from: "neighbour", to: "10.1.0.1:8081", want: "inbound from 10.1.0.2 to 10.1.0.1:8081"},
				{what: "a port without redirection, from the pod itself", from: "proxy", to: "10.1.0.1:8080", want: "app from 10.1.0.1"},
				{from: "app", to: "198.19.0.1:80", want: "neighbour from 10.1.0.1"},
				{from: "app", to: "[fd02::1]:81", want: "neighbour from fd01::1"},
				{from: "app", to: "198.19.0.1:82", want: "outbound from 10.1.0.1 to 198.19.0.1:82"},
			},
		},
		{
			name: "included ports",
			redirection: agentspec.Redirection{
				IncludeInboundPorts: []int{8081, 8082}, ExcludeInboundPorts: []int{8082},
				IncludeOutboundPorts: []int{80, 81}, ExcludeOutboundPorts: []int{81},
			},
			calls: []call{
				{from: "neighbour", to: "10.1.0.1:8080", want: "app from 10.1.0.2"},
				{from: "neighbour", to: "10.1.0.1:8081", want: "inbound from 10.1.0.2 to 10.1.0.1:8081"},
				{from: "neighbour", to: "10.1.0.1:8082", want: "app from 10.1.0.2"},
				{what: "a port with redirection, from the pod itself", from: "proxy", to: "10.1.0.1:8081", want: "inbound from 10.1.0.1 to 10.1.0.1:8081"},
				{what: "a port without redirection, from the pod itself", from: "proxy", to: "10.1.0.1:8080", want: "app from 10.1.0.1"},
				{from: "app", to: "198.19.0.1:80", want: "outbound from 10.1.0.1 to 198.19.0.1:80"},
				{from: "app", to: "198.19.0.1:81", want: "neighbour from 10.1.0.1"},
				{from: "app", to: "[fd02::1]:82", want: "neighbour from fd01::1"},
			},
		},
		{
			name:        "ranges",
			redirection: agentspec.Redirection{ExcludeOutboundRanges: []string{"198.19.0.1/32", "198.18.0.0/16", "198.18.7.0/24", "fd02::/16"}},
			calls: []call{
				{from: "app", to: "198.19.0.1:80", want: "neighbour from 10.1.0.1"},
				{from: "app", to: "198.19.0.2:80", want: "outbound from 10.1.0.1 to 198.19.0.2:80"},
				{what: "the end of a range with another inside", from: "app", to: "198.18.255.255:80", want: "neighbour from 10.1.0.1"},
				{from: "app", to: "[fd02::1]:80", want: "neighbour from fd01::1"},
				{from: "app", to: "[fd01::2]:80", want: "outbound from fd01::1 to [fd01::2]:80"},
			},
		},
		{
			name:        "included ranges",
			redirection: agentspec.Redirection{IncludeOutboundRanges: []string{"198.19.0.0/24"}, ExcludeOutboundRanges: []string{"198.19.0.2/32"}},
			calls: []call{
				{from: "app", to: "198.19.0.1:80", want: "outbound from 10.1.0.1 to 198.19.0.1:80"},
				{from: "app", to: "198.19.0.2:80", want: "neighbour from 10.1.0.1"},
				{from: "app", to: "10.1.0.2:80", want: "neighbour from 10.1.0.1"},
				{what: "no range of the family is included", from: "app", to: "[fd02::1]:80", want: "neighbour from fd01::1"},
			},
		},
		{
			name: "included ranges and ports",
			redirection: agentspec.Redirection{
				IncludeOutboundRanges: []string{"198.19.0.0/24"}, IncludeOutboundPorts: []int{81, 82},
				ExcludeOutboundRanges: []string{"198.19.0.2/32"}, ExcludeOutboundPorts: []int{82},
			},
			calls: []call{
				{what: "an included range", from: "app", to: "198.19.0.1:80", want: "outbound from 10.1.0.1 to 198.19.0.1:80"},
				{what: "an included port elsewhere", from: "app", to: "10.1.0.2:81", want: "outbound from 10.1.0.1 to 10.1.0.2:81"},
				{what: "an included port of another family", from: "app", to: "[fd02::1]:81", want: "outbound from fd01::1 to [fd02::1]:81"},
				{what: "neither of the two", from: "app", to: "10.1.0.2:80", want: "neighbour from 10.1.0.1"},
				{what: "neither of the two by IPv6", from: "app", to: "[fd02::1]:80", want: "neighbour from fd01::1"},
				{what: "an included port in an excluded range", from: "app", to: "198.19.0.2:81", want: "neighbour from 10.1.0.1"},
				{what: "an excluded port in an included range", from: "app", to: "198.19.0.1:82", want: "neighbour from 10.1.0.1"},
			},
		},
		{
			name:        "all ranges",
			redirection: agentspec.Redirection{IncludeOutboundRanges: []string{"0.0.0.0/0", "::/0"}},
			calls: []call{
				{from: "app", to: "198.19.0.1:80", want: "outbound from 10.1.0.1 to 198.19.0.1:80"},
				{from: "app", to: "[fd02::1]:80", want: "outbound from fd01::1 to [fd02::1]:80"},
			},
		},
		{
			name:        "no inbound",
			redirection: agentspec.Redirection{DisableInbound: true},
			calls: []call{
				{from: "neighbour", to: "10.1.0.1:8080", want: "app from 10.1.0.2"},
				{from: "proxy", to: "10.1.0.1:8080", want: "app from 10.1.0.1"},
				{from: "app", to: "198.19.0.1:80", want: "outbound from 10.1.0.1 to 198.19.0.1:80"},
				{from: "neighbour", to: "10.1.0.1:15001", want: "refused"},
			},
		},
		{
			name:        "no outbound",
			redirection: agentspec.Redirection{DisableOutbound: true},
			calls: []call{
				{from: "neighbour", to: "10.1.0.1:8080", want: "inbound from 10.1.0.2 to 10.1.0.1:8080"},
				{from: "app", to: "198.19.0.1:80", want: "neighbour from 10.1.0.1"},
				{from: "proxy", source: "127.0.0.6", to: "10.1.0.1:8080", want: "app from 127.0.0.6"},
			},
		},
		{
			name:        "interfaces",
			redirection: agentspec.Redirection{ExcludeInterfaces: []string{"eth0"}},
			calls: []call{
				{from: "neighbour", to: "10.1.0.1:8080", want: "app from 10.1.0.2"},
				{from: "app", to: "198.19.0.1:80", want: "neighbour from 10.1.0.1"},
				{from: "neighbour", to: "10.1.0.1:15003", want: "refused"},
			},
		},
		{
			name:    "name servers",
			options: Options{DNS: []netip.Addr{netip.MustParseAddr("198.19.0.1"), netip.MustParseAddr("fd02::1")}},
			calls: []call{
				{from: "app", to: "198.19.0.1:53", want: "neighbour from 10.1.0.1"},
				{from: "app", to: "[fd02::1]:53", want: "neighbour from fd01::1"},
				{from: "app", to: "198.19.0.1:80", want: "outbound from 10.1.0.1 to 198.19.0.1:80"},
				{from: "app", to: "198.19.0.2:53", want: "outbound from 10.1.0.1 to 198.19.0.2:53"},
			},
		},
		{
			name:        "translated",
			redirection: agentspec.Redirection{TranslateIPv6: true},
			calls: []call{
				{what: "the app calls a service", from: "app", to: "198.19.0.1:80", want: "outbound from 10.1.0.1 to 198.19.0.1:80"},
				{what: "a neighbour calls the app", from: "neighbour", to: "10.1.0.1:8080", want: "inbound from 10.1.0.2 to 10.1.0.1:8080"},
				{what: "the app calls a service by IPv6", from: "app", to: "[fd02::1]:80", want: "outbound from fdc6:e81b:fd02:: on fdc6:e81b::1:50:0 to [fd02::1]:80"},
				{what: "all bytes of an address", from: "app", to: "[2001:db8:3:4:5:6:7:8]:65535", want: "outbound from fdc6:e81b:2001:db8:3:4:: on fdc6:e81b:5:6:7:8:ffff:0 to [2001:db8:3:4:5:6:7:8]:65535"},
				{what: "the proxy calls a service by IPv6", from: "proxy", to: "[fd02::1]:80", want: "neighbour from fd01::1"},
				{what: "the app calls its own address by IPv6", from: "app", to: "[fd01::1]:8080", want: "app from fd01::1"},
				{what: "the proxy calls its own pod by IPv6", from: "proxy", to: "[fd01::1]:8080", want: "inbound from fd01::1 on fdc6:e81b::1:1f90:0 to [fd01::1]:8080"},
				{what: "the inbound side calls the app by IPv6", from: "proxy", source: "::6", to: "[fd01::1]:8080", want: "app from ::6"},
				{what: "a neighbour calls the app by IPv6", from: "neighbour", to: "[fd01::1]:8080", want: "inbound from fd01::2 on fdc6:e81b::1:1f90:0 to [fd01::1]:8080"},
				{what: "the outbound port, in the pod, by IPv6", from: "app", to: "[::1]:15001", want: "refused"},
				{what: "the outbound port, at a translated address", from: "app", to: "[fdc6:e81b::1:50:0]:15001", want: "refused"},
				{what: "the inbound side calls the outbound side at a translated address", from: "proxy", source: "::6", to: "[fdc6:e81b::1:50:0]:15001", want: "refused"},
				{what: "the inbound port, from outside, by IPv6", from: "neighbour", to: "[fd01::1]:15003", want: "refused"},
				{what: "the outbound port, from outside, by IPv6", from: "neighbour", to: "[fd01::1]:15001", want: "inbound from fd01::2 on fdc6:e81b::1:3a99:0 to [fd01::1]:15001"},
			},
		},
		{
			name: "translated, some",
			redirection: agentspec.Redirection{
				TranslateIPv6: true, IncludeOutboundPorts: []int{81}, IncludeOutboundRanges: []string{"fd02::/16", "198.19.0.1/32"},
				ExcludeOutboundRanges: []string{"fd02::2/128"}, IncludeInboundPorts: []int{8080},
			},
			options: Options{DNS: []netip.Addr{netip.MustParseAddr("fd02::1")}},
			calls: []call{
				{from: "app", to: "[fd02::1]:80", want: "outbound from fdc6:e81b:fd02:: on fdc6:e81b::1:50:0 to [fd02::1]:80"},
				{from: "app", to: "[fd01::2]:81", want: "outbound from fdc6:e81b:fd01:: on fdc6:e81b::2:51:0 to [fd01::2]:81"},
				{from: "app", to: "198.19.0.1:80", want: "outbound from 10.1.0.1 to 198.19.0.1:80"},
				{from: "app", to: "198.19.0.2:81", want: "outbound from 10.1.0.1 to 198.19.0.2:81"},
				{from: "app", to: "[fd02::1]:53", want: "neighbour from fd01::1"},
				{from: "app", to: "[fd01::2]:80", want: "neighbour from fd01::1"},
				{from: "neighbour", to: "[fd01::1]:8080", want: "inbound from fd01::2 on fdc6:e81b::1:1f90:0 to [fd01::1]:8080"},
				{from: "neighbour", to: "[fd01::1]:8081", want: "app from fd01::2"},
			},
		},
		{
			name:        "translated, no outbound",
			redirection: agentspec.Redirection{TranslateIPv6: true, DisableOutbound: true},
			calls: []call{
				{from: "app", to: "[fd02::1]:80", want: "neighbour from fd01::1"},
				{from: "neighbour", to: "[fd01::1]:8080", want: "inbound from fd01::2 on fdc6:e81b::1:1f90:0 to [fd01::1]:8080"},
			},
		},
		{
			name:    "another user",
			options: Options{UID: appUID},
			calls: []call{
				{from: "proxy", to: "198.19.0.1:80", want: "outbound from 10.1.0.1 to 198.19.0.1:80"},
				{from: "app", to: "198.19.0.1:80", want: "neighbour from 10.1.0.1"},
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod, neighbour := newPair(t)
			tt.options.NetNS = pod.path()
			if tt.options.DNS == nil {
				tt.options.DNS = []netip.Addr{}
			}
			if err := Apply(tt.redirection, tt.options); err != nil {
				t.Fatal(err)
			}
			pod.listen("outbound", OutboundPort)
			pod.listen("inbound", InboundPort)
			pod.listen("open", openPorts...)
			pod.listen("app", 8080, 8081, 8082)
			neighbour.listen("neighbour", 53, 80, 81, 82)
			var with6 bool
			pod.do(func() error { with6 = hasIPv6(); return nil })
			for _, c := range tt.calls {
				if strings.Contains(c.to, "[") && !with6 {
					t.Log("SKIPPED: IPv6 is switched off here:", c.to)
					continue
				}
				from, uid := pod, appUID
				switch c.from {
				case "neighbour":
					from = neighbour
				case "proxy":
					uid = proxyUID
				}
				if got := from.ask(uid, c.source, c.to); got != c.want {
					t.Errorf("%s: %s to %s: got %q, want %q", c.what, c.from, c.to, got, c.want)
				}
			}
		})
	}
}
