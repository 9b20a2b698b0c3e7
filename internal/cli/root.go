// Package cli implements the commands of the program outrigger, except those that need Helm,
// which are in package install. A command's file parses its flags and calls the internal
// package that does the work.
package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/internal/version"
	"github.com/outrigger-mesh/outrigger/sidecar"
)

// The program's exit codes.
const (
	exitOK      = 0
	exitFailed  = 1
	exitMisused = 2
	// exitRefused means that the command refused, or answers a question with no.
	exitRefused = 3
)

// errReported ends the program with exitFailed. The command has already printed the reason.
var errReported = errors.New("already reported")

// errRefused ends the program with exitRefused.
var errRefused = errors.New("refused")

// Main runs the program with its own commands and more, and returns its exit code.
func Main(more ...*cobra.Command) int {
	root := NewRootCommand(more...)
	if strings.HasPrefix(filepath.Base(os.Args[0]), "kubectl-") {
		// As a plug-in of kubectl it is called with two words.
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl outrigger"}
	}
	return Run(root)
}

// Run runs a program's root command until a signal ends it, and returns its exit code. A second
// signal ends the program at once.
func Run(root *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	// client-go logs in the same format as the program.
	klog.SetSlogLogger(slog.New(slog.NewJSONHandler(os.Stderr, nil)))
	return execute(ctx, root)
}

// execute runs the program's command, writes its error, and returns the exit code.
func execute(ctx context.Context, root *cobra.Command) int {
	ran, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errReported):
		return exitFailed
	case errors.Is(err, errRefused):
		return exitRefused
	}
	if code := usage.Code(0); errors.As(err, &code) {
		return int(code)
	}
	_, _ = terminal.FprintError(root.ErrOrStderr(), err)
	if errors.As(err, &usage.Refusal{}) {
		return exitRefused
	}
	if errors.As(err, &usage.Error{}) {
		terminal.Fprintf(root.ErrOrStderr(), "See '%s --help'.\n", ran.CommandPath())
		return exitMisused
	}
	return exitFailed
}

// NewRootCommand returns the root command with the subcommands of all programs, and with more:
// those of some programs only, such as the result of install.Commands.
func NewRootCommand(more ...*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:   "outrigger",
		Short: "A service mesh whose sidecar is a plug-in",
		Long: `Outrigger is a Kubernetes service mesh whose sidecar is a plug-in.

Install the mesh in a cluster with 'outrigger install', change it with 'outrigger upgrade',
and remove it with 'outrigger uninstall'. 'outrigger check' finds what is wrong with it,
'outrigger namespace' adds and removes namespaces, 'outrigger class move' replaces one kind of
proxy by another, 'outrigger proxy' shows the proxies, and 'outrigger dashboard' shows the mesh
in a browser.

'outrigger stat' shows how many requests workloads receive, how many fail and how long they
take, 'outrigger top' shows this live, and 'outrigger edges' shows who sends them.

Add sidecars to manifests with 'outrigger inject'. 'outrigger check-inject' explains why
a pod gets a sidecar or not.

'outrigger validate' checks the objects of a mesh, 'outrigger explain' explains what
happens to a request, 'outrigger translate' prints the configuration of a proxy, and
'outrigger convert' turns TrafficSplits into routes of Gateway API. These four work on files,
without a cluster. 'outrigger lab' runs your own programs in a mesh on this machine, and
'outrigger demo' a sample.

'outrigger controller' and 'outrigger injector' run the control plane. If the program has
the name kubectl-outrigger, it is the plug-in 'kubectl outrigger'.`,
		Args:          usage.NoArgs,
		Version:       version.Get().String(),
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(FlagError)
	root.AddCommand(
		newInjectCommand(newOfflineEngine),
		newUninjectCommand(),
		newCheckInjectCommand(),
		newCheckCommand(),
		newNamespaceCommand(),
		newClassCommand(),
		newValidateCommand(),
		newConvertCommand(),
		newExplainCommand(),
		newTranslateCommand(sidecar.Capabilities),
		newLabCommand(),
		newDemoCommand(),
		newInjectorCommand(),
		newControllerCommand(),
		newProxyCommand(),
		newStatCommand(),
		newEdgesCommand(),
		newAuditCommand(),
		newTopCommand(),
		newTapCommand(),
		newWhyCommand(),
		newDashboardCommand(),
		newVersionCommand(),
		newBugReportCommand(),
	)
	root.AddCommand(more...)
	return root
}

// FlagError is the error function of flags of a program's root command. It suggests the flag that
// may be meant.
func FlagError(cmd *cobra.Command, err error) error {
	near := ""
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
		near = suggestion("--"+unknown.GetSpecifiedName(), names)
	}
	return usage.Error{Err: fmt.Errorf("%s: %w%s", cmd.CommandPath(), err, near)}
}

// IsRefusal reports whether the error of a command means that the command answers with no.
func IsRefusal(err error) bool { return errors.Is(err, errRefused) }

// discard is the log of components whose findings the command prints itself.
var discard = slog.New(slog.DiscardHandler)
