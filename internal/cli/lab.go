package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"
)

// labProgram is the program that runs pods on this machine. It is a program of its own, since
// the control plane in a cluster needs nothing of it.
const labProgram = "outrigger-lab"

// newLabCommand returns the command lab, which is another program.
func newLabCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "lab",
		Short: "Run your own programs in a mesh on this machine, without a cluster (Linux only)",
		Long: `Run your own programs in a mesh on this machine, without a cluster.

This calls the program outrigger-lab, which must be beside this program or in PATH, with
the same arguments: 'outrigger lab -f DIR' is 'outrigger-lab -f DIR'. It needs Linux.
'outrigger lab --help' describes it.`,
		Example: `  # run the manifests of a folder
  sudo outrigger lab -f shop

  # run a command in one of their pods
  sudo outrigger lab exec client -- curl http://web/`,
		DisableFlagParsing: true,
		RunE:               func(cmd *cobra.Command, args []string) error { return callLab(cmd, args) },
	}
}

// newDemoCommand returns the command demo, which is one of outrigger-lab.
func newDemoCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Run the bookstore in a mesh on this machine, without a cluster (Linux only)",
		Long: `Run the bookstore in a mesh on this machine, without a cluster.

This calls 'outrigger-lab demo' with the same arguments. The program outrigger-lab must be
beside this program or in PATH. It needs Linux.`,
		DisableFlagParsing: true,
		RunE:               func(cmd *cobra.Command, args []string) error { return callLab(cmd, append([]string{"demo"}, args...)) },
	}
}

// callLab replaces this program by the lab's, with the arguments.
func callLab(cmd *cobra.Command, args []string) error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("%s needs Linux, whose network namespaces are its pods, and this is %s; run it in a virtual machine with Linux", cmd.CommandPath(), runtime.GOOS)
	}
	program, err := FindProgram(labProgram)
	if err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", program, syscall.Exec(program, append([]string{program}, args...), os.Environ()))
}

// FindProgram returns the absolute path of the program with the name that is beside this program
// or else in PATH.
func FindProgram(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this program: %w", err)
	}
	program := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	found, err := exec.LookPath(name)
	if err == nil {
		program, err = filepath.Abs(found)
	}
	if err != nil {
		return "", fmt.Errorf("the program %s is neither beside %s nor in PATH; build it with 'make build'", name, self)
	}
	return program, nil
}
