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
demo shows who calls whom with which identity and who is denied, shifts a traffic
split, kills the controller and changes policies, all while requests run.

All sidecars are of one class, envoy unless --class says otherwise. In a mixed mesh they
are of two, envoy and pipy, which speak mTLS with each other; which pod has which is
shown.

It needs Linux and root, because it makes network namespaces, or a user who has a range
of ids in /etc/subuid and /etc/subgid and may make user namespaces. It needs the
programs outrigger-agent and bookstore, which it looks for beside itself and in PATH,
and those of the proxies, which their drivers look for: in PATH, in the variables ENVOY,
PIPY and HAPROXY, and where 'make envoy' puts Envoy. The machine's own network is not
touched. Everything ends with Ctrl-C or after --for, and nothing is left behind.`,
		Example: `  # until Ctrl-C
  sudo bin/outrigger demo

  # for a minute
  sudo bin/outrigger demo --for 60s

  # two kinds of proxies in one mesh
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
			if err := lab.Available(); err != nil {
				return fmt.Errorf("the demo cannot run here: %w", err)
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
			return fmt.Errorf("there is no program %s beside %s and in PATH; build it with 'make build', or name it with --%s", name, self, flag)
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
