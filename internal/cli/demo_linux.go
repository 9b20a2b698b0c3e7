package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/demo"
	"github.com/outrigger-mesh/outrigger/internal/lab"
	"github.com/outrigger-mesh/outrigger/internal/localmesh"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/sidecar"
)

// newDemoCommand returns the command demo.
func newDemoCommand() *cobra.Command {
	var (
		opts    demo.Options
		proxies []string
		log     logFlags
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

The commands stat, top, edges and proxy can be tried on it in another terminal, with the
--debug-address that it prints.

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
  sudo bin/outrigger demo

  # for a minute
  sudo bin/outrigger demo --for 60s

  # three kinds of proxies in one mesh
  sudo bin/outrigger demo --class mixed --proxy pipy=/opt/pipy/bin/pipy`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if opts.For < 0 {
				return usage.Errorf("--for %s: give a time such as 60s, or 0 for no end", opts.For)
			}
			if opts.Log, err = log.logger(cmd.ErrOrStderr()); err != nil {
				return err
			}
			if err := findPrograms(&opts, proxies); err != nil {
				return err
			}
			lab.Enter()
			// Other users than root get a user namespace, in which they are root.
			lab.Enter()
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
	flags.StringVar(&opts.Programs.Agent, "agent", "", "the program outrigger-agent (default beside this program or in PATH)")
	flags.StringVar(&opts.Dashboard, "dashboard", "127.0.0.1:0", "HOST:PORT at which the dashboard is served; port 0 means a free one")
	flags.StringVar(&opts.DebugListen, "debug-listen", "127.0.0.1:9092", "HOST:PORT of the controller's debug pages on this machine, for --debug-address of other commands; another port if it is taken")
	flags.StringVar(&opts.Class, "class", "envoy", "sidecar class of all pods, or mixed")
	flags.StringArrayVar(&proxies, "proxy", nil, "the program of a sidecar class, as CLASS=PATH; may be given several times (default where the class's driver finds it)")
	flags.StringVar(&opts.Bookstore, "bookstore", "", "the program bookstore of samples/bookstore (default beside this program or in PATH)")
	log.add(flags)
	return cmd
}

// findPrograms finds the programs that no flag names. The argument proxies has the proxies
// that a flag names, as CLASS=PATH.
func findPrograms(opts *demo.Options, proxies []string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	opts.Programs.Outrigger = self
	find := func(program *string, name, flag string) error {
		if *program != "" {
			return named(program, flag)
		}
		*program = filepath.Join(filepath.Dir(self), name)
		if _, err := os.Stat(*program); err == nil {
			return nil
		}
		found, err := exec.LookPath(name)
		if err == nil {
			*program, err = filepath.Abs(found)
		}
		if err != nil {
			return fmt.Errorf("the program %s is neither beside %s nor in PATH; build it with 'make build', or name it with --%s", name, self, flag)
		}
		return nil
	}
	errs := []error{find(&opts.Bookstore, "bookstore", "bookstore"), find(&opts.Programs.Agent, "outrigger-agent", "agent")}
	opts.Programs.Proxies, opts.Programs.Missing = localmesh.FindProxies()
	for _, text := range proxies {
		class, program, found := strings.Cut(text, "=")
		if !found {
			return usage.Errorf("--proxy %q: give CLASS=PATH, for example pipy=/opt/pipy/bin/pipy", text)
		}
		if _, err := sidecar.Lookup(class); err != nil {
			errs = append(errs, fmt.Errorf("--proxy %s: %w", text, err))
			continue
		}
		errs = append(errs, named(&program, "proxy "+class))
		opts.Programs.Proxies[class] = program
	}
	return errors.Join(append(errs, demo.CheckClass(opts.Class, opts.Programs))...)
}

// named replaces the program that a flag names by its absolute path.
func named(program *string, flag string) error {
	found, err := exec.LookPath(*program)
	if err == nil {
		*program, err = filepath.Abs(found)
	}
	if err != nil {
		return fmt.Errorf("--%s: %w", flag, err)
	}
	return nil
}
