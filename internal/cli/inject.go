package cli

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/offline"
)

// engineBuilder returns the engine for the flags and for the namespaces in the manifests.
type engineBuilder func(ctx context.Context, flags *engineFlags, namespaces map[string]*inject.Namespace) (offline.Engine, error)

// newOfflineEngine is the engineBuilder of the program; tests have others.
func newOfflineEngine(ctx context.Context, flags *engineFlags, namespaces map[string]*inject.Namespace) (offline.Engine, error) {
	return flags.build(ctx, namespaces)
}

// newInjectCommand returns the command inject.
func newInjectCommand(build engineBuilder) *cobra.Command {
	var (
		engineFlags engineFlags
		files       manifestFlags
	)
	cmd := &cobra.Command{
		Use:   "inject -f FILE",
		Short: "Put sidecars into manifests",
		Long: `Put sidecars into manifests.

The command reads Kubernetes manifests, and writes them with a sidecar in every pod into
which the injector would put one: Pods, Deployments, DaemonSets, ReplicaSets, StatefulSets,
ReplicationControllers, Jobs, CronJobs, PodTemplates, and Lists of them. It does not change
anything else: other kinds, comments, order and formatting.

It writes the manifests to standard output or to -o, and a report to standard error with
one line for each object and the reason. If an object is denied or cannot be read, it
writes no manifests.

If the manifests contain a namespace, its labels and annotations apply. Any other namespace
is assumed to be monitored by the mesh with injection enabled; with --from-cluster, it is
read from the cluster. Pods that already have a sidecar get a new one.

Exit codes: 0 success, 1 something was denied or failed, 2 wrong usage.`,
		Example: `  # inject and apply
  outrigger inject -f deployment.yaml | kubectl apply -f -

  # inject the output of Helm as the cluster's injector would
  helm template shop ./chart | outrigger inject -f - -n shop --from-cluster

  # inject a file in place
  outrigger inject -f deployment.yaml -o deployment.yaml

  # inject all manifests of a folder into another folder
  outrigger inject -f manifests -o injected

  # only report what would happen, as JSON
  outrigger inject -f manifests --dry-run --report-format json`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			sources, err := files.read(cmd)
			if err != nil {
				return err
			}
			manifests := offline.Parse(sources)
			engineFlags.problems = cmd.ErrOrStderr()
			engine, err := build(cmd.Context(), &engineFlags, manifests.Namespaces())
			if err != nil {
				return err
			}
			result, err := manifests.Inject(cmd.Context(), engine, offline.Options{Namespace: engineFlags.namespace})
			return files.finish(cmd, result, err)
		},
	}
	engineFlags.add(cmd.Flags())
	files.add(cmd.Flags())
	return cmd
}

// manifestFlags select the manifests that a command reads, and its output.
type manifestFlags struct {
	files        []string
	output       string
	dryRun       bool
	reportFormat string
}

func (f *manifestFlags) add(flags *pflag.FlagSet) {
	flags.StringArrayVarP(&f.files, "filename", "f", nil, "file or folder of manifests (*.yaml, *.yml, *.json at any depth), or - for standard input; may be given several times")
	flags.StringVarP(&f.output, "output", "o", "", "file for the manifests, or a folder if the input is a folder; it may be the input itself (default standard output)")
	flags.BoolVar(&f.dryRun, "dry-run", false, "print the report to standard output, and no manifests")
	flags.StringVar(&f.reportFormat, "report-format", "text", "format of the report: text or json")
}

func (f *manifestFlags) read(cmd *cobra.Command) ([]offline.Source, error) {
	if len(f.files) == 0 {
		return nil, usage.Errorf("%s: name a file or a folder with -f, or - for standard input", cmd.CommandPath())
	}
	if f.reportFormat != "text" && f.reportFormat != "json" {
		return nil, usage.Errorf("--report-format %q: formats are text and json", f.reportFormat)
	}
	sources, err := offline.Read(f.files, cmd.InOrStdin())
	if errors.Is(err, offline.ErrStdinTwice) {
		err = usage.Error{Err: err}
	}
	return sources, err
}

// finish writes the manifests and the report. Err is the error of editing them.
func (f *manifestFlags) finish(cmd *cobra.Command, result *offline.Result, err error) error {
	if ctxErr := cmd.Context().Err(); ctxErr != nil {
		return ctxErr
	}
	if err == nil && !f.dryRun {
		// The report follows, since it must list only written objects.
		if err := f.write(cmd.OutOrStdout(), result.Outputs); err != nil {
			return err
		}
	}
	report := cmd.ErrOrStderr()
	if f.dryRun {
		report = cmd.OutOrStdout()
	}
	if f.reportFormat == "json" {
		if writeErr := result.WriteJSON(report); writeErr != nil {
			return writeErr
		}
		if err != nil {
			return errReported
		}
		return nil
	}
	if writeErr := result.WriteText(report); writeErr != nil {
		return writeErr
	}
	if err != nil {
		return errors.New("nothing was written, because something was denied or failed")
	}
	return nil
}

func (f *manifestFlags) write(stdout io.Writer, outputs []offline.Output) error {
	if f.output == "" || f.output == "-" {
		_, err := stdout.Write(offline.Join(outputs))
		return err
	}
	info, err := os.Stat(f.output)
	intoFolder := err == nil && info.IsDir()
	for _, out := range outputs {
		intoFolder = intoFolder || out.Source.Relative != ""
	}
	if !intoFolder {
		return offline.WriteFiles([]string{f.output}, [][]byte{offline.Join(outputs)})
	}
	paths, err := offline.Destinations(f.output, outputs)
	if err != nil {
		return usage.Error{Err: err}
	}
	data := make([][]byte, len(outputs))
	for i := range outputs {
		data[i] = outputs[i].Data
	}
	return offline.WriteFiles(paths, data)
}
