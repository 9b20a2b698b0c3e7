package pipy

import (
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/program"
)

var _ driver.Finder = Driver{}

// FindProxy returns the path of Pipy: the program that the variable PIPY names, or the
// one in PATH. Nobody ships it as a binary for every system, so the error says how to get
// one.
func (Driver) FindProxy() (string, error) {
	return program.Find("PIPY", "build Pipy "+version+" from github.com/flomesh-io/pipy, and set PIPY to the program's path or put it into PATH", "pipy")
}
