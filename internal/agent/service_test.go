package agent

import (
	"bytes"
	"context"
	"crypto/x509"
	"net"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// TestWithTheController rotates the mesh's root, with the controller's own signing service,
// while the agent runs.
func TestWithTheController(t *testing.T) {
	t.Parallel()
	authority := func(name string) (*issuer.CA, []byte) {
		cert, key, err := issuer.NewRoot(name, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		ca, err := issuer.FromPEM(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		return ca, cert
	}
	first, firstRoot := authority("first")
	second, secondRoot := authority("second")
	manager, err := identity.NewManager(identity.Options{
		DNSNames: []string{controllerHost}, TrustDomain: func() string { return podIdentity.TrustDomain },
		Life: func() time.Duration { return 24 * time.Hour }, Log: discard,
	})
	if err != nil {
		t.Fatal(err)
	}
	manager.SetTrust(&issuer.Trust{Signing: first, Roots: certificates(t, firstRoot)})
	tokens, err := identity.LoadTokenKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	service, err := identity.NewService(identity.ServiceOptions{Manager: manager, Reviewer: tokens, Log: discard})
	if err != nil {
		t.Fatal(err)
	}

	p := newPod(t)
	listener, err := net.Listen("tcp", p.ip+":15129")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go manager.Run(ctx)
	go func() { served <- service.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	<-manager.Ready()
	p.write("ca.crt", string(firstRoot))

	// Another workload's token gets no certificate.
	mint := func(podUID string) string {
		token, err := tokens.Mint(identity.TokenClaims{
			Namespace: podIdentity.Namespace, ServiceAccount: podIdentity.ServiceAccount,
			Pod: p.env[agentspec.EnvPodName], PodUID: podUID, Audience: identity.Audience, NotAfter: time.Now().Add(time.Hour),
		})
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	p.write("token", mint("another"))
	p.start()
	p.until("refused", func() bool {
		return p.metric(`outrigger_agent_certificate_failures_total{reason="invalid_argument"}`) != ""
	})
	p.write("token", mint(podUID))
	p.untilReady()
	before := p.mustIdentity().leaf

	// The new root is first published, then signs, then is the only one.
	trusts := func(want ...[]byte) func() bool {
		return func() bool {
			parsed, err := pki.ParseRoots([]byte(p.read("identity/bundle.pem")))
			roots := pki.NewBundle(parsed...)
			if err != nil || len(roots) != len(want) {
				return false
			}
			for _, text := range want {
				r, err := pki.ParseRoots(text)
				if err != nil || !roots.Has(r[0]) {
					return false
				}
			}
			return true
		}
	}
	manager.SetTrust(&issuer.Trust{Signing: first, Roots: certificates(t, firstRoot, secondRoot)})
	p.write("ca.crt", string(firstRoot)+string(secondRoot))
	p.until("trusting both", trusts(firstRoot, secondRoot))
	manager.SetTrust(&issuer.Trust{Signing: second, Roots: certificates(t, secondRoot)})
	p.until("a controller with one root", func() bool { return bytes.Equal(manager.TrustBundle(), secondRoot) })
	p.write("ca.crt", string(secondRoot))
	p.until("a certificate of the new root", func() bool {
		f, err := p.identity()
		return err == nil && !f.leaf.Equal(before) && f.leaf.Issuer.CommonName == "second" && trusts(secondRoot)()
	})
	if !p.isReady() {
		t.Error("not ready after the rotation")
	}
}

// certificates parses PEM.
func certificates(t *testing.T, texts ...[]byte) []*x509.Certificate {
	t.Helper()
	certs, err := pki.Parse(bytes.Join(texts, nil))
	if err != nil {
		t.Fatal(err)
	}
	return certs
}
