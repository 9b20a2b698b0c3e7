package haproxy

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// The parts of the contract that the driver has.
var _ interface {
	driver.Driver
	driver.Templater
	driver.Imager
	driver.Translator
	driver.Checker
	driver.Finder
	driver.Featurer
} = Driver{}

// check asks a real HAProxy about the View, and skips the test where there is none.
func check(t *testing.T, view *mesh.View) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := Driver{}.Check(ctx, view)
	if errors.Is(err, driver.ErrNoProxy) {
		t.Skip("SKIPPED: ", err)
	}
	return err
}

// TestCheck asks a real HAProxy about the Views of this package.
func TestCheck(t *testing.T) {
	for name, f := range fixtures() {
		t.Run(name, func(t *testing.T) {
			if err := check(t, f.view()); err != nil {
				t.Error(err)
			}
		})
	}
}
