// Package command implements the program outrigger-lab, which runs meshes on this machine,
// without a cluster: a user's own manifests, or the demo. Its other commands look into a
// running one. A vendor builds the program with an additional driver, as with package app.
package command

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/cli"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/internal/version"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/test/lab"
	"github.com/outrigger-mesh/outrigger/test/playground"
)

// Main runs the program with the registered drivers and exits with its exit code.
func Main() { os.Exit(run()) }

func run() int { return cli.Run(NewRootCommand()) }

// borrowed are the commands of the program outrigger that look into a running mesh. Without an
// address they find the lab by themselves.
var borrowed = []string{"stat", "top", "edges", "tap", "why", "proxy"}

// NewRootCommand returns the root command.
func NewRootCommand() *cobra.Command {
	root := newLabCommand()
	root.SetFlagErrorFunc(cli.FlagError)
	root.AddCommand(newExecCommand(), newLogsCommand(), newListCommand(), newDemoCommand())
	from := cli.NewRootCommand()
	for _, cmd := range from.Commands() {
		switch {
		case slices.Contains(borrowed, cmd.Name()):
			from.RemoveCommand(cmd)
			root.AddCommand(cmd)
		case cmd.Name() == "controller":
			// A mesh starts its controller with this program.
			from.RemoveCommand(cmd)
			cmd.Hidden = true
			root.AddCommand(cmd)
		}
	}
	return root
}

// enter makes this program root of a user namespace if it is not root already. The commands
// that look for the mesh stay outside, so both must agree on the folder.
func enter() error {
	dir, err := playground.SessionsDir()
	if err != nil {
		return err
	}
	if err := os.Setenv(playground.SessionsVariable, dir); err != nil {
		return err
	}
	lab.Enter()
	return nil
}

func newLabCommand() *cobra.Command {
	var (
		opts            playground.Options
		commands, roots []string
		programs        programFlags
		log             logFlags
	)
	cmd := &cobra.Command{
		Use:   "outrigger-lab -f DIR",
		Short: "Run your own programs in a mesh on this machine, without a cluster",
		Long: `Run your own programs in a mesh on this machine, without a cluster.

The pods of the manifests run as they would in a mesh: each in a network namespace of its
own, with a sidecar, an identity and redirected traffic. Services have addresses and names,
and the controller, the agent and the proxies are the real programs. When a manifest
changes, the mesh follows; one that cannot be used changes nothing.

Images are not run. A container's command is the manifest's, and runs with the files of this
machine, or with those of a folder that --root names, such as an unpacked image. It never
changes these files: /tmp, /run and the folders in /var/cache, /var/lib, /var/log and
/var/spool are empty, and belong to the container. Where the manifest relies on the image's
own command, give one with --command. A container that ends is restarted as in a cluster,
with shorter pauses.

Without a MeshConfig in the manifests, the mesh has the chart's: every pod may call every
other. Namespaces without the mesh's labels join it.

Output of containers is shown after their names. In another terminal, 'outrigger lab exec'
runs a command in a pod, and 'outrigger lab stat', 'top', 'edges', 'tap', 'why' and 'proxy'
look into the mesh. The dashboard shows it in a browser.

The lab needs Linux, and root, or a user who may create user namespaces and has a range of
IDs in /etc/subuid and /etc/subgid. In a container it needs 'docker run --privileged' or
'podman run --privileged'. It does not change the machine's own network. It ends with Ctrl-C,
and at once with a second one, and removes everything that it created.

Exit codes: 0 it was ended, 1 something failed, 2 wrong usage. 'exec' ends with the code of
its command.`,
		Example: `  # run the manifests of a folder, until Ctrl-C
  sudo outrigger-lab -f shop

  # the image of shop/web has a command of its own: run this machine's nginx instead
  sudo outrigger-lab -f shop --command "shop/web=nginx -g 'daemon off;'"

  # all sidecars are HAProxy
  sudo outrigger-lab -f shop --class haproxy

  # run a command in a pod
  sudo outrigger-lab exec client -- curl http://web/`,
		Args:              usage.NoArgs,
		Version:           version.Get().String(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return findAddress(cmd) },
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if len(opts.Paths) == 0 {
				return usage.Errorf("-f DIR is missing: name a folder of manifests, or see 'outrigger-lab demo'")
			}
			if opts.For < 0 {
				return usage.Errorf("--for %s: give a time such as 60s, or 0 for no end", opts.For)
			}
			if opts.Log, err = log.logger(cmd.ErrOrStderr()); err != nil {
				return err
			}
			if opts.Commands, err = parseCommands(commands, roots); err != nil {
				return err
			}
			if opts.Name, err = sessionName(opts.Name, opts.Paths[0]); err != nil {
				return err
			}
			if opts.Programs, err = programs.find(); err != nil {
				return err
			}
			if opts.Class != "" && !sidecar.IsProxyless(opts.Class) {
				if err := opts.Programs.Check(opts.Class); err != nil {
					return err
				}
			}
			if err := enter(); err != nil {
				return err
			}
			if err := lab.Available(); err != nil {
				return fmt.Errorf("this machine cannot create pods: %w; in a container, 'docker run --privileged' or 'podman run --privileged' allows it", err)
			}
			if opts.Dir, err = os.MkdirTemp("", "outrigger-lab-"); err != nil {
				return err
			}
			opts.Out, opts.Err = terminal.Writer(cmd.OutOrStdout()), cmd.ErrOrStderr()
			return errors.Join(playground.Run(cmd.Context(), opts), os.RemoveAll(opts.Dir))
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&opts.Paths, "file", "f", nil, "folder or file of manifests; may be given several times")
	flags.StringArrayVar(&commands, "command", nil, "the command of a workload's containers, as NAMESPACE/WORKLOAD[/CONTAINER]=COMMAND; may be given several times")
	flags.StringArrayVar(&roots, "root", nil, "folder with the files of containers, in place of this machine's, as FOLDER or NAMESPACE/WORKLOAD[/CONTAINER]=FOLDER; may be given several times")
	flags.StringVar(&opts.Class, "class", "", "sidecar class of all pods that choose none (default the MeshConfig's)")
	flags.StringVar(&opts.Name, "name", "", "name of the lab, for other commands (default the folder's)")
	flags.BoolVar(&opts.Sidecars, "sidecar-logs", false, "show the output of sidecars too")
	flags.DurationVar(&opts.For, "for", 0, "how long to run after the mesh is set up; 0 means until Ctrl-C")
	flags.StringVar(&opts.Dashboard, "dashboard", "127.0.0.1:0", "HOST:PORT at which the dashboard is served; port 0 means a free one")
	flags.StringVar(&opts.DebugListen, "debug-listen", "127.0.0.1:9092", "HOST:PORT of the controller's debug pages on this machine; another port if it is taken")
	programs.add(flags)
	log.add(flags)
	return cmd
}

