package lab_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/test/lab"
)

// nobody runs the command in $@ as a user with the range of IDs in $IDS. It mounts another
// /etc/subuid over the machine's in its own mount namespace.
const nobody = `set -e
mount --bind "$IDS" /etc/subuid
mount --bind "$IDS" /etc/subgid
cd /
exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"`

// asNobody runs some of the tests as a user who is not root.
func asNobody(t *testing.T, ids, tests string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	for _, tool := range []string{"unshare", "setpriv", "newuidmap", "newgidmap"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("a lab of a user who is not root is not tested: ", err)
		}
	}
	// The test's folder and program belong to root.
	dir, err := os.MkdirTemp("", "lab")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	copied, file := filepath.Join(dir, "lab.test"), filepath.Join(dir, "ids")
	err = errors.Join(os.Chmod(dir, 0o755), os.WriteFile(copied, self, 0o755), os.WriteFile(file, []byte(ids), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(deadline(t), "unshare", "--mount", "--propagation", "private",
		"sh", "-c", nobody, "sh", copied, "-test.v", "-test.run", tests)
	cmd.Env = append(os.Environ(), "IDS="+file, "TMPDIR=/tmp", "CI=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func TestUserNamespace(t *testing.T) {
	newLab(t, lab.Options{})
	out := asNobody(t, "nobody:200000:65536\n", "^(TestPrivileges|TestVolumes|TestPodsReachEachOther|TestProcess|TestDo)$")
	if strings.Count(out, "--- PASS") != 5 {
		t.Errorf("not all of them passed:\n%s", out)
	}
}

func TestUnavailable(t *testing.T) {
	out := asNobody(t, "somebody:200000:65536\n", "^TestDo$")
	for _, want := range []string{"--- SKIP", lab.ErrUnavailable.Error(), "/etc/subuid", "nobody"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
}
