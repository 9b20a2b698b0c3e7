// Package app is the program outrigger as one function. A vendor builds Outrigger
// with an additional driver by importing the driver and calling Main:
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

// Main runs the program with the registered drivers and exits with its exit code.
func Main() { os.Exit(cli.Main(install.Commands()...)) }
