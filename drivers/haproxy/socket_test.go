package haproxy

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSocketsAreTheProxysOwn checks that only HAProxy's own user can open its Unix sockets:
// the admin socket accepts commands, and the others accept connections that count as
// authorized.
func TestSocketsAreTheProxysOwn(t *testing.T) {
	kinds := map[string]bool{}
	for name, f := range fixtures() {
		files, err := Driver{}.Translate(f.view())
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(files[0].Content)) {
			words := strings.Fields(strings.Replace(line, "stats socket", "bind", 1))
			if len(words) < 2 || words[0] != "bind" {
				continue
			}
			address := words[1]
			first, _, _ := strings.Cut(address, ",")
			if _, _, err := net.SplitHostPort(first); err == nil {
				continue
			}
			kinds[filepath.Base(address)] = true
			if !strings.HasPrefix(address, "unix@/") || !strings.Contains(line, " mode 600 ") && !strings.HasSuffix(line, " mode 600\n") || strings.Count(line, " mode ") != 1 {
				t.Errorf("%s: a socket that others can open: %s", name, line)
			}
		}
	}
	for _, socket := range []string{"admin.sock", "mesh.sock", "inbound.sock", "ingress.sock", "outbound.sock", "authorization.sock"} {
		if !kinds[socket] {
			t.Errorf("no View has a socket %s; the sockets are %v", socket, kinds)
		}
	}
}

// TestRealSocketsAreTheProxysOwn checks the modes of a real HAProxy's sockets.
func TestRealSocketsAreTheProxysOwn(t *testing.T) {
	f := fixtures()["inbound"]
	dir := t.TempDir()
	newAuthority(t).writeTo(dir, store)
	start(t, dir, f.view()).awaitReady()
	found := 0
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSocket == 0 {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		found++
		if info.Mode().Perm() != 0o600 {
			t.Errorf("the mode of %s is %v", path, info.Mode())
		}
		return nil
	})
	if err != nil || found == 0 {
		t.Errorf("found %d sockets, %v", found, err)
	}
}
