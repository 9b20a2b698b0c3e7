package root_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/identity/root"
)

// repository is a root.Repository that runs, and what it has told.
type repository struct {
	*root.Repository
	log  lines
	stop func()

	mu      sync.Mutex
	signing issuer.Issuer
	roots   []byte
	uses    int
}

func (r *repository) UseRepository(signing issuer.Issuer, roots []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.signing, r.roots = signing, roots
	r.uses++
}

func keepRepository(t *testing.T, store root.SecretStore) *repository {
	t.Helper()
	r := &repository{}
	r.Repository = root.NewRepository(root.RepositoryOptions{
		Manager: r, Secrets: store, Namespace: "osm-system", Log: slog.New(slog.NewTextHandler(&r.log, nil)),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx)
	}()
	r.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
		if strings.Contains(r.log.String(), "PRIVATE KEY") {
			t.Error("a key is in the log")
		}
	})
	t.Cleanup(r.stop)
	return r
}

// now returns the names of the root that signs and of all that are told, in their order.
func (r *repository) now(t *testing.T) (signing string, told []string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.signing == nil {
		return "", nil
	}
	for _, c := range parse(t, r.roots) {
		told = append(told, c.Subject.CommonName)
	}
	return issue(t, r.signing).Issuer.CommonName, told
}

func (r *repository) first(t *testing.T) string {
	t.Helper()
	var name string
	eventually(t, func() string {
		name, _ = r.now(t)
		return map[bool]string{true: "nothing signs for the repository"}[name == ""]
	})
	return name
}

// want waits until the first of these signs and all of them are told.
func (r *repository) want(t *testing.T, names ...string) {
	t.Helper()
	eventually(t, func() string {
		signing, told := r.now(t)
		if signing != names[0] {
			return fmt.Sprintf("%q signs, want %q; the log says:\n%s", signing, names[0], r.log.String())
		}
		return cmp.Diff(names, told)
	})
}

// TestRepositoryReplicas: replicas that begin at once agree on one root, which is there
// after a restart, and which only its owner may read.
func TestRepositoryReplicas(t *testing.T) {
	store, dir := dirStore(t)
	var all []*repository
	for range 4 {
		all = append(all, keepRepository(t, store))
	}
	name := all[0].first(t)
	for _, r := range all {
		r.want(t, name)
		if log := r.log.String(); strings.Contains(log, "level=ERROR") {
			t.Errorf("a replica complains that it was not the first:\n%s", log)
		}
	}
	for path, want := range map[string]os.FileMode{"": 0o700, "ca.key": 0o600, "ca.crt": 0o600} {
		info, err := os.Stat(filepath.Join(dir, root.DefaultRepository, path))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has the mode %o, want %o", path, got, want)
		}
	}
	all[0].stop()
	keepRepository(t, store).want(t, name)
}

