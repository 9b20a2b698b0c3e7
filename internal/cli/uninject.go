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
		Short: "Remove sidecars from manifests",
		Long: `Remove sidecars from manifests.

The command reads manifests, removes what 'outrigger inject' or the injector added, and
restores what they changed. It does not change anything else, nor objects that have no
sidecar.

It writes the manifests to standard output or to -o, and a report to standard error with
one line for each object. If an object cannot be read, it writes no manifests.

Exit codes: 0 success, 1 something failed, 2 wrong usage.`,
		Example: `  # remove the sidecars from a file in place
  outrigger uninject -f deployment.yaml -o deployment.yaml

  # remove the sidecars from all Deployments of a namespace
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
