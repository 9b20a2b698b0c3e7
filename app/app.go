// Package app is the whole program outrigger as one call. A vendor's program
// imports its driver and calls Main, and is Outrigger with that driver:
//
//	package main
//
//	import (
//		"github.com/outrigger-mesh/outrigger/app"
//		_ "github.com/outrigger-mesh/outrigger/drivers/standard"
//
//		_ "example.com/myproxy"
//	)
//
//	func main() { app.Main() }
package app

import (
	"os"

	"github.com/outrigger-mesh/outrigger/internal/cli"
	"github.com/outrigger-mesh/outrigger/internal/cli/install"
)

// Main runs the program with the drivers that are registered, and ends the
// process with its exit code.
func Main() { os.Exit(cli.Main(install.Commands()...)) }
