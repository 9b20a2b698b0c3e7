package mesh

import (
	"net/netip"
	"testing"
)

func TestRedirection(t *testing.T) {
	ranges := func(texts ...string) (made []netip.Prefix) {
		for _, text := range texts {
			made = append(made, netip.MustParsePrefix(text))
		}
		return made
	}
	for _, tt := range []struct {
		name string
		Redirection
		to   string
		want bool
	}{
		{"everything", Redirection{}, "192.0.2.1:80", true},
		{"disabled", Redirection{DisableOutbound: true}, "192.0.2.1:80", false},
		{"excluded port", Redirection{ExcludeOutbound: []uint16{80}}, "192.0.2.1:80", false},
		{"another port", Redirection{ExcludeOutbound: []uint16{80}}, "192.0.2.1:81", true},
		{"excluded range", Redirection{ExcludeRanges: ranges("192.0.2.0/24")}, "192.0.2.1:80", false},
		{"another range", Redirection{ExcludeRanges: ranges("192.0.2.0/24")}, "192.0.3.1:80", true},
		{"included port", Redirection{IncludeOutbound: []uint16{80}}, "192.0.2.1:80", true},
		{"no included port", Redirection{IncludeOutbound: []uint16{80}}, "192.0.2.1:81", false},
		{"included range", Redirection{IncludeRanges: ranges("192.0.2.0/24")}, "192.0.2.1:80", true},
		{"no included range", Redirection{IncludeRanges: ranges("192.0.2.0/24")}, "[2001:db8::1]:80", false},
		{"included port outside of the ranges", Redirection{IncludeOutbound: []uint16{80}, IncludeRanges: ranges("192.0.2.0/24")}, "192.0.3.1:80", true},
		{"another port within the ranges", Redirection{IncludeOutbound: []uint16{80}, IncludeRanges: ranges("192.0.2.0/24")}, "192.0.2.1:81", true},
		{"neither", Redirection{IncludeOutbound: []uint16{80}, IncludeRanges: ranges("192.0.2.0/24")}, "192.0.3.1:81", false},
		{"excluded port that is included", Redirection{ExcludeOutbound: []uint16{80}, IncludeOutbound: []uint16{80}}, "192.0.2.1:80", false},
	} {
		to := netip.MustParseAddrPort(tt.to)
		if got := tt.TakesOutbound(to); got != tt.want {
			t.Errorf("%s: %s is taken: %t, want %t", tt.name, to, got, tt.want)
		}
		if tt.want && !tt.TakesOutboundPort(to.Port()) {
			t.Errorf("%s: %s is taken, and its port is at no address", tt.name, to)
		}
	}
	in := Redirection{ExcludeInbound: []uint16{22}, IncludeInbound: []uint16{22, 80}}
	for port, want := range map[uint16]bool{22: false, 80: true, 81: false} {
		if got := in.TakesInbound(port); got != want {
			t.Errorf("port %d is taken: %t, want %t", port, got, want)
		}
	}
}
