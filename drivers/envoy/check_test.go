package envoy

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// check has a real Envoy validate the View, and skips the test if there is none.
func check(t *testing.T, view *mesh.View) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := Driver{}.Check(ctx, view)
	if errors.Is(err, driver.ErrNoProxy) {
		t.Skip(err)
	}
	return err
}

// TestCheckInbound has a real Envoy validate every View of the goldens.
func TestCheckInbound(t *testing.T) {
	for name, c := range inboundCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := check(t, c.view()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCheckBootstrap has a real Envoy validate the bootstrap as the agent writes it.
func TestCheckBootstrap(t *testing.T) {
	program, err := Driver{}.FindProxy()
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	newAuthority(t).writeTo(dir, buyer)
	inTest := strings.NewReplacer(driver.IdentityDir, dir, driver.RunDir, dir)
	for _, f := range files(driver.ADSPort) {
		content := inTest.Replace(os.Expand(f.Content, exampleVariable))
		if err := os.WriteFile(inTest.Replace(f.Path), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(program, "--mode", "validate", "--config-path", filepath.Join(dir, "envoy.yaml")).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestCheckRefuses has Envoy reject bad configurations.
func TestCheckRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		inboundCase
		want string
	}{
		"cipher": {inboundCase{settings: func(s *mesh.Settings) { s.TLS = mesh.TLS{Min: "1.2", Max: "1.2", Ciphers: []string{"ROT13"}} }}, "ROT13"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := check(t, tt.view()); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Check returned %v, want the reason %q", err, tt.want)
			}
		})
	}
}

// TestCheckTakesLongExpressions checks the expression size that the bootstrap allows.
func TestCheckTakesLongExpressions(t *testing.T) {
	c := inboundCase{inbound: mesh.Inbound{Ports: []mesh.InboundPort{{Port: 80, Protocol: mesh.HTTP, Access: rules(
		rule("a/b", []mesh.HTTPMatch{{Path: mesh.StringMatch{Regex: "/(books|authors|shops|orders)/[a-z0-9]{1,64}/[a-z0-9]{1,64}"}}}, buyer))}}}}
	if err := check(t, c.view()); err != nil {
		t.Error(err)
	}
}

// TestCheckEnds has the proxy exceed the time limit.
func TestCheckEnds(t *testing.T) {
	program := filepath.Join(t.TempDir(), "envoy")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexec sleep 600\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("ENVOY", program)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := (Driver{}).Check(ctx, inboundCases["empty"].view()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Check returned %v, want a timeout", err)
	}
}

func TestCheckWithoutEnvoy(t *testing.T) {
	t.Run("nowhere", func(t *testing.T) {
		t.Setenv("ENVOY", "")
		t.Setenv("PATH", t.TempDir())
		t.Setenv("OUTRIGGER_CACHE", t.TempDir())
		err := Driver{}.Check(t.Context(), inboundCases["empty"].view())
		if !errors.Is(err, driver.ErrNoProxy) || !strings.Contains(err.Error(), "make envoy") {
			t.Errorf("Check returned %v, want ErrNoProxy and how to get Envoy", err)
		}
	})
	t.Run("named", func(t *testing.T) {
		t.Setenv("ENVOY", "/does/not/exist")
		err := Driver{}.Check(t.Context(), inboundCases["empty"].view())
		if !errors.Is(err, driver.ErrNoProxy) || !strings.Contains(err.Error(), "/does/not/exist") {
			t.Errorf("Check returned %v, want an error about ENVOY", err)
		}
	})
}

// TestFindProxy checks the order in which Envoy is searched for.
func TestFindProxy(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("PATH", t.TempDir())
	t.Setenv("ENVOY", "")
	t.Setenv("OUTRIGGER_CACHE", cache)
	install := func(path string) string {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	find := func(want string) {
		t.Helper()
		if got, err := (Driver{}).FindProxy(); err != nil || got != want {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	}
	other := install(filepath.Join(cache, "envoy-1.9.1", "envoy"))
	find(install(filepath.Join(cache, "envoy-"+version, "envoy")))
	find(install(filepath.Join(os.Getenv("PATH"), "envoy")))
	t.Setenv("ENVOY", other)
	find(other)
}

// TestVersion checks that the tests' program and the API have the same version, and that the
// image has one of the same branch, which may be newer than what the tests can have.
func TestVersion(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(mod), "github.com/envoyproxy/go-control-plane/envoy v"+version) {
		t.Errorf("go.mod has another version of the API than %s", version)
	}
	branch := version[:strings.LastIndex(version, ".")+1]
	if image := (Driver{}).SidecarImage("linux"); !strings.Contains(image, ":v"+branch) || !slices.Contains(releases.Newest, releases.Default) {
		t.Errorf("the image is %s, the tests have %s, and the newest releases are %s", image, version, releases.Newest)
	}
}

// oldestTested is the oldest supported version in PyPI, from which the tests have their programs.
const oldestTested = "1.38.3"

// TestOldest has the oldest supported Envoy that can be had, if it is installed, validate every
// View of the goldens.
func TestOldest(t *testing.T) {
	cache := os.Getenv("OUTRIGGER_CACHE")
	if user, err := os.UserCacheDir(); cache == "" && err == nil {
		cache = filepath.Join(user, "outrigger")
	}
	program := filepath.Join(cache, "envoy-"+oldestTested, "envoy")
	if _, err := os.Stat(program); err != nil {
		t.Skipf("SKIPPED: run ENVOY_VERSION=%s test/envoy/install.sh for it: %v", oldestTested, err)
	}
	t.Setenv("ENVOY", program)
	for name, c := range inboundCases {
		if err := check(t, c.view()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOldImages checks which images are rejected.
func TestOldImages(t *testing.T) {
	for image, old := range map[string]bool{
		"envoyproxy/envoy-distroless:v1.22.2": true,
		"envoyproxy/envoy:v1.36.4":            true,
		// Its access rules join the values of a header.
		"envoyproxy/envoy:v1.37.0":   true,
		"envoyproxy/envoy:v1.37.10":  true,
		"envoyproxy/envoy:v1.37.11":  false,
		"envoyproxy/envoy:v1.37-dev": false,
		// Headers of HTTP/2 use up its memory.
		"envoyproxy/envoy:v1.38.0":     true,
		"envoyproxy/envoy:v1.38.1":     false,
		"envoyproxy/envoy:v1.39.0":     false,
		"envoyproxy/envoy:v1.40.0":     false,
		Driver{}.SidecarImage("linux"): false,
	} {
		if err := (Driver{}).CheckImage(image); (err != nil) != old {
			t.Errorf("%s: %v", image, err)
		}
	}
}
