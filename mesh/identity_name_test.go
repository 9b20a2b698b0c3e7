package mesh_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"math/big"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestHashIsNoName compares an account whose name is hashed with accounts that are called
// like parts of that hash.
func TestHashIsNoName(t *testing.T) {
	long := mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: strings.Repeat("long", 40)}
	for name, of := range map[string]func(mesh.Identity) string{"DNS name": mesh.Identity.DNSName, "common name": mesh.Identity.CommonName} {
		labels := strings.Split(of(long), ".")
		for i := range labels {
			for j := i + 1; j <= len(labels); j++ {
				for _, namespace := range append([]string{"shop", "sa", "other"}, labels...) {
					twin := mesh.Identity{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: strings.Join(labels[i:j], ".")}
					if of(twin) == of(long) {
						t.Errorf("the service accounts %s/%s and %s/%s share the %s %s",
							long.Namespace, long.ServiceAccount, twin.Namespace, twin.ServiceAccount, name, of(long))
					}
				}
			}
		}
	}
}

// TestNamesOfStrangeParts uses names that occur in a folder of manifests but not in a
// cluster.
func TestNamesOfStrangeParts(t *testing.T) {
	seen := make(map[string]mesh.Identity)
	for _, parts := range [][2]string{
		{"c", "a.b"}, {"b.c", "a"}, {"c", "A.b"}, {"c", "a_b"}, {"C", "a.b"}, {"c", ""}, {"", "c"}, {"c.", "a"}, {"c", "a."},
		{"c", ".a"}, {"c", "-a"}, {"c", "a-"}, {"c", "a..b"}, {"c", "a/b"}, {"c/a", "b"}, {"c", "a\x00b"}, {"c", "ä"}, {"-c", "a"},
		{strings.Repeat("c", 64), "a"}, {"c", "*"}, {"c", "*.a"}, {strings.Repeat("c", 63), strings.Repeat("a.", 126) + "a"},
	} {
		id := mesh.Identity{TrustDomain: "td", Namespace: parts[0], ServiceAccount: parts[1]}
		checkNames(t, id)
		for _, name := range []string{id.DNSName(), id.CommonName()} {
			if twin, ok := seen[name]; ok {
				t.Errorf("%s and %s share the name %s", id, twin, name)
			}
			seen[name] = id
		}
	}
}

// TestNamesAreVerified verifies certificates of each form as a host name with package
// x509, which is at least as strict as other TLS stacks.
func TestNamesAreVerified(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, account := range []string{"a", "a.b", strings.Repeat("a", 64), strings.Repeat("a.", 126) + "a"} {
		id := mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: account}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{id.DNSName()}, NotAfter: time.Now().Add(time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		if err := cert.VerifyHostname(id.DNSName()); err != nil {
			t.Errorf("account %s: %v", account, err)
		}
	}
}

// FuzzNames checks that two different service accounts never share a name.
func FuzzNames(f *testing.F) {
	f.Add("shop", "cart", "shop", "cart.v2")
	f.Add("c", "a.b", "b.c", "a")
	f.Add("c", "a", "c", "A")
	f.Add("shop", strings.Repeat("a", 64), "shop", "ffe054fe7ae0cb6dc65c3af9b61d5209f439851d")
	f.Add("shop", strings.Repeat("a", 64), "other", strings.Repeat("a", 64))
	f.Fuzz(func(t *testing.T, namespace, account, otherNamespace, otherAccount string) {
		one := mesh.Identity{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: account}
		other := mesh.Identity{TrustDomain: "cluster.local", Namespace: otherNamespace, ServiceAccount: otherAccount}
		checkNames(t, one)
		if one == other {
			return
		}
		if strings.EqualFold(one.DNSName(), other.DNSName()) {
			t.Errorf("%q and %q share the DNS name %s", one, other, one.DNSName())
		}
		if strings.EqualFold(one.CommonName(), other.CommonName()) {
			t.Errorf("%q and %q share the common name %s", one, other, one.CommonName())
		}
	})
}

var hostName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$`)

// checkNames checks that every TLS stack and proxy accepts the names.
func checkNames(t *testing.T, id mesh.Identity) {
	t.Helper()
	dns, cn := id.DNSName(), id.CommonName()
	if len(dns) > 253 || !hostName.MatchString(dns) || !strings.HasSuffix(dns, ".sa."+id.TrustDomain) {
		t.Errorf("%q has the DNS name %q (%d bytes)", id, dns, len(dns))
	}
	if len(cn) > 64 || !hostName.MatchString(cn) {
		t.Errorf("%q has the common name %q (%d bytes)", id, cn, len(cn))
	}
}
