// Package standard registers the drivers that come with Outrigger. Import it for this
// side effect.
package standard

import (
	_ "github.com/outrigger-mesh/outrigger/drivers/envoy"   // registers envoy
	_ "github.com/outrigger-mesh/outrigger/drivers/grpc"    // registers grpc
	_ "github.com/outrigger-mesh/outrigger/drivers/haproxy" // registers haproxy
	_ "github.com/outrigger-mesh/outrigger/drivers/null"    // registers null
	_ "github.com/outrigger-mesh/outrigger/drivers/pipy"    // registers pipy
)
