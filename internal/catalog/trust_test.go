package catalog

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestTrust checks that no proxy gets a View before the roots are known, and that all are
// notified when the roots change.
func TestTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := runningWith(t, Options{Trusts: true})
		c.Apply(town()...)
		c.Synced()
		time.Sleep(time.Hour)
		if isReady(c) {
			t.Error("a Snapshot was made before anybody was trusted")
		}
		c.Trust([]byte("first"))
		<-c.Ready()
		view, _ := c.View("uid-shop/web-1")
		if view.Settings.Roots != "first" || c.Snapshot().Settings.Roots != "first" {
			t.Errorf("the roots are %q", view.Settings.Roots)
		}
		before := view.Settings
		changed := c.Subscribe(t.Context().Done())
		c.Trust([]byte("first second"))
		<-changed
		view, _ = c.View("uid-shop/web-1")
		if view.Settings.Roots != "first second" || view.Settings.TrustDomain != before.TrustDomain || before.Roots != "first" {
			t.Errorf("the settings are %+v, and were %+v", view.Settings, before)
		}
		// Other settings keep the roots.
		c.Apply(settings(permissive, func(s *mesh.Settings) { s.HealthChecks = true }))
		time.Sleep(time.Hour)
		if view, _ = c.View("uid-shop/web-1"); view.Settings.Roots != "first second" || !view.Settings.HealthChecks {
			t.Errorf("other settings are %+v", view.Settings)
		}
	})
}