// TestRepositorySecret: what becomes of a Secret that somebody deletes, breaks or
// replaces.
func TestRepositorySecret(t *testing.T) {
	store, dir := dirStore(t)
	store.Poll = 10 * time.Millisecond
	r := keepRepository(t, store)
	name := r.first(t)
	folder := filepath.Join(dir, root.DefaultRepository)
	read := func() []byte {
		text, _ := os.ReadFile(filepath.Join(folder, "ca.crt"))
		return text
	}
	before := read()
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		return cmp.Diff(string(before), string(read()))
	})
	keepRepository(t, store).want(t, name)

	other := newCA(t, "other", time.Now().Add(issuer.RootLife))
	for what, data := range map[string]map[string][]byte{
		"no certificate":     {"ca.crt": nil, "ca.key": other.key},
		"no key":             {"ca.crt": other.cert, "ca.key": nil},
		"another's key":      {"ca.crt": other.cert, "ca.key": goodCA(t, "another").key},
		"more keys":          {"ca.crt": other.cert, "ca.key": append(bytes.Clone(other.key), other.key...)},
		"nothing of the two": {"ca.crt": []byte("?"), "ca.key": []byte("?")},
	} {
		put(t, dir, root.DefaultRepository, data)
		fresh := keepRepository(t, store)
		for _, r := range []*repository{fresh, r} {
			eventually(t, func() string {
				problems := fmt.Sprint(r.Problems())
				if !strings.HasPrefix(problems, "[Secret osm-system/outrigger-repository-ca: Unusable: "+folder) || !strings.Contains(problems, "empty it") {
					return fmt.Sprintf("%s: nothing says what is wrong and what to do: %s", what, problems)
				}
				return ""
			})
		}
		if log := fresh.log.String(); !strings.Contains(log, "level=ERROR") {
			t.Errorf("%s: the log says nothing:\n%s", what, log)
		}
		if signing, _ := fresh.now(t); signing != "" {
			t.Errorf("%s: %s signs", what, signing)
		}
		fresh.stop()
		r.want(t, name)
	}
	put(t, dir, root.DefaultRepository, other.data())
	r.want(t, "other")
	eventually(t, func() string {
		if problems := r.Problems(); len(problems) > 0 {
			return fmt.Sprintf("all is well, and there are Problems: %v", problems)
		}
		return ""
	})
}

// TestRepositoryRootChanges goes through twenty-one years of agents that renew their
// certificates once in eleven months: each of them can always verify the repository.
func TestRepositoryRootChanges(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		const day = 24 * time.Hour
		store, err := root.NewDirStore(dir)
		if err != nil {
			t.Fatal(err)
		}
		store.Poll = 30 * day
		r := keepRepository(t, store)
		time.Sleep(time.Minute)
		signers := map[string]bool{}
		var told [][]string // Of each of the last eleven months.
		for range 21 * 12 {
			signing, roots := r.now(t)
			signers[signing] = true
			if told = append(told, roots); len(told) > 11 {
				told = told[1:]
			}
			for _, known := range told {
				if !strings.Contains(strings.Join(known, " "), signing) {
					t.Fatalf("%s: %s signs, and an agent knows %q", time.Now(), signing, known)
				}
			}
			time.Sleep(30 * day)
		}
		if len(signers) != 3 {
			t.Errorf("in twenty-one years there were %d roots, want 3", len(signers))
		}
		if r.uses > 4*len(signers) {
			t.Errorf("the manager was told %d times", r.uses)
		}
		r.stop()

		// A controller that comes back when all roots are over makes a new one.
		time.Sleep(20 * 365 * day)
		late := keepRepository(t, store)
		time.Sleep(time.Minute)
		signing, roots := late.now(t)
		if signing == "" || signers[signing] || len(roots) != 1 {
			t.Errorf("%q signs and %q are told, want a new root alone", signing, roots)
		}
		late.stop()
	})
}

// testRepository: the same on an API server, with the rights that the controller has.
func testRepository(t *testing.T, c *cluster) {
	store := c.options(t).Secrets
	var all []*repository
	for range 4 {
		all = append(all, keepRepository(t, store))
	}
	name := all[0].first(t)
	for _, r := range all {
		r.want(t, name)
	}
	key := client.ObjectKey{Namespace: "osm-system", Name: root.DefaultRepository}
	var secret corev1.Secret
	if err := c.Get(t.Context(), key, &secret); err != nil {
		t.Fatal(err)
	}
	c.put(t, root.DefaultRepository, nil)
	eventually(t, func() string {
		var again corev1.Secret
		if err := c.Get(t.Context(), key, &again); err != nil {
			return err.Error()
		}
		return cmp.Diff(string(secret.Data["ca.crt"]), string(again.Data["ca.crt"]))
	})
	other := newCA(t, "other", time.Now().Add(issuer.RootLife))
	c.put(t, root.DefaultRepository, other.data())
	for _, r := range all {
		r.want(t, "other")
		if log := r.log.String(); strings.Contains(log, "forbidden") {
			t.Errorf("rights are missing:\n%s", log)
		}
	}
}
