package command

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/test/demo"
	"github.com/outrigger-mesh/outrigger/test/lab"
)

// newDemoCommand returns the command demo.
func newDemoCommand() *cobra.Command {
	var (
		opts     demo.Options
		programs programFlags
		log      logFlags
	)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run the bookstore in a mesh on this machine, without a cluster",
		Long: `Run the bookstore in a mesh on this machine, without a cluster.

Each pod is a network namespace with its own address, an application, a real proxy
and the agent; the controller is the real one and reads manifests from a folder. The
demo shows who calls whom with which identity and whose requests are denied. While
requests are sent, it changes a traffic split, kills the controller and changes policies.
It prints the address of a dashboard that shows the same in a browser.

All sidecars have the same class, which is envoy unless --class names another. With
--class mixed, some are envoy, some are haproxy and some are pipy, and they use mTLS with
each other; the demo shows which pod has which.

The commands stat, top, edges, tap, why and proxy can be tried on it in another terminal:
'outrigger lab stat all'.

The demo needs Linux. It creates network namespaces, so it must run as root, or as a user
who may create user namespaces and has a range of IDs in /etc/subuid and /etc/subgid. It
needs the programs outrigger-agent and bookstore, beside itself or in PATH, and the
proxies' programs, in PATH, in the variables ENVOY, PIPY and HAPROXY, or where 'make
envoy' installs Envoy. It does not change the machine's own network. It ends with Ctrl-C
or after --for, and removes everything that it created.

Where it may not create namespaces, such as in a container with ordinary rights, it leaves
out traffic: it shows which pods get sidecars, who may call whom and why, and has the real
proxies check their configurations. 'docker run --privileged' turns traffic on.`,
		Example: `  # until Ctrl-C
  sudo outrigger-lab demo

  # for a minute
  sudo outrigger-lab demo --for 60s

  # three kinds of proxies in one mesh
  sudo outrigger-lab demo --class mixed --proxy pipy=/opt/pipy/bin/pipy`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if opts.For < 0 {
				return usage.Errorf("--for %s: give a time such as 60s, or 0 for no end", opts.For)
			}
			if opts.Log, err = log.logger(cmd.ErrOrStderr()); err != nil {
				return err
			}
			var missing error
			opts.Bookstore, missing = findProgram(opts.Bookstore, "bookstore", "bookstore")
			if opts.Programs, err = programs.find(); errors.As(err, &usage.Error{}) {
				return err
			}
			if err := errors.Join(missing, err, demo.CheckClass(opts.Class, opts.Programs)); err != nil {
				return err
			}
			if err := enter(); err != nil {
				return err
			}
			unavailable := lab.Available()
			if unavailable != nil && !errors.Is(unavailable, lab.ErrUnavailable) {
				return fmt.Errorf("the demo cannot run here: %w", unavailable)
			}
			if opts.Dir, err = os.MkdirTemp("", "outrigger-demo-"); err != nil {
				return err
			}
			opts.Out = terminal.Writer(cmd.OutOrStdout())
			if unavailable != nil {
				err = demoFiles(cmd, opts, unavailable)
			} else {
				err = demo.Run(cmd.Context(), opts)
			}
			return errors.Join(err, os.RemoveAll(opts.Dir))
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&opts.For, "for", 0, "how long to run after the mesh is set up; 0 means until Ctrl-C")
	programs.add(flags)
	flags.StringVar(&opts.Dashboard, "dashboard", "127.0.0.1:0", "HOST:PORT at which the dashboard is served; port 0 means a free one")
	flags.StringVar(&opts.DebugListen, "debug-listen", "127.0.0.1:9092", "HOST:PORT of the controller's debug pages on this machine, for --debug-address of other commands; another port if it is taken")
	flags.StringVar(&opts.Class, "class", "envoy", "sidecar class of all pods, or mixed")
	flags.StringVar(&opts.Bookstore, "bookstore", "", "the program bookstore of samples/bookstore (default beside this program or in PATH)")
	log.add(flags)
	return cmd
}
