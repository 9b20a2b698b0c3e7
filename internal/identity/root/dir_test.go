package root_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/identity/root"
	"github.com/outrigger-mesh/outrigger/internal/identity/store"
)

func dirStore(t *testing.T) (*store.Dir, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ca")
	secrets, err := store.NewDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return secrets, dir
}

// put writes a Secret to the folder of the CA as a user would.
func put(t *testing.T, dir, name string, data map[string][]byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
		t.Fatal(err)
	}
	for key, content := range data {
		if err := store.WriteFile(filepath.Join(dir, name, key), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOwnCAIsMade checks that without any input the mesh gets its own CA, which replicas
// share and which survives restarts.
func TestOwnCAIsMade(t *testing.T) {
	store, dir := dirStore(t)
	var all []*running
	for range 3 {
		all = append(all, run(t, root.Options{Secrets: store}))
	}
	var name string
	eventually(t, func() string { name, _ = all[0].now(t); return map[bool]string{true: "nothing signs"}[name == ""] })
	for _, r := range all {
		r.want(t, name, name)
		r.noProblems(t)
		<-r.Ready()
	}
	for path, want := range map[string]os.FileMode{"": 0o700, "outrigger-ca-bundle": 0o700, "outrigger-ca-bundle/ca.key": 0o600, "outrigger-ca-bundle/ca.crt": 0o600, "outrigger-ca-state/state.json": 0o600} {
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has the mode %o, want %o", path, got, want)
		}
	}
	all[0].stop()
	run(t, root.Options{Secrets: store}).want(t, name, name)
}
