package root_test

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/identity/root"
	"github.com/outrigger-mesh/outrigger/internal/identity/store"
)

// objects are MeshRootCertificates that a test can change.
type objects struct {
	mu      sync.Mutex
	all     []v1alpha2.MeshRootCertificate
	failure error
	changed []func()
}

func (o *objects) List(context.Context) ([]v1alpha2.MeshRootCertificate, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.all), o.failure
}

func (o *objects) Watch(ctx context.Context, changed func()) {
	o.mu.Lock()
	o.changed = append(o.changed, changed)
	o.mu.Unlock()
	<-ctx.Done()
}

// set replaces all objects. The first one is the oldest.
func (o *objects) set(all ...v1alpha2.MeshRootCertificate) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = all
	for i := range o.all {
		o.all[i].CreationTimestamp = metav1.NewTime(time.Unix(int64(i), 0))
	}
	for _, f := range o.changed {
		f()
	}
}

func (o *objects) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failure = err
}

// tresor is an object with its CA in a Secret of the same name.
func tresor(name string, intent v1alpha2.MeshRootCertificateIntent) v1alpha2.MeshRootCertificate {
	return v1alpha2.MeshRootCertificate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "osm-system", Name: name},
		Spec: v1alpha2.MeshRootCertificateSpec{
			Intent: intent, TrustDomain: "cluster.local",
			Provider: v1alpha2.ProviderSpec{Tresor: &v1alpha2.TresorProviderSpec{CA: v1alpha2.TresorCASpec{SecretRef: corev1.SecretReference{Name: name}}}},
		},
	}
}

func certManager(name string, intent v1alpha2.MeshRootCertificateIntent) v1alpha2.MeshRootCertificate {
	o := tresor(name, intent)
	o.Spec.Provider = v1alpha2.ProviderSpec{CertManager: &v1alpha2.CertManagerProviderSpec{IssuerName: name}}
	return o
}

func vault(name string, intent v1alpha2.MeshRootCertificateIntent) v1alpha2.MeshRootCertificate {
	o := tresor(name, intent)
	o.Spec.Provider = v1alpha2.ProviderSpec{Vault: &v1alpha2.VaultProviderSpec{
		Host: "vault", Role: name, Token: v1alpha2.VaultTokenSpec{SecretKeyRef: v1alpha2.SecretKeyReferenceSpec{Name: "vault-token", Key: "token"}},
	}}
	return o
}

const active, passive = v1alpha2.IntentActive, v1alpha2.IntentPassive

// testMesh is a mesh's roots in a bubble with fake time.
type testMesh struct {
	*running
	t       *testing.T
	objects *objects
	store   *store.Dir
	dir     string
	opts    root.Options
	// elsewhere are the fake cert-manager and Vault issuers, by the name of the issuer or
	// role; token is the one that Vault accepts.
	elsewhere map[string]*remote
	token     string
}

// remote is an external issuer that may be unavailable.
type remote struct {
	issuer.Issuer
	mu   sync.Mutex
	away error
	more []*x509.Certificate
}

func (r *remote) set(away error, more ...*x509.Certificate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away, r.more = away, more
}

func (r *remote) Roots(ctx context.Context) ([]*x509.Certificate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	roots, err := r.Issuer.Roots(ctx)
	return append(roots, r.more...), cmp.Or(r.away, err)
}

func newRemote(t *testing.T, name string) *remote {
	t.Helper()
	c := goodCA(t, name)
	made, err := issuer.FromPEM(c.cert, c.key)
	if err != nil {
		t.Fatal(err)
	}
	return &remote{Issuer: made}
}

