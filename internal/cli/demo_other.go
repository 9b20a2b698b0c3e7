//go:build !linux

package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// newDemoCommand returns the command demo, which needs Linux and here returns an error.
func newDemoCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "demo",
		Short:              "Run the bookstore in a mesh on this machine, without a cluster (Linux only)",
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return fmt.Errorf("the demo needs Linux, whose network namespaces are its pods, and this is %s; run it in a virtual machine with Linux", runtime.GOOS)
		},
	}
}
