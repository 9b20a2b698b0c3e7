// Command outrigger is the control plane and its tools, with the standard
// drivers.
package main

import (
	"github.com/outrigger-mesh/outrigger/app"
	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
)

func main() { app.Main() }
