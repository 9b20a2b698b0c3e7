package haproxy

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// The optional interfaces that the driver implements.
var _ interface {
	driver.Driver
	driver.Templater
	driver.Imager
	driver.Translator
	driver.Checker
	driver.Finder
	driver.Featurer
	driver.Redirector
} = Driver{}

// check validates the View with a real HAProxy, and skips the test if there is none.
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

// TestCheck validates the Views of this package with a real HAProxy.
func TestCheck(t *testing.T) {
	for name, f := range fixtures() {
		t.Run(name, func(t *testing.T) {
			if err := check(t, f.view()); err != nil {
				t.Error(err)
			}
		})
	}
}
