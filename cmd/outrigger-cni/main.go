// Command outrigger-cni redirects pods' traffic on the node, so that no pod needs
// NET_ADMIN. It is a CNI plug-in and its installer.
package main

import (
	"os"

	"github.com/outrigger-mesh/outrigger/internal/cni"
)

func main() { os.Exit(cni.Main(os.Args[1:])) }
