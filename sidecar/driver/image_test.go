package driver_test

import (
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

func TestOldImages(t *testing.T) {
	releases := &driver.Releases{Proxy: "envoy", Oldest: "1.36"}
	for image, old := range map[string]bool{
		"envoyproxy/envoy-distroless:v1.22.2":                      true,
		"envoyproxy/envoy-distroless:v1.22.2@sha256:541d31419b95e": true,
		"localhost:5000/envoy:1.35.9":                              true,
		"envoy:v1.22-latest":                                       true,
		"envoy:v1":                                                 true,
		"envoy:0":                                                  true,
		"docker.io/envoyproxy/envoy:v1.36.0":                       false,
		"docker.io/envoyproxy/envoy:v1.36":                         false,
		"envoy:v1.36.0-dev":                                        false,
		"envoy:v1.100.0":                                           false,
		"envoy:v2":                                                 false,
		"envoy":                                                    false,
		"envoy:latest":                                             false,
		"envoy:dev-5a1ba8":                                         false,
		"envoy@sha256:541d31419b95e":                               false,
		"localhost:1/envoy":                                        false,
		"example.com/my-proxy:1.0":                                 false,
		"envoy/other:1.0":                                          false,
		"":                                                         false,
	} {
		if err := releases.CheckImage(image); (err != nil) != old {
			t.Errorf("%q: %v", image, err)
		}
	}
}
