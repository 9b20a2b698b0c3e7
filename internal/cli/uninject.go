package cli

import (
	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/offline"
)

// newUninjectCommand returns the command uninject.
func newUninjectCommand() *cobra.Command {
	var files manifestFlags
	cmd := &cobra.Command{
		Use:   "uninject -f FILE",
		Short: "Take sidecars out of manifests",
		Long: `Take sidecars out of manifests.

Reads manifests and writes them without what 'outrigger inject' or the injector
added, and with what they changed as it was before. All else stays as it is, and
so does what was never injected.

The manifests go to standard output or to -o, a report with a line an object to
standard error. If any object cannot be read, nothing is written.

Exit codes: 0 all is well, 1 something failed, 2 wrong usage.`,
		Example: `  # take the sidecar out of a file in place
  outrigger uninject -f deployment.yaml -o deployment.yaml

  # take the sidecars out of all Deployments that run
  kubectl get deployments -o yaml | outrigger uninject -f - | kubectl apply -f -`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			sources, err := files.read(cmd)
			if err != nil {
				return err
			}
			result, err := offline.UninjectFiles(cmd.Context(), inject.Uninject, sources)
			return files.finish(cmd, result, err)
		},
	}
	files.add(cmd.Flags())
	return cmd
}
