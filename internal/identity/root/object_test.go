package root_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/identity/store"
)

// says returns an object's state, conditions and Problems in a report.
func (w *testMesh) says(name string) string {
	for _, v := range w.Report().Verdicts {
		if v.Name != name {
			continue
		}
		all := []string{v.State}
		for _, c := range v.Conditions {
			all = append(all, fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason))
		}
		for _, p := range v.Problems {
			all = append(all, p.Reason+" "+p.Field)
		}
		return strings.Join(all, " ")
	}
	return "nothing"
}

func (w *testMesh) wantSays(name, want string) {
	w.t.Helper()
	eventually(w.t, func() string {
		if got := w.says(name); got != want {
			return fmt.Sprintf("of %s it says\n%s, want\n%s", name, got, want)
		}
		return ""
	})
}

// TestRotation follows the procedure in docs/identity.md, from the mesh's own CA to another
// and then to a third.
func TestRotation(t *testing.T) {
	inTestMesh(t, func(w *testMesh) {
		w.want("one", "one")
		w.put("new", "two")
		w.objects.set(tresor("new", passive))
		w.want("one", "one", "two")
		w.wantSays("new", "passive Signing=False/Passive Trusted=Unknown/Distributing Needed=False/NoCertificates")
		w.after(4*time.Minute, "one", "one", "two")
		w.wantSays("new", "passive Signing=False/Passive Trusted=True/Trusted Needed=False/NoCertificates")
		w.objects.set(tresor("new", active))
		w.want("two", "one", "two") // It is known, so there is nothing to wait for.
		w.wantSays("new", "active Signing=True/Signing Trusted=True/Trusted Needed=True/Signing")
		w.after(25*time.Hour, "two", "two")

		w.put("newer", "three")
		w.objects.set(tresor("new", active), tresor("newer", passive))
		w.after(4*time.Minute, "two", "three", "two")
		w.objects.set(tresor("new", passive), tresor("newer", active))
		w.want("three", "three", "two")
		w.wantSays("new", "passive Signing=False/Passive Trusted=True/Trusted Needed=True/CertificatesAlive")
		w.after(25*time.Hour, "three", "three", "two")
		w.wantSays("new", "passive Signing=False/Passive Trusted=True/Trusted Needed=False/NoCertificates")
		w.objects.set(tresor("newer", active))
		w.want("three", "three")
		w.noProblems(t)
	})
}

// TestHastyRotation does all steps of a rotation at once.
func TestHastyRotation(t *testing.T) {
	inTestMesh(t, func(w *testMesh) {
		w.put("a", "two")
		w.objects.set(tresor("a", active))
		w.want("one", "one", "two")
		w.wantSays("a", "passive Signing=False/Distributing Trusted=Unknown/Distributing Needed=False/NoCertificates")
		w.after(4*time.Minute, "two", "one", "two")
		// The old one is deleted when the new one is created.
		w.put("b", "three")
		w.objects.set(tresor("b", active))
		w.want("two", "one", "two", "three")
		w.restart()
		w.after(2*time.Minute, "two", "one", "two", "three")
		w.after(2*time.Minute, "three", "one", "two", "three")
		w.after(25*time.Hour, "three", "three")
	})
}