// parseCommands parses the flags --command and --root.
func parseCommands(commands, roots []string) (*playground.Commands, error) {
	parsed := new(playground.Commands)
	for _, text := range commands {
		if err := parsed.AddCommand(text); err != nil {
			return nil, usage.Errorf("--command %w", err)
		}
	}
	for _, text := range roots {
		if err := parsed.AddRoot(text); err != nil {
			return nil, usage.Errorf("--root %w", err)
		}
	}
	return parsed, nil
}

// sessionName returns the name that is given, or one made of a path.
func sessionName(given, path string) (string, error) {
	if given != "" {
		if !isName(given) {
			return "", usage.Errorf("--name %q: use letters, digits and dashes, at most %d of them", given, maxName)
		}
		return given, nil
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	name := strings.Map(func(r rune) rune {
		if isName(string(r)) {
			return r
		}
		return '-'
	}, filepath.Base(absolute))
	return name[:min(len(name), maxName)], nil
}

// maxName bounds the name of a lab, since the path of a socket is short.
const maxName = 30

func isName(text string) bool {
	return text != "" && len(text) <= maxName && !strings.ContainsFunc(text, func(r rune) bool {
		return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}

// findAddress sets the flag --debug-address of a command to the running lab's.
func findAddress(cmd *cobra.Command) error {
	flag := cmd.Flags().Lookup("debug-address")
	if flag == nil || flag.Changed {
		return nil
	}
	for _, name := range []string{"kubeconfig", "context"} {
		if other := cmd.Flags().Lookup(name); other != nil && other.Changed {
			return nil
		}
	}
	info, err := running("")
	if err != nil {
		return err
	}
	return cmd.Flags().Set("debug-address", info.Debug)
}

// running returns the running lab with the name, or the only one if the name is empty.
func running(name string) (playground.Info, error) {
	all, err := playground.Sessions()
	if err != nil {
		return playground.Info{}, err
	}
	var names []string
	for _, info := range all {
		if info.Name == name || name == "" && len(all) == 1 {
			return info, nil
		}
		names = append(names, info.Name)
	}
	switch {
	case len(all) == 0:
		return playground.Info{}, errors.New("no lab of this user is running; start one with 'outrigger lab -f DIR', and use sudo for both or for none")
	case name == "":
		return playground.Info{}, usage.Errorf("several labs are running, %s; choose one: 'exec' and 'logs' have the flag --lab, other commands --debug-address, and 'outrigger lab list' shows the addresses", strings.Join(names, ", "))
	}
	return playground.Info{}, fmt.Errorf("no lab %q is running; running are %s", name, strings.Join(names, ", "))
}

func newListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the running labs",
		Long:  `List the running labs of this user: their names, the addresses of their debug pages and dashboards, and their pods.`,
		Args:  usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := playground.Sessions()
			if err != nil {
				return err
			}
			table := terminal.NewTable(cmd.OutOrStdout(), 3)
			table.Header("NAME\tDEBUG ADDRESS\tPODS\tDASHBOARD")
			for _, info := range all {
				table.Row(info.Name, info.Debug, fmt.Sprint(len(info.Pods)), info.Dashboard)
			}
			return table.Flush()
		},
	}
}
