// Command outrigger-lab runs meshes on this machine, without a cluster: a folder of manifests,
// or the demo.
package main

import (
	"github.com/outrigger-mesh/outrigger/app/lab"
	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
)

func main() { lab.Main() }
