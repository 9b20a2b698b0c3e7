package mesh_test

import (
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
)

func TestIdentityNames(t *testing.T) {
	tests := []struct {
		name         string
		id           mesh.Identity
		uri, dns, cn string
	}{
		{
			name: "plain",
			id:   mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"},
			uri:  "spiffe://cluster.local/ns/shop/sa/cart",
			dns:  "cart.shop.sa.cluster.local",
			cn:   "cart.shop",
		},
		{
			name: "service account with dots",
			id:   mesh.Identity{TrustDomain: "td", Namespace: "shop", ServiceAccount: "cart.v2"},
			uri:  "spiffe://td/ns/shop/sa/cart.v2",
			dns:  "cart.v2.shop.sa.td",
			cn:   "cart.v2.shop",
		},
		{
			name: "label too long for DNS and name too long for a common name",
			id:   mesh.Identity{TrustDomain: "td", Namespace: "shop", ServiceAccount: strings.Repeat("a", 64)},
			uri:  "spiffe://td/ns/shop/sa/" + strings.Repeat("a", 64),
			dns:  "a3z3gc4nrsm6r2htb33w42rfydm5wvhp76zmoucysk27v3ir6oaa.sa.td",
			cn:   "a3z3gc4nrsm6r2htb33w42rfydm5wvhp76zmoucysk27v3ir6oaa",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.id.String(); got != tt.uri {
				t.Errorf("String() = %q, want %q", got, tt.uri)
			}
			if got := tt.id.DNSName(); got != tt.dns {
				t.Errorf("DNSName() = %q, want %q", got, tt.dns)
			}
			if got := tt.id.CommonName(); got != tt.cn {
				t.Errorf("CommonName() = %q, want %q", got, tt.cn)
			}
			back, err := mesh.ParseIdentity(tt.uri)
			if err != nil || back != tt.id {
				t.Errorf("ParseIdentity(%q) = %v, %v, want %v", tt.uri, back, err, tt.id)
			}
		})
	}
}

func TestParseIdentityRefuses(t *testing.T) {
	for _, s := range []string{
		"", "spiffe://", "cart.shop", "spiffe://td/ns/shop", "spiffe://td/ns/shop/sa/", "spiffe://td/ns//sa/x",
		"spiffe:///ns/shop/sa/x", "spiffe://td/sa/x/ns/shop", "spiffe://td/ns/shop/sa/x/y", "http://td/ns/shop/sa/x",
	} {
		if id, err := mesh.ParseIdentity(s); err == nil {
			t.Errorf("ParseIdentity(%q) = %v, want an error", s, id)
		}
	}
}

func TestProblemString(t *testing.T) {
	p := mesh.Problem{
		Object: mesh.ObjectRef{Kind: "MeshConfig", Namespace: "osm-system", Name: "osm-mesh-config"},
		Reason: "UnknownClass", Field: "spec.sidecar.sidecarClass", Message: "no driver is called \"x\"",
	}
	want := `MeshConfig osm-system/osm-mesh-config: UnknownClass: spec.sidecar.sidecarClass: no driver is called "x"`
	if got := p.String(); got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
}
