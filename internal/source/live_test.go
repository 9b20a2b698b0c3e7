package source_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// TestLive checks that users of the configuration see every change, in order.
func TestLive(t *testing.T) {
	config := func(spec string) *source.Config {
		c := source.NewConfig(parse(t, spec), options(nil))
		return c
	}
	first := config(`sidecar: {sidecarClass: pipy, maxDataPlaneConnections: 1, sidecarDrivers: [{sidecarName: pipy, proxyServerPort: 6061}]}`)
	second := config(`
sidecar: {sidecarClass: "null", maxDataPlaneConnections: 2, configResyncInterval: 1m, logLevel: debug, enablePrivilegedInitContainer: true, sidecarImage: a, sidecarWindowsImage: b, initContainerImage: c,
  sidecarDrivers: [{sidecarName: pipy, proxyServerPort: 6062, sidecarDisabledMTLS: true}]}
observability: {enableDebugServer: true}
certificate: {trustDomain: mesh.example.com, serviceCertValidityDuration: 1h}`)
	live := source.NewLive(first)
	var changes []string
	live.OnChange(func(c *source.Config) { changes = append(changes, c.GetSidecarClass()) })
	live.Set(second)
	live.Set(first)
	live.Set(second)
	if want := []string{"pipy", "null", "pipy", "null"}; !slices.Equal(changes, want) {
		t.Errorf("got %q, want %q", changes, want)
	}
	all := func(c driver.Configurator) []any {
		return []any{
			c.GetMeshConfig(), c.GetSidecarClass(), c.GetSidecarImage("null"), c.GetSidecarWindowsImage("null"), c.GetInitContainerImage("null"),
			c.GetProxyServerPort("pipy"), c.IsMTLSDisabled("pipy"), c.IsPrivilegedInitContainer(), c.GetSidecarLogLevel(), c.GetMaxDataPlaneConnections(),
			c.GetConfigResyncInterval(), c.GetServiceCertValidityPeriod(), c.IsDebugServerEnabled(), c.GetTrustDomain(),
		}
	}
	if got, want, former := all(live), all(second), all(first); !slices.Equal(got, want) {
		t.Errorf("the live configuration is %v, want %v", got, want)
	} else {
		for i := range got {
			if got[i] == former[i] {
				t.Errorf("value %d, %v, is not distinguished from the former one", i, got[i])
			}
		}
	}
	if live.Current() != second {
		t.Error("Current is not the last one that was set")
	}

	// For the race detector.
	var running sync.WaitGroup
	for range 8 {
		running.Go(func() {
			for range 100 {
				live.Set(first)
				_ = live.GetMaxDataPlaneConnections()
			}
		})
	}
	running.Wait()
}