// TestTwoActive checks that of two active objects the older signs and both are trusted.
func TestTwoActive(t *testing.T) {
	inTestMesh(t, func(w *testMesh) {
		w.stop()
		if err := os.RemoveAll(w.dir); err != nil {
			t.Fatal(err)
		}
		w.put("z", "two")
		w.put("a", "three")
		w.objects.set(tresor("z", active), tresor("a", active))
		w.start()
		w.want("two", "three", "two")
		w.wantSays("z", "active Signing=True/Signing Trusted=True/Trusted Needed=True/Signing")
		w.wantSays("a", "passive Signing=False/OlderSigns Trusted=True/Trusted Needed=False/NoCertificates Conflict spec.intent")
		w.problem(t, "MeshRootCertificate osm-system/a: Conflict: spec.intent: MeshRootCertificate z is also active and older, so it signs")
		// The older one continues with its last CA when it breaks.
		put(t, w.dir, "z", map[string][]byte{"ca.crt": []byte("?")})
		w.problem(t, "MeshRootCertificate osm-system/z: Unusable: spec.provider.tresor.ca.secretRef")
		w.after(time.Hour, "two", "three", "two")
		w.restart()
		w.want("two", "three", "two")
		w.wantSays("z", "active Signing=True/Signing Trusted=True/Trusted Needed=True/Signing Unusable spec.provider.tresor.ca.secretRef")
		// A new mesh uses the other one.
		w.stop()
		if err := os.RemoveAll(filepath.Join(w.dir, "outrigger-ca-state")); err != nil {
			t.Fatal(err)
		}
		w.start()
		w.want("three", "three")
		w.wantSays("z", "error Signing=False/Unusable Trusted=False/NotTrusted Needed=False/NoCertificates Unusable spec.provider.tresor.ca.secretRef")
	})
}

// TestOnlyPassive checks that without an active object the mesh's own CA is created and signs.
func TestOnlyPassive(t *testing.T) {
	inTestMesh(t, func(w *testMesh) {
		w.stop()
		if err := os.RemoveAll(w.dir); err != nil {
			t.Fatal(err)
		}
		w.put("a", "two")
		w.objects.set(tresor("a", passive))
		w.start()
		eventually(t, func() string {
			signing, trusted := w.now(t)
			if strings.HasPrefix(signing, "outrigger-ca ") && len(trusted) == 2 {
				return ""
			}
			return fmt.Sprintf("%q signs and %q are trusted", signing, trusted)
		})
	})
}

// TestBrokenPassive checks that a passive root stays trusted when its Secret breaks.
func TestBrokenPassive(t *testing.T) {
	inTestMesh(t, func(w *testMesh) {
		w.put("a", "two")
		w.objects.set(tresor("a", passive))
		w.want("one", "one", "two")
		put(t, w.dir, "a", map[string][]byte{"ca.crt": []byte("?")})
		w.problem(t, "MeshRootCertificate osm-system/a: Unusable")
		w.after(time.Hour, "one", "one", "two")
		w.objects.set()
		w.want("one", "one")
	})
}

// TestTresorIsMade checks that the missing Secret of an object is created.
func TestTresorIsMade(t *testing.T) {
	inTestMesh(t, func(w *testMesh) {
		w.want("one", "one")
		w.objects.set(tresor("a", passive))
		eventually(t, func() string {
			if _, trusted := w.now(t); len(trusted) != 2 {
				return "there is no second root"
			}
			return ""
		})
		text, err := os.ReadFile(filepath.Join(w.dir, "a", "ca.crt"))
		if err != nil {
			t.Fatal(err)
		}
		w.want("one", "one", parse(t, text)[0].Subject.CommonName)
	})
}

// TestUnreadableObjects checks that nothing changes and no CA is created while the objects
// cannot be read.
func TestUnreadableObjects(t *testing.T) {
	inTestMesh(t, func(w *testMesh) {
		w.put("a", "two")
		w.objects.set(tresor("a", active))
		w.after(5*time.Minute, "two", "one", "two")
		w.objects.fail(errors.New("the API server is away"))
		w.objects.set()
		w.after(26*time.Hour, "two", "one", "two")
		w.objects.fail(nil)
		w.objects.set(tresor("a", active))
		w.want("two", "two")
	})
	inTestMesh(t, func(w *testMesh) {
		w.stop()
		if err := os.RemoveAll(w.dir); err != nil {
			t.Fatal(err)
		}
		again, err := store.NewDir(w.dir)
		if err != nil {
			t.Fatal(err)
		}
		w.store = again
		w.objects.fail(errors.New("the API server is away"))
		w.start()
		time.Sleep(time.Minute)
		if entries, err := os.ReadDir(w.dir); err != nil || len(entries) > 0 {
			t.Errorf("there are %v, %v, want nothing", entries, err)
		}
		if err := w.Fault(); err == nil || !strings.Contains(err.Error(), "the API server is away") {
			t.Errorf("the fault is %v", err)
		}
	})
}

