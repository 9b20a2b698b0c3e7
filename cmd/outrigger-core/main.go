// Command outrigger-core is the program outrigger without 'outrigger install', hence
// without Helm: the control plane, the tools that work on files, and the demo.
package main

import (
	"os"

	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/internal/cli"
)

func main() { os.Exit(cli.Main()) }
