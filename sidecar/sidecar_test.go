package sidecar

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// clean empties the registry for one test.
func clean(t *testing.T) {
	t.Helper()
	oldDrivers, oldEngine := drivers, engineDriver
	drivers, engineDriver = make(map[string]*registered), nil
	t.Cleanup(func() { drivers, engineDriver = oldDrivers, oldEngine })
}

// named returns its name as an error, which shows what was called.
type named string

func (n named) Patch(ctx context.Context) error {
	if _, err := driver.InjectorFrom(ctx); err != nil {
		return err
	}
	return errors.New(string(n) + " patches")
}

func (n named) Start(ctx context.Context) (health.Probes, error) {
	if _, err := driver.ControllerFrom(ctx); err != nil {
		return nil, err
	}
	return health.Func{ID: string(n)}, nil
}

// full also has every optional interface.
type full struct{ named }

func (full) PodTemplate() string           { return "spec: {}" }
func (full) SidecarImage(os string) string { return "proxy:" + os }

func TestRegisterPanics(t *testing.T) {
	for _, tt := range []struct {
		name     string
		register func()
		want     string
	}{
		{"nil", func() { Register("x", nil) }, "sidecar: Register driver is nil"},
		{"twice", func() { Register("x", named("a")); Register("x", named("b")) }, "sidecar: Register called twice for driver x"},
		{"twice in another case", func() { Register("x", named("a")); Register("X", named("b")) }, "sidecar: Register called twice for driver X"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			clean(t)
			defer func() {
				if got := recover(); got != tt.want {
					t.Errorf("Register panicked with %v, want %q", got, tt.want)
				}
				// A panic must not leave the registry locked.
				Drivers()
			}()
			tt.register()
		})
	}
}

func TestDriversAreSorted(t *testing.T) {
	clean(t)
	for _, name := range []string{"pipy", "Envoy", "null"} {
		Register(name, named(name))
	}
	if diff := cmp.Diff([]string{"envoy", "null", "pipy"}, Drivers()); diff != "" {
		t.Errorf("Drivers() (-want +got):\n%s", diff)
	}
}

func TestInstallDriver(t *testing.T) {
	for _, install := range []struct {
		name string
		f    func(string) error
	}{{"InstallDriver", InstallDriver}, {"InitDriver", InitDriver}} {
		t.Run(install.name, func(t *testing.T) {
			clean(t)
			Register("envoy", named("envoy"))
			Register("pipy", named("pipy"))
			if err := install.f("PIPY"); err != nil {
				t.Fatal(err)
			}
			want := `sidecar: unknown driver "haproxy" (forgotten import?); registered are: envoy, pipy`
			if err := install.f("haproxy"); err == nil || err.Error() != want {
				t.Errorf("an unknown name gives the error %v, want %s", err, want)
			}
			if err := Patch(&driver.InjectorContext{}); err == nil || err.Error() != "pipy patches" {
				t.Errorf("after an unknown name Patch returned %v, want the driver that was installed before", err)
			}
		})
	}
}

func TestWithoutDriver(t *testing.T) {
	clean(t)
	const want = "sidecar: unknown driver (forgot to init?)"
	Register("envoy", named("envoy"))
	for _, ctx := range []context.Context{context.Background(), &driver.InjectorContext{}, &driver.ControllerContext{}} {
		if err := Patch(ctx); err == nil || err.Error() != want {
			t.Errorf("Patch(%T) returned %v, want %s", ctx, err, want)
		}
		if _, err := Start(ctx); err == nil || err.Error() != want {
			t.Errorf("Start(%T) returned %v, want %s", ctx, err, want)
		}
	}
}

func TestMissingContext(t *testing.T) {
	clean(t)
	Register("envoy", named("envoy"))
	if err := InstallDriver("envoy"); err != nil {
		t.Fatal(err)
	}
	if err := Patch(context.Background()); err == nil || err.Error() != "missing Injector Context" {
		t.Errorf("Patch returned %v", err)
	}
	if _, err := Start(context.Background()); err == nil || err.Error() != "missing Controller Context" {
		t.Errorf("Start returned %v", err)
	}
}

func TestClassChooses(t *testing.T) {
	clean(t)
	Register("envoy", named("envoy"))
	Register("Pipy", named("pipy"))
	if err := InstallDriver("envoy"); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ class, want string }{
		{"", "envoy"},
		{"envoy", "envoy"},
		{"pipy", "pipy"},
		{"PiPy", "pipy"},
	} {
		inj := &driver.InjectorContext{Sidecar: driver.Sidecar{Class: tt.class}}
		ctx, cancel := context.WithCancel(inj)
		defer cancel()
		if err := Patch(ctx); err == nil || err.Error() != tt.want+" patches" {
			t.Errorf("class %q: Patch returned %v, want it to call %s", tt.class, err, tt.want)
		}
		probes, err := Start(&driver.ControllerContext{SidecarClass: tt.class})
		if err != nil || probes.GetID() != tt.want {
			t.Errorf("class %q: Start returned %v, %v, want it to call %s", tt.class, probes, err, tt.want)
		}
	}
	const want = `sidecar: unknown driver "haproxy" (forgotten import?); registered are: envoy, pipy`
	if err := Patch(&driver.InjectorContext{Sidecar: driver.Sidecar{Class: "haproxy"}}); err == nil || err.Error() != want {
		t.Errorf("Patch for an unknown class returned %v, want %s", err, want)
	}
	if _, err := Start(&driver.ControllerContext{SidecarClass: "haproxy"}); err == nil || err.Error() != want {
		t.Errorf("Start for an unknown class returned %v, want %s", err, want)
	}
}

func TestOptionalInterfaces(t *testing.T) {
	clean(t)
	Register("Full", full{})
	Register("plain", named("plain"))
	if diff := cmp.Diff(map[string]string{"full": "spec: {}"}, PodTemplates()); diff != "" {
		t.Errorf("PodTemplates() (-want +got):\n%s", diff)
	}
	for _, tt := range []struct{ name, os, want string }{
		{"full", "linux", "proxy:linux"},
		{"FULL", "windows", "proxy:windows"},
		{"plain", "linux", ""},
		{"unknown", "linux", ""},
	} {
		if got := Image(tt.name, tt.os); got != tt.want {
			t.Errorf("Image(%q, %q) = %q, want %q", tt.name, tt.os, got, tt.want)
		}
	}
}

// TestConcurrency calls everything at once; the race detector does the checking.
func TestConcurrency(t *testing.T) {
	clean(t)
	Register("envoy", full{"envoy"})
	if err := InstallDriver("envoy"); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			name := fmt.Sprintf("driver-%d", i)
			Register(name, named(name))
			if err := InstallDriver(name); err != nil {
				t.Error(err)
			}
			for range 100 {
				if err := Patch(&driver.InjectorContext{Sidecar: driver.Sidecar{Class: name}}); err == nil || err.Error() != name+" patches" {
					t.Errorf("Patch for %s returned %v", name, err)
				}
				Drivers()
				PodTemplates()
				Image("envoy", "linux")
			}
		})
	}
	wg.Wait()
	if got := len(Drivers()); got != 9 {
		t.Errorf("there are %d drivers, want 9", got)
	}
}
