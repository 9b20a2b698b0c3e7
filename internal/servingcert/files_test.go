package servingcert_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/servingcert"
)

// runManager runs a manager in real time until the test ends.
func runManager(t testing.TB, issuer servingcert.Issuer, options servingcert.Options) *servingcert.Manager {
	t.Helper()
	options.ServerName = names.ServerName()
	options.Logger = slog.New(slog.DiscardHandler)
	manager, err := servingcert.New(issuer, options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := background(func() { manager.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return manager
}

// pairFiles are the contents of a certificate's files by name.
func pairFiles(t testing.TB, ca *testCA) (map[string][]byte, string) {
	t.Helper()
	cert, key := ca.issue(t, time.Hour)
	contents := map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": ca.pem}
	return contents, serial(materialOf(t, cert, key, ca.pem))
}

// Tests the usual ways of changing a folder of files.
func TestFilesAreFollowed(t *testing.T) {
	plain := func(t *testing.T, dir string, contents map[string][]byte) {
		for name, content := range contents {
			writeFile(t, filepath.Join(dir, name), content)
		}
	}
	kubelet := func(t *testing.T, dir string, contents map[string][]byte) {
		version, err := os.MkdirTemp(dir, "..version")
		if err != nil {
			t.Fatal(err)
		}
		plain(t, version, contents)
		link := filepath.Join(dir, "..data_tmp")
		if err := os.Symlink(filepath.Base(version), link); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(link, filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
		for name := range contents {
			// The links of the files are made once and stay.
			_ = os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name))
		}
	}
	renamed := func(t *testing.T, dir string, contents map[string][]byte) {
		for name, content := range contents {
			path := filepath.Join(dir, name)
			writeFile(t, path+".new", content)
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		}
	}
	for what, replace := range map[string]func(*testing.T, string, map[string][]byte){
		"written in place":       plain,
		"renamed into place":     renamed,
		"swapped by the kubelet": kubelet,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dir, ca := t.TempDir(), newTestCA(t, time.Hour)
			manager := runManager(t, servingcert.NewFileIssuer(servingcert.Files{
				Certificate: filepath.Join(dir, "tls.crt"),
				Key:         filepath.Join(dir, "tls.key"),
				CA:          filepath.Join(dir, "ca.crt"),
			}), servingcert.Options{})
			// The files appear only after the start.
			for round := range 4 {
				contents, want := pairFiles(t, ca)
				replace(t, dir, contents)
				begin := time.Now()
				eventually(t, "the certificate of the files is served", func() bool {
					_, err := manager.GetCertificate(nil)
					return err == nil && servedBy(t, manager) == want
				})
				if took := time.Since(begin); took > 5*time.Second {
					t.Errorf("it took %s: the files were polled, not watched", took)
				}
				if round == 0 {
					continue
				}
				// A key that does not match comes and goes without harm.
				_, otherKey := ca.issue(t, time.Hour)
				replace(t, dir, map[string][]byte{"tls.crt": contents["tls.crt"], "tls.key": otherKey, "ca.crt": ca.pem})
				time.Sleep(300 * time.Millisecond)
				if servedBy(t, manager) != want {
					t.Error("the last good certificate is not served any more")
				}
			}
		})
	}
}

// A change behind a link causes no event in the link's folder.
func TestFilesBehindLinks(t *testing.T) {
	t.Parallel()
	dir, behind, ca := t.TempDir(), t.TempDir(), newTestCA(t, time.Hour)
	write := func() (serial string) {
		contents, serial := pairFiles(t, ca)
		for name, content := range contents {
			writeFile(t, filepath.Join(behind, name), content)
		}
		return serial
	}
	first := write()
	for _, name := range []string{"tls.crt", "tls.key", "ca.crt"} {
		if err := os.Symlink(filepath.Join(behind, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	manager := runManager(t, servingcert.NewFileIssuer(servingcert.Files{
		Certificate: filepath.Join(dir, "tls.crt"),
		Key:         filepath.Join(dir, "tls.key"),
		CA:          filepath.Join(dir, "ca.crt"),
	}), servingcert.Options{})
	eventually(t, "the first certificate is served", func() bool {
		_, err := manager.GetCertificate(nil)
		return err == nil && servedBy(t, manager) == first
	})
	// What is read first of all is no change any more.
	time.Sleep(time.Second)
	second := write()
	eventually(t, "the second certificate is served", func() bool { return servedBy(t, manager) == second })
}
