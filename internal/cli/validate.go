package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// newValidateCommand returns the command validate.
func newValidateCommand() *cobra.Command {
	var (
		flags  snapshotFlags
		output string
	)
	cmd := &cobra.Command{
		Use:   "validate (-f DIR | --from-cluster)",
		Short: "Find what is wrong with the objects of a mesh",
		Long: `Find what is wrong with the objects of a mesh, for a CI pipeline.

The command reads manifests, or the objects of a cluster, as the control plane does. It
prints the problems that it finds: objects that cannot be read, rules that contradict each
other or refer to objects that do not exist, fields without effect, and pods that the
injector would deny. In a cluster, the controller writes the same problems to the status of
the objects.

It prints one line for each problem to standard output, sorted by namespace and object.

A problem with the reason Advice is not an error: the object works, but probably not as
intended. Kinds that were not read are listed on standard error.

Exit codes: 0 there is no problem except advice, 1 there are problems or something failed,
2 wrong usage.`,
		Example: `  # check a folder before it is applied
  outrigger validate -f manifests

  # check what Helm renders, with the cluster's MeshConfig
  kubectl get meshconfig osm-mesh-config -n osm-system -o yaml > mesh.yaml
  helm template shop ./chart | outrigger validate -f - --mesh-config mesh.yaml

  # for a program
  outrigger validate -f manifests -o json`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" && output != "yaml" {
				return usage.Errorf("-o %q: formats are text, json and yaml", output)
			}
			read, err := flags.read(cmd)
			if err != nil {
				return err
			}
			problems := allProblems(read.Snapshot, read.problems)
			if output != "text" {
				// Without Problems the output is an empty list, not null.
				if err := usage.PrintAs(cmd.OutOrStdout(), output, append([]mesh.Problem{}, problems...)); err != nil {
					return err
				}
			} else {
				for _, problem := range problems {
					terminal.Fprintln(cmd.OutOrStdout(), problem)
				}
			}
			if len(read.unread) > 0 {
				terminal.Fprintf(cmd.ErrOrStderr(), "not read, because the mesh does not use these kinds: %s\n", strings.Join(read.unread, ", "))
			}
			switch wrong := slices.DeleteFunc(slices.Clone(problems), mesh.Problem.IsAdvice); {
			case len(wrong) > 0:
				return errReported
			case len(problems) > 0:
				terminal.Fprintln(cmd.ErrOrStderr(), "no problems, only advice")
			default:
				terminal.Fprintln(cmd.ErrOrStderr(), "no problems")
			}
			return nil
		},
	}
	flags.add(cmd.Flags())
	cmd.Flags().StringVarP(&output, "output", "o", "text", "format: text, json or yaml")
	return cmd
}
