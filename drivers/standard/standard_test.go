package standard_test

import (
	"context"
	"os"
	"slices"
	"testing"

	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
	"github.com/outrigger-mesh/outrigger/sidecar/podtemplate"
)

// TestConformance runs the suite with every registered driver, so that none can be added
// without it.
func TestConformance(t *testing.T) {
	for _, name := range sidecar.Drivers() {
		t.Run(name, func(t *testing.T) {
			d, err := sidecar.Lookup(name)
			if err != nil {
				t.Fatal(err)
			}
			drivertest.TestDriver(t, d)
		})
	}
}

// TestConformanceInInjector runs the suite with templates that are parsed once and used
// for every pod, as in the injector.
func TestConformanceInInjector(t *testing.T) {
	for _, name := range sidecar.Drivers() {
		t.Run(name, func(t *testing.T) {
			d, err := sidecar.Lookup(name)
			if err != nil {
				t.Fatal(err)
			}
			set, err := podtemplate.NewSet(sidecar.PodTemplates(), nil)
			if err != nil {
				t.Fatal(err)
			}
			drivertest.TestPatch(t, inInjector{Driver: d, templates: set})
		})
	}
}

// inInjector is a driver that gets templates in its InjectorContext.
type inInjector struct {
	driver.Driver
	templates driver.Templates
}

func (d inInjector) Patch(ctx context.Context) error {
	inj, err := driver.InjectorFrom(ctx)
	if err != nil {
		return d.Driver.Patch(ctx)
	}
	with := *inj
	with.Context, with.Templates = ctx, d.templates
	return d.Driver.Patch(&with)
}

// Proxyless returns what the driver declares.
func (d inInjector) Proxyless() bool { return driver.CapabilitiesOf(d.Driver).Proxyless }

// TestAllRegistered compares the directories with the registered drivers.
func TestAllRegistered(t *testing.T) {
	entries, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && e.Name() != "standard" && !slices.Contains(sidecar.Drivers(), e.Name()) {
			t.Errorf("drivers/%s is not imported here or registers no driver of that name", e.Name())
		}
	}
}
