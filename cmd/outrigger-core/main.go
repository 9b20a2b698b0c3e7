// Command outrigger-core is the program outrigger without 'outrigger install', hence
// without Helm: the control plane, the tools that work on files, and the demo.
package main

import (
	"os"

	// An image made from nothing has no certificates of public CAs, by which a Vault or a
	// collector outside of the cluster is verified.
	_ "golang.org/x/crypto/x509roots/fallback"

	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/internal/cli"
)

func main() { os.Exit(cli.Main()) }
