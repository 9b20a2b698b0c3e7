package driver_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// TestPeerEndsWithItsChain: a certificate expires with the certificates of its chain.
func TestPeerEndsWithItsChain(t *testing.T) {
	now := time.Now()
	until := func(hours int) *x509.Certificate {
		return &x509.Certificate{
			NotAfter: now.Add(time.Duration(hours) * time.Hour), Subject: pkix.Name{OrganizationalUnit: []string{"uid"}},
			URIs: []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/shop/sa/cart"}},
		}
	}
	for name, tt := range map[string]struct {
		chains [][]*x509.Certificate
		want   int
	}{
		"the certificate ends first": {[][]*x509.Certificate{{until(1), until(2), until(3)}}, 1},
		"an intermediate":            {[][]*x509.Certificate{{until(2), until(1), until(3)}}, 1},
		"the root":                   {[][]*x509.Certificate{{until(2), until(3), until(1)}}, 1},
		"another chain goes on":      {[][]*x509.Certificate{{until(3), until(1)}, {until(3), until(2)}}, 2},
	} {
		peer, err := driver.PeerOf(&tls.ConnectionState{VerifiedChains: tt.chains})
		if want := now.Add(time.Duration(tt.want) * time.Hour); err != nil || !peer.NotAfter.Equal(want) {
			t.Errorf("%s: it ends at %v, %v, want %v", name, peer.NotAfter, err, want)
		}
	}
}