// inTestMesh runs a test in a bubble where the CA "one" in outrigger-ca-bundle signs.
func inTestMesh(t *testing.T, test func(w *testMesh)) {
	synctest.Test(t, func(t *testing.T) {
		w := &testMesh{t: t, objects: &objects{}, token: "sesame", elsewhere: map[string]*remote{}}
		w.store, w.dir = dirStore(t)
		w.store.Poll = 20 * time.Second // Fake time makes it fast.
		w.put("outrigger-ca-bundle", "one")
		w.opts = root.Options{
			Secrets: w.store, Objects: w.objects, Propagation: root.DefaultPropagation,
			TrustDomain: func() string { return "cluster.local" },
			Providers: root.Providers{
				CertManager: func(spec v1alpha2.CertManagerProviderSpec) (issuer.Issuer, error) {
					if found := w.elsewhere[spec.IssuerName]; found != nil {
						return found, nil
					}
					return nil, errors.New("there is no such issuer")
				},
				Vault: func(spec v1alpha2.VaultProviderSpec, token string) (issuer.Issuer, error) {
					return &remote{Issuer: w.elsewhere[spec.Role].Issuer, away: map[bool]error{false: errors.New("permission denied")}[token == w.token]}, nil
				},
			},
		}
		w.start()
		w.want("one", "one")
		test(w)
		w.stop()
	})
}

func (w *testMesh) start() { w.running = run(w.t, w.opts) }

// restart replaces the controller by a new one.
func (w *testMesh) restart() {
	w.stop()
	w.start()
}

func (w *testMesh) put(secret, name string) { put(w.t, w.dir, secret, goodCA(w.t, name).data()) }

// want checks the state after the controller's evaluation.
func (w *testMesh) want(signing string, trusted ...string) {
	w.t.Helper()
	w.running.want(w.t, signing, trusted...)
}

// after lets time pass and then checks the state.
func (w *testMesh) after(d time.Duration, signing string, trusted ...string) {
	w.t.Helper()
	time.Sleep(d)
	s, all := w.now(w.t)
	if s != signing || !slices.Equal(all, slices.Sorted(slices.Values(trusted))) {
		w.t.Errorf("after %s %q signs and %q are trusted, want %q and %q", d, s, all, signing, trusted)
	}
}

// TestReplacedSecret checks that replacing the Secret in one step breaks nothing.
func TestReplacedSecret(t *testing.T) {
	inTestMesh(t, func(w *testMesh) {
		w.want("one", "one")
		w.put("outrigger-ca-bundle", "two")
		w.want("one", "one", "two")
		w.after(2*time.Minute, "one", "one", "two")
		w.restart()
		w.want("one", "one", "two")
		another := run(t, w.opts)
		another.want(t, "one", "one", "two")
		w.after(30*time.Second, "one", "one", "two")
		w.after(time.Minute, "two", "one", "two")
		another.want(t, "two", "one", "two")
		another.stop()
		w.noProblems(t)
		w.after(24*time.Hour, "two", "one", "two")
		w.restart()
		w.want("two", "one", "two")
		// Clocks may differ by five minutes.
		w.after(6*time.Minute, "two", "two")
		w.restart()
		w.want("two", "two")
	})
}

// TestReplacedBack reverts a replacement before the new CA signs: nothing has changed.
func TestReplacedBack(t *testing.T) {
	inTestMesh(t, func(w *testMesh) {
		w.want("one", "one")
		one, err := os.ReadFile(filepath.Join(w.dir, "outrigger-ca-bundle", "ca.crt"))
		if err != nil {
			t.Fatal(err)
		}
		key, err := os.ReadFile(filepath.Join(w.dir, "outrigger-ca-bundle", "ca.key"))
		if err != nil {
			t.Fatal(err)
		}
		w.put("outrigger-ca-bundle", "two")
		w.want("one", "one", "two")
		put(t, w.dir, "outrigger-ca-bundle", map[string][]byte{"ca.crt": one, "ca.key": key})
		w.want("one", "one")
		w.after(time.Hour, "one", "one")
	})
}

