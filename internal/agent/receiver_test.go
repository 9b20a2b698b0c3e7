package agent

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// project replaces the files of a volume as the kubelet does.
func (p *pod) project(credential, roots []byte) {
	p.t.Helper()
	dir := p.path("certificate")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		p.t.Fatal(err)
	}
	state, err := os.MkdirTemp(dir, "..2026_")
	if err != nil {
		p.t.Fatal(err)
	}
	before, _ := os.Readlink(p.path("certificate/..data"))
	p.write("certificate/"+state[len(dir)+1:]+"/"+agentspec.CredentialFile, string(credential))
	p.write("certificate/"+state[len(dir)+1:]+"/"+agentspec.RootsFile, string(roots))
	if err := kit.ReplaceLink(state[len(dir)+1:], p.path("certificate/..data")); err != nil {
		p.t.Fatal(err)
	}
	if before != "" {
		_ = os.RemoveAll(p.path("certificate/" + before))
	}
}

// credential returns a key and the certificate that an authority signs for it.
func (p *pod) credential(a *authority, uid string) []byte {
	p.t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		p.t.Fatal(err)
	}
	text, err := pki.EncodeKey(key)
	if err != nil {
		p.t.Fatal(err)
	}
	uri, err := url.Parse(podIdentity.String())
	if err != nil {
		p.t.Fatal(err)
	}
	der, err := a.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: podIdentity.CommonName(), OrganizationalUnit: []string{uid}},
		URIs:    []*url.URL{uri}, DNSNames: []string{podIdentity.DNSName()},
	}, key.Public(), time.Hour)
	if err != nil {
		p.t.Fatal(err)
	}
	return append(text, certPEM(der)...)
}

// TestKubeletIssues has the kubelet issue and renew the certificate: the agent must not ask the
// signing service, and must use a new certificate and new roots.
func TestKubeletIssues(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.serve()
	first := p.credential(p.ca, podUID)
	p.project(first, bundleOf(p.ca))
	p.start("--certificate-dir", p.path("certificate"))
	p.untilReady()
	if got := p.read("identity/identity.pem"); got != string(first) {
		t.Error("the identity is not the kubelet's")
	}
	if info, err := os.Stat(p.path("identity/key.pem")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key has the mode %v, %v, want 0600", info.Mode(), err)
	}
	if strings.Contains(p.log.String(), "PRIVATE KEY") {
		t.Error("the key is in the log")
	}
	next := newAuthority(t, "next")
	second := p.credential(next, podUID)
	p.project(second, bundleOf(p.ca, next))
	p.until("renewed", func() bool { return p.read("identity/identity.pem") == string(second) })
	if got := p.read("identity/bundle.pem"); got != string(bundleOf(p.ca, next)) {
		t.Error("the roots are not the kubelet's")
	}
	// The same roots in another order, twice, and with comments are nothing new to a proxy.
	written, err := os.Readlink(p.path("identity/..data"))
	if err != nil {
		t.Fatal(err)
	}
	others := slices.Concat(bundleOf(next), []byte("# the former\r\n"), bytes.ReplaceAll(bundleOf(p.ca), []byte("\n"), []byte("\r\n")), bundleOf(next))
	p.project(second, others)
	time.Sleep(20 * testTimings.Poll)
	if again, err := os.Readlink(p.path("identity/..data")); err != nil || again != written {
		t.Errorf("the same roots in another order were written again: %s after %s, %v", again, written, err)
	}
	p.project(second, bundleOf(next))
	p.until("new roots", func() bool { return p.read("identity/bundle.pem") == string(bundleOf(next)) })
	if asked := p.service.asked(); len(asked) > 0 {
		t.Errorf("the signing service was asked %d times", len(asked))
	}
}

// TestKubeletIsChecked has the kubelet's files hold what is not the pod's identity: the former
// one stays.
func TestKubeletIsChecked(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	good := p.credential(p.ca, podUID)
	p.project(good, bundleOf(p.ca))
	p.start("--certificate-dir", p.path("certificate"))
	p.untilReady()
	other := newAuthority(t, "other")
	stranger := p.credential(p.ca, podUID)
	mixed := append(slices.Clone(good[:strings.Index(string(good), "-----BEGIN CERT")]), stranger[strings.Index(string(stranger), "-----BEGIN CERT"):]...)
	failures := 0.0
	for name, tt := range map[string]struct{ credential, roots []byte }{
		"of another pod":   {p.credential(p.ca, "other"), bundleOf(p.ca)},
		"of another root":  {p.credential(other, podUID), bundleOf(p.ca)},
		"for another key":  {mixed, bundleOf(p.ca)},
		"without roots":    {stranger, nil},
		"without a key":    {[]byte("none"), bundleOf(p.ca)},
		"with roots only":  {nil, bundleOf(p.ca)},
		"with a leaf root": {stranger, stranger[strings.Index(string(stranger), "-----BEGIN CERT"):]},
	} {
		p.project(tt.credential, tt.roots)
		p.until("counted: an identity "+name, func() bool {
			now := p.number(`outrigger_agent_certificate_failures_total{reason="answer"}`)
			grown := now > failures
			failures = max(failures, now)
			return grown
		})
		if p.read("identity/identity.pem") != string(good) {
			t.Fatalf("an identity %s is used", name)
		}
	}
	p.project(stranger, bundleOf(p.ca))
	p.until("renewed", func() bool { return p.read("identity/identity.pem") == string(stranger) })
}
