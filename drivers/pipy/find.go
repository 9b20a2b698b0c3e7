package pipy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

var _ driver.Finder = Driver{}

// FindProxy returns the path of Pipy: the program that the variable PIPY names, or the
// one in PATH. Nobody ships it as a binary for every system, so the error, which wraps
// driver.ErrNoProxy, says how to get one.
func (Driver) FindProxy() (string, error) {
	named := os.Getenv("PIPY")
	if named != "" {
		program, err := exec.LookPath(named)
		if err != nil {
			return "", fmt.Errorf("pipy: %w: PIPY is %q: %v", driver.ErrNoProxy, named, err)
		}
		return filepath.Abs(program)
	}
	program, err := exec.LookPath("pipy")
	if err != nil {
		return "", fmt.Errorf("pipy: %w: build Pipy %s from github.com/flomesh-io/pipy, and set PIPY to the program's path or put it into PATH",
			driver.ErrNoProxy, version)
	}
	return filepath.Abs(program)
}