// TestRewrittenSecret writes the same CA in other ways, which must not reach anybody, and then in
// ways that cannot be read, after which the CA goes on signing.
func TestRewrittenSecret(t *testing.T) {
	inTestMesh(t, func(w *testMesh) {
		one := map[string][]byte{}
		for _, name := range []string{"ca.crt", "ca.key"} {
			content, err := os.ReadFile(filepath.Join(w.dir, "outrigger-ca-bundle", name))
			if err != nil {
				t.Fatal(err)
			}
			one[name] = content
		}
		root := string(one["ca.crt"])
		sets := w.count()
		for what, text := range map[string]string{
			"comments":     "# our root\nsubject: one\n" + root,
			"line endings": strings.ReplaceAll(root, "\n", "\r\n"),
			"twice":        root + root,
			"empty lines":  "\n\n" + root + "\n\n",
		} {
			one["ca.crt"] = []byte(text)
			put(t, w.dir, "outrigger-ca-bundle", one)
			w.after(time.Minute, "one", "one")
			if got := w.count(); got != sets {
				t.Errorf("%s: the trust was set again", what)
			}
		}
		w.noProblems(t)
		for _, text := range []string{
			strings.ReplaceAll(root, "CERTIFICATE", "TRUSTED CERTIFICATE"), root + "cut off", root[:len(root)/2],
		} {
			one["ca.crt"] = []byte(text)
			put(t, w.dir, "outrigger-ca-bundle", one)
			w.after(time.Minute, "one", "one")
			if got := w.count(); got != sets || len(w.Problems()) == 0 {
				t.Errorf("%.40q: the trust was set %d times, and there are the problems %v", text, got-sets, w.Problems())
			}
		}
	})
}

// TestDeletedSecret deletes the Secret, as Open Service Mesh required: a new CA is created and
// nothing breaks.
func TestDeletedSecret(t *testing.T) {
	inTestMesh(t, func(w *testMesh) {
		w.want("one", "one")
		if err := os.RemoveAll(filepath.Join(w.dir, "outrigger-ca-bundle")); err != nil {
			t.Fatal(err)
		}
		var name string
		eventually(t, func() string {
			signing, trusted := w.now(t)
			if signing != "one" || len(trusted) != 2 {
				return "the new CA is not trusted beside the old one"
			}
			name = trusted[slices.IndexFunc(trusted, func(s string) bool { return s != "one" })]
			return ""
		})
		w.restart()
		w.after(5*time.Minute, name, "one", name)
		w.after(25*time.Hour, name, name)
	})
}

// TestLongerLife checks that certificates with a former, longer lifetime are considered.
func TestLongerLife(t *testing.T) {
	inTestMesh(t, func(w *testMesh) {
		w.stop()
		var mu sync.Mutex
		life := 72 * time.Hour
		w.opts.Life = func() time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return life
		}
		w.start()
		w.want("one", "one")
		w.after(2*time.Minute, "one", "one")
		mu.Lock()
		life = time.Hour
		mu.Unlock()
		w.after(2*time.Minute, "one", "one")
		w.put("outrigger-ca-bundle", "two")
		w.after(71*time.Hour, "two", "one", "two")
		w.after(2*time.Hour, "two", "two")
	})
}

// TestBroken checks that a broken CA is never used, that the previous one stays in use, even
// after a restart, and that a fixed CA is used.
func TestBroken(t *testing.T) {
	for name, tt := range map[string]struct {
		data func(t *testing.T) map[string][]byte
		want string
	}{
		"no certificate":     {func(t *testing.T) map[string][]byte { return map[string][]byte{"ca.crt": nil} }, "it has no ca.crt"},
		"no PEM":             {func(t *testing.T) map[string][]byte { return map[string][]byte{"ca.crt": []byte("hello")} }, "own CA: reading its certificates"},
		"half a certificate": {func(t *testing.T) map[string][]byte { return map[string][]byte{"ca.crt": goodCA(t, "two").cert[:200]} }, "own CA: reading its certificates"},
		"other key":          {func(t *testing.T) map[string][]byte { return map[string][]byte{"ca.key": goodCA(t, "two").key} }, "own CA: the key matches none"},
		"no key":             {func(t *testing.T) map[string][]byte { return map[string][]byte{"ca.key": nil} }, "it has neither ca.key nor private.key"},
		"expired": {func(t *testing.T) map[string][]byte { return newCA(t, "two", time.Now().Add(-time.Hour)).data() },
			`own CA: the certificate "CN=two" expired at`},
	} {
		t.Run(name, func(t *testing.T) {
			inTestMesh(t, func(w *testMesh) {
				w.want("one", "one")
				put(t, w.dir, "outrigger-ca-bundle", tt.data(t))
				for range 2 {
					w.problem(t, "Secret osm-system/outrigger-ca-bundle: Unusable: "+filepath.Join(w.dir, "outrigger-ca-bundle")+": "+tt.want)
					w.after(time.Hour, "one", "one")
					w.restart()
				}
				w.put("outrigger-ca-bundle", "three")
				w.want("one", "one", "three")
				w.noProblems(t)
				w.after(5*time.Minute, "three", "one", "three")
			})
		})
	}
}

