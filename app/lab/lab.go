// Package lab is the program outrigger-lab as one function. A vendor builds it with an
// additional driver, as with package app.
package lab

import (
	"os"

	"github.com/outrigger-mesh/outrigger/internal/cli/local"
)

// Main runs the program with the registered drivers and exits with its exit code.
func Main() { os.Exit(local.Main()) }
