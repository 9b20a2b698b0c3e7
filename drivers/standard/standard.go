// Package standard registers every driver that comes with Outrigger. A program
// imports it for that alone.
package standard

import (
	_ "github.com/outrigger-mesh/outrigger/drivers/envoy"   // registers envoy
	_ "github.com/outrigger-mesh/outrigger/drivers/haproxy" // registers haproxy
	_ "github.com/outrigger-mesh/outrigger/drivers/null"    // registers null
	_ "github.com/outrigger-mesh/outrigger/drivers/pipy"    // registers pipy
)
