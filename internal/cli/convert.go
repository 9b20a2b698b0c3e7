package cli

import (
	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/convert"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
)

// newConvertCommand returns the command convert.
func newConvertCommand() *cobra.Command {
	var (
		flags  snapshotFlags
		output string
	)
	cmd := &cobra.Command{
		Use:   "convert (-f DIR | --from-cluster)",
		Short: "Print routes of Gateway API that do what TrafficSplits do",
		Long: `Print routes of Gateway API that do what TrafficSplits do.

The command prints an HTTPRoute or a TCPRoute for each port of a Service that has a
TrafficSplit, or a request timeout in an UpstreamTrafficSetting, with the matches of
HTTPRouteGroups. The Services must be among the objects. What has no equal is listed on
standard error. If a route cannot do what the policies of a port do, the port gets none, and
its TrafficSplits must stay; this is listed too.

A route in force replaces the TrafficSplits of its Service, so the splits can be deleted
after the routes are applied. TrafficTargets stay: routes permit nothing.

Exit codes: 0 the routes were printed, 1 something failed, 2 wrong usage.`,
		Example: `  # convert the policies of a folder
  outrigger convert -f manifests > routes.yaml

  # convert those of a cluster
  outrigger convert --from-cluster | kubectl apply -f -`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "json" && output != "yaml" {
				return usage.Errorf("-o %q: formats are yaml and json", output)
			}
			read, err := flags.read(cmd)
			if err != nil {
				return err
			}
			routes, notes := convert.Routes(read.facts)
			list := map[string]any{"apiVersion": "v1", "kind": "List", "items": routes}
			if err := usage.PrintAs(cmd.OutOrStdout(), output, list); err != nil {
				return err
			}
			for _, note := range notes {
				terminal.Fprintln(cmd.ErrOrStderr(), note)
			}
			if len(routes) == 0 {
				terminal.Fprintln(cmd.ErrOrStderr(), "there is nothing to convert")
			}
			return nil
		},
	}
	flags.add(cmd.Flags())
	cmd.Flags().StringVarP(&output, "output", "o", "yaml", "format: yaml or json")
	return cmd
}
