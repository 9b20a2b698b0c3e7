package issuer_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// program returns the folder of a program that test/issuers/build.sh has compiled.
// If it is missing, the test is skipped: not every machine can compile it.
func program(t *testing.T, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skipf("SKIPPED: it needs %s; run 'make test-all'", name)
	}
	out, err := exec.Command("../../../test/issuers/build.sh", name, "--where").Output()
	if err != nil {
		t.Fatalf("asking test/issuers/build.sh where %s is: %v", name, err)
	}
	dir := strings.TrimSpace(string(out))
	if _, err := os.Stat(filepath.Join(dir, "done")); err != nil {
		t.Skipf("SKIPPED: %s is not compiled; run 'make issuers'", name)
	}
	return dir
}

// start runs a program until the test ends and returns its standard output.
func start(t *testing.T, path string, args ...string) io.Reader {
	t.Helper()
	log := &strings.Builder{}
	cmd := exec.Command(path, args...)
	cmd.Stderr = log
	// Use neither the test's folder nor its environment.
	cmd.Dir, cmd.Env = t.TempDir(), []string{"HOME=" + t.TempDir()}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// It exits when its standard input is closed, so even if the test is killed.
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		timer := time.AfterFunc(10*time.Second, func() { cmd.Process.Kill() })
		cmd.Wait()
		timer.Stop()
		if t.Failed() {
			text := log.String()
			t.Logf("output of %s:\n%s", filepath.Base(path), text[max(0, len(text)-4000):])
		}
	})
	return out
}

// eventually waits until check returns nil.
func eventually(t *testing.T, within time.Duration, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(fmt.Errorf("after %s: %w", within, err))
		case <-time.After(50 * time.Millisecond):
		}
	}
}