// TestBrokenFromTheStart checks that a mesh with only a broken CA starts once it is fixed.
func TestBrokenFromTheStart(t *testing.T) {
	inTestMesh(t, func(w *testMesh) {
		w.stop()
		if err := os.RemoveAll(w.dir); err != nil {
			t.Fatal(err)
		}
		put(t, w.dir, "outrigger-ca-bundle", newCA(t, "old", time.Now().Add(-time.Hour)).data())
		w.start()
		w.problem(t, "Secret osm-system/outrigger-ca-bundle: Unusable")
		time.Sleep(time.Hour)
		if w.count() > 0 {
			t.Error("a root that is expired is used")
		}
		if _, _, err := w.Trust(); !errors.Is(err, issuer.ErrUnavailable) || !strings.Contains(err.Error(), "expired at") {
			t.Errorf("Signing: %v, want that the root is expired", err)
		}
		select {
		case <-w.Ready():
			t.Error("it is ready")
		default:
		}
		w.put("outrigger-ca-bundle", "one")
		w.want("one", "one")
	})
}

// TestBrokenState checks that nothing is assumed while the state is unreadable.
func TestBrokenState(t *testing.T) {
	inTestMesh(t, func(w *testMesh) {
		w.want("one", "one")
		put(t, w.dir, "outrigger-ca-state", map[string][]byte{"state.json": []byte("{")})
		w.put("outrigger-ca-bundle", "two")
		w.after(time.Hour, "one", "one")
		if err := w.Fault(); err == nil || !strings.Contains(err.Error(), "outrigger-ca-state: its state.json is not valid JSON") {
			t.Errorf("the fault is %v", err)
		}
		// Emptying the state distrusts the previous root at once.
		if err := os.RemoveAll(filepath.Join(w.dir, "outrigger-ca-state")); err != nil {
			t.Fatal(err)
		}
		w.want("two", "two")
	})
}

// TestRootEnds checks that a root is reported before it expires and not trusted afterwards.
func TestRootEnds(t *testing.T) {
	inTestMesh(t, func(w *testMesh) {
		w.stop()
		if err := os.RemoveAll(w.dir); err != nil {
			t.Fatal(err)
		}
		put(t, w.dir, "outrigger-ca-bundle", newCA(t, "brief", time.Now().Add(30*24*time.Hour+time.Hour)).data())
		w.start()
		w.want("brief", "brief")
		w.noProblems(t)
		time.Sleep(2 * time.Hour)
		w.problem(t, `Secret osm-system/outrigger-ca-bundle: Expiring: the root "CN=brief" expires at`)
	})
	inTestMesh(t, func(w *testMesh) {
		w.want("one", "one")
		put(t, w.dir, "outrigger-ca-bundle", newCA(t, "brief", time.Now().Add(time.Hour)).data())
		w.after(50*time.Minute, "brief", "one", "brief")
		w.after(11*time.Minute, `own CA "brief": it expired at 2000-01-01T01:00:00Z; give it a new certificate`, "brief", "one")
		w.put("outrigger-ca-bundle", "new")
		// An expired root does not delay the new one.
		w.want("new", "new", "one")
	})
}