// TestElsewhere checks that cert-manager and Vault are used like the own CA.
func TestElsewhere(t *testing.T) {
	inTestMesh(t, func(w *testMesh) {
		w.elsewhere["issuer"], w.elsewhere["role"] = newRemote(t, "cm"), newRemote(t, "vault")
		put(t, w.dir, "vault-token", map[string][]byte{"token": []byte("sesame")})
		w.objects.set(certManager("issuer", active), vault("role", passive))
		w.want("one", "one", "cm", "vault")
		w.after(4*time.Minute, "cm", "one", "cm", "vault")
		w.noProblems(t)
		// An unavailable issuer changes nothing.
		w.elsewhere["issuer"].set(errors.New("nobody is there"))
		w.problem(t, "MeshRootCertificate osm-system/issuer: Unavailable: spec.provider.certManager: nobody is there; retrying")
		w.after(26*time.Hour, "cm", "cm", "vault")
		// Nor does one with invalid roots.
		w.elsewhere["issuer"].set(nil, issue(t, w.elsewhere["issuer"].Issuer))
		w.problem(t, "MeshRootCertificate osm-system/issuer: Unusable: spec.provider.certManager: its roots cannot be used")
		w.after(time.Minute, "cm", "cm", "vault")
		// An additional root is trusted, and a removed one stays so for a certificate's lifetime.
		w.elsewhere["issuer"].set(nil, parse(t, goodCA(t, "cm2").cert)...)
		w.after(2*time.Minute, "cm", "cm", "cm2", "vault")
		w.elsewhere["issuer"].set(nil)
		w.after(2*time.Minute, "cm", "cm", "cm2", "vault")
		w.after(25*time.Hour, "cm", "cm", "vault")

		// The signing object is deleted and a new one created: the former continues to sign.
		w.objects.set(vault("role", active))
		w.want("vault", "cm", "vault")
		w.elsewhere["other"] = newRemote(t, "other")
		w.objects.set(certManager("other", active))
		w.want("vault", "cm", "vault", "other")
		w.restart()
		w.after(2*time.Minute, "vault", "cm", "vault", "other")
		w.after(2*time.Minute, "other", "cm", "vault", "other")
	})
}

