// Command outrigger-lab runs meshes on this machine, without a cluster: a folder of manifests,
// or the demo.
package main

import (
	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/test/command"
)

func main() { command.Main() }
