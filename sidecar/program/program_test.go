package program_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/program"
)

func TestFind(t *testing.T) {
	path, elsewhere := t.TempDir(), t.TempDir()
	t.Setenv("PATH", path)
	t.Setenv("QUIET", "")
	install := func(name string) string {
		t.Helper()
		if err := os.WriteFile(name, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return name
	}
	find := func() (string, error) {
		return program.Find("QUIET", "install the package quiet", "quiet", filepath.Join(elsewhere, "quiet"))
	}
	want := func(want string) {
		t.Helper()
		if got, err := find(); err != nil || got != want {
			t.Errorf("found %q, %v, want %q", got, err, want)
		}
	}
	wantNone := func(says string) {
		t.Helper()
		_, err := find()
		if !errors.Is(err, driver.ErrNoProxy) || !strings.Contains(err.Error(), says) || !strings.HasSuffix(err.Error(), "install the package quiet") {
			t.Errorf("the error is %q, want one that wraps ErrNoProxy, contains %q and ends with the advice", err, says)
		}
	}
	wantNone("")
	want(install(filepath.Join(elsewhere, "quiet")))
	want(install(filepath.Join(path, "quiet")))
	t.Setenv("QUIET", "other")
	wantNone(`QUIET is "other"`)
	want(install(filepath.Join(path, "other")))
}

func TestWriteIdentity(t *testing.T) {
	dir := t.TempDir()
	identity := mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart"}
	if err := program.WriteIdentity(dir, identity); err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, files := range [][2]string{{"chain.pem", "key.pem"}, {"identity.pem", "identity.pem"}} {
		pair, err := tls.LoadX509KeyPair(in(files[0]), in(files[1]))
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		bundle, err := os.ReadFile(in("bundle.pem"))
		if err != nil || !roots.AppendCertsFromPEM(bundle) {
			t.Fatalf("the bundle holds no certificate: %v", err)
		}
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: identity.DNSName()}); err != nil {
			t.Error(err)
		}
		if info, err := os.Stat(in(files[1])); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the mode of %s is %v, %v", files[1], info.Mode(), err)
		}
	}
}