// TestRefresh checks that Refresh reads the issuers' roots at once.
func TestRefresh(t *testing.T) {
	inTestMesh(t, func(w *testMesh) {
		w.elsewhere["issuer"] = newRemote(t, "cm")
		w.objects.set(certManager("issuer", active))
		w.want("one", "one", "cm")
		w.after(4*time.Minute, "cm", "one", "cm")
		w.elsewhere["issuer"].set(nil, parse(t, goodCA(t, "cm2").cert)...)
		if err := w.Refresh(w.t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, trusted := w.now(t); !slices.Equal(trusted, []string{"cm", "cm2", "one"}) {
			t.Errorf("%q are trusted, want the issuer's other root too", trusted)
		}
		w.objects.fail(errors.New("the API server is away"))
		if err := w.Refresh(w.t.Context()); err == nil {
			t.Error("Refresh says nothing of objects that cannot be read")
		}
		gone, cancel := context.WithCancel(w.t.Context())
		cancel()
		if err := w.Refresh(gone); err == nil {
			t.Error("Refresh of a caller that has gone says nothing")
		}
		w.stop()
		if err := w.Refresh(w.t.Context()); err == nil {
			t.Error("Refresh after the end says nothing")
		}
	})
}

// TestVaultToken checks that a replaced token is used and that a wrong one changes nothing.
func TestVaultToken(t *testing.T) {
	inTestMesh(t, func(w *testMesh) {
		w.elsewhere["role"] = newRemote(t, "vault")
		w.objects.set(vault("role", active))
		w.problem(t, "MeshRootCertificate osm-system/role: Unavailable: spec.provider.vault.token.secretKeyRef: there is no such Secret: "+filepath.Join(w.dir, "vault-token")+"; retrying")
		put(t, w.dir, "vault-token", map[string][]byte{"token": []byte("open")})
		w.problem(t, "MeshRootCertificate osm-system/role: Unavailable: spec.provider.vault: permission denied; retrying")
		w.want("one", "one")
		put(t, w.dir, "vault-token", map[string][]byte{"token": []byte("sesame")})
		w.want("one", "one", "vault")
		w.after(4*time.Minute, "vault", "one", "vault")
		w.noProblems(t)
		uses := w.count()
		w.token = "abracadabra"
		put(t, w.dir, "vault-token", map[string][]byte{"token": []byte("abracadabra")})
		eventually(t, func() string {
			return map[bool]string{true: "the issuer with the new token is not used"}[w.count() == uses]
		})
		w.want("vault", "one", "vault")
		if log := w.log.String(); strings.Contains(log, "abracadabra") || strings.Contains(log, "sesame") {
			t.Error("the token is in the log")
		}
	})
}

// TestBadObjects checks that errors in an object become its Problems and the mesh continues
// to work.
func TestBadObjects(t *testing.T) {
	change := func(f func(*v1alpha2.MeshRootCertificateSpec)) v1alpha2.MeshRootCertificate {
		o := tresor("a", passive)
		f(&o.Spec)
		return o
	}
	for name, tt := range map[string]struct {
		object v1alpha2.MeshRootCertificate
		want   []string
	}{
		"no intent": {change(func(s *v1alpha2.MeshRootCertificateSpec) { s.Intent = "aktiv" }),
			[]string{`Invalid: spec.intent: "aktiv" is neither active nor passive; it is treated as passive`}},
		"other trust domain": {change(func(s *v1alpha2.MeshRootCertificateSpec) { s.TrustDomain = "example.com" }),
			[]string{`NoEffect: spec.trustDomain: every identity is in the trust domain "cluster.local" of the MeshConfig's spec.certificate.trustDomain`}},
		"no provider": {change(func(s *v1alpha2.MeshRootCertificateSpec) { s.Provider = v1alpha2.ProviderSpec{} }),
			[]string{"Invalid: spec.provider: it has 0 of tresor, certManager and vault, want one"}},
		"two providers": {change(func(s *v1alpha2.MeshRootCertificateSpec) { s.Provider.Vault = &v1alpha2.VaultProviderSpec{} }),
			[]string{"Invalid: spec.provider: it has 2 of tresor, certManager and vault, want one"}},
		"other namespace": {change(func(s *v1alpha2.MeshRootCertificateSpec) { s.Provider.Tresor.CA.SecretRef.Namespace = "shop" }),
			[]string{`OtherNamespace: spec.provider.tresor.ca.secretRef.namespace: Secrets are read only in the control plane's namespace "osm-system"; move it there`}},
		"a path as a name": {change(func(s *v1alpha2.MeshRootCertificateSpec) { s.Provider.Tresor.CA.SecretRef.Name = "a/../ca" }),
			[]string{`Unavailable: spec.provider.tresor.ca.secretRef: "a/../ca" is not the name of a Secret; retrying`}},
		"no such issuer": {certManager("a", passive),
			[]string{"Unusable: spec.provider.certManager: there is no such issuer"}},
	} {
		t.Run(name, func(t *testing.T) {
			inTestMesh(t, func(w *testMesh) {
				w.put("a", "two")
				w.objects.set(tt.object)
				var got []string
				eventually(t, func() string {
					got = nil
					for _, p := range w.Problems() {
						got = append(got, strings.TrimPrefix(p.String(), "MeshRootCertificate osm-system/a: "))
					}
					return cmp.Diff(tt.want, got)
				})
				if signing, _ := w.now(t); signing != "one" {
					t.Errorf("%s signs", signing)
				}
			})
		})
	}
}
