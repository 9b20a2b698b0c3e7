package identity

import (
	"bytes"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/mesh"
)

func TestSubject(t *testing.T) {
	const uid = "6f1c1c4e-8c0f-4b57-9a77-0a3c1f1f2f10"
	// Package mesh defines how names that need escaping or hashing appear in the request.
	for _, identity := range []mesh.Identity{
		{TrustDomain: "cluster.local", Namespace: "a", ServiceAccount: strings.Repeat("long", 40)},
		{TrustDomain: "a.example", Namespace: "a", ServiceAccount: "b..c"},
	} {
		key, err := pki.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		s := subject{identity, uid}
		der, err := s.request(key)
		if err != nil {
			t.Fatal(err)
		}
		r, err := x509.ParseCertificateRequest(der)
		if err != nil {
			t.Fatal(err)
		}
		got := []string{r.Subject.CommonName, r.Subject.OrganizationalUnit[0], r.URIs[0].String(), r.DNSNames[0]}
		if diff := cmp.Diff([]string{identity.CommonName(), uid, identity.String(), identity.DNSName()}, got); diff != "" {
			t.Errorf("request (-want +got):\n%s", diff)
		}
	}
}

func TestPrivateKeysHideThemselves(t *testing.T) {
	private, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	text, err := pki.EncodeKey(private)
	if err != nil {
		t.Fatal(err)
	}
	key := keyPEM(text)
	var printed bytes.Buffer
	m := material{key: key}
	slog.New(slog.NewJSONHandler(&printed, nil)).Info("x", "key", key, "material", m)
	slog.New(slog.NewTextHandler(&printed, nil)).Info("x", "key", key, "material", m)
	text, err = json.Marshal(key)
	if err != nil {
		t.Fatal(err)
	}
	printed.Write(text)
	fmt.Fprintf(&printed, "%v %+v %#v %s %q %x %v", key, m, key, key, m, key, struct{ a any }{&m})
	secrets := append(strings.Split(strings.TrimSpace(string([]byte(key))), "\n"), fmt.Sprint([]byte(key))[1:50], hex.EncodeToString(key)[:50])
	for _, secret := range secrets {
		if strings.Contains(printed.String(), secret) {
			t.Errorf("%q is shown: %s", secret, printed.String())
		}
	}
}
