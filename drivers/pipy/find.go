package pipy

import (
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/program"
)

var _ driver.Finder = Driver{}

// FindProxy returns the path of Pipy: the value of the environment variable PIPY, or the
// pipy in PATH. There are no binaries for every system, so the error says how to build it.
func (Driver) FindProxy() (string, error) {
	return program.Find("PIPY", "build Pipy "+version+" from github.com/flomesh-io/pipy, and set PIPY to the program's path or put it into PATH", "pipy")
}
