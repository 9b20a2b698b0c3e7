package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/demo"
	"github.com/outrigger-mesh/outrigger/internal/lab"
	"github.com/outrigger-mesh/outrigger/internal/localmesh"
)

// newDemoCommand returns the command demo.
func newDemoCommand() *cobra.Command {
	var (
		opts  demo.Options
		envoy string
		log   logFlags
	)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run the bookstore in a mesh on this machine, without a cluster",
		Long: `Run the bookstore in a mesh on this machine, without a cluster.

Each pod is a network namespace with its own address, an application, a real proxy
and the agent; the controller is the real one and reads manifests from a folder. The
demo shows who calls whom with which identity and who is denied, shifts a traffic
split, kills the controller and changes policies, all while requests run.

It needs Linux and root, because it makes network namespaces, and the programs
outrigger-agent, bookstore and envoy, which it looks for beside itself, in PATH and
where 'make envoy' puts it. The machine's own network is not touched. Everything ends
with Ctrl-C or after --for, and nothing is left behind.`,
		Example: `  # until Ctrl-C
  sudo bin/outrigger demo

  # for a minute
  sudo bin/outrigger demo --for 60s`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if opts.For < 0 {
				return misused("--for %s: give a time such as 60s, or 0 for no end", opts.For)
			}
			if opts.Log, err = log.logger(cmd.ErrOrStderr()); err != nil {
				return err
			}
			if err := lab.Available(); err != nil {
				return fmt.Errorf("the demo cannot run here: %w", err)
			}
			if err := findPrograms(&opts, envoy); err != nil {
				return err
			}
			if opts.Dir, err = os.MkdirTemp("", "outrigger-demo-"); err != nil {
				return err
			}
			opts.Out = cmd.OutOrStdout()
			return errors.Join(demo.Run(cmd.Context(), opts), os.RemoveAll(opts.Dir))
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&opts.For, "for", 0, "how long to run once the mesh is set up; 0 is until Ctrl-C")
	flags.StringVar(&opts.Programs.Agent, "agent", "", "the program outrigger-agent (default beside this program or in PATH)")
	flags.StringVar(&envoy, "envoy", "", "the program envoy (default $ENVOY, in PATH or where 'make envoy' puts it)")
	flags.StringVar(&opts.Bookstore, "bookstore", "", "the program bookstore of samples/bookstore (default beside this program or in PATH)")
	log.add(flags)
	return cmd
}

// findPrograms looks for the programs that were not named.
func findPrograms(opts *demo.Options, envoy string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	opts.Programs.Outrigger = self
	find := func(program *string, name, flag string) (err error) {
		if *program == "" {
			*program = filepath.Join(filepath.Dir(self), name)
			if _, err := os.Stat(*program); err != nil {
				*program, err = exec.LookPath(name)
				if err != nil {
					return fmt.Errorf("there is no program %s beside %s and in PATH; build it with 'make build', or name it with --%s", name, self, flag)
				}
			}
		}
		*program, err = filepath.Abs(*program)
		return err
	}
	if envoy == "" {
		if envoy, err = localmesh.FindEnvoy(); err != nil {
			return err
		}
	}
	opts.Programs.Envoy = envoy
	return errors.Join(find(&opts.Bookstore, "bookstore", "bookstore"), find(&opts.Programs.Agent, "outrigger-agent", "agent"))
}
