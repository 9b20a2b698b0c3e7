package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
)

func newEdgesCommand() *cobra.Command {
	var f trafficFlags
	cmd := &cobra.Command{
		Use:   "edges [TYPE/NAME]",
		Short: "Show who calls whom, with which identity, and what is denied",
		Long: `Show who calls whom, with which identity, and what is denied.

An edge is the traffic from one service account to another. The command reads the metrics
of all proxies. Without --window, it shows all that they have counted since they started,
and with it the rates during that time. With an object, it shows only the edges at that
object, and with -n those at the namespace.

  SOURCE, DESTINATION  the workloads, as NAMESPACE/NAME. Several can have the same service
                       account. If no pod was reached, the destination is the service
  CLIENT, SERVER       the identities, as NAMESPACE/SERVICE-ACCOUNT, of which the sidecars
                       have verified certificates, or '-' for none
  MTLS                 requests and connections with mutual TLS
  DENIED               requests and connections that a sidecar has refused, and why

Denials by both sidecars are counted. 'outrigger explain' names the rule that decides. The
rights are those of 'outrigger proxy list'.

Exit codes: 0 at least one proxy was read, 1 none was or something failed, 2 wrong usage.`,
		Example: `  # who calls whom in a namespace?
  outrigger edges -n shop

  # who calls a workload now, and how often is it denied?
  outrigger edges deploy/cart -n shop --window 30s

  # which calls are not encrypted?
  outrigger edges -A -o json | jq '.[] | select(.mutualTLS < 1)'`,
		Args:              atMostOneObject,
		ValidArgsFunction: f.completeObject,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			object, scope, err := f.object(args)
			if err != nil {
				return err
			}
			report, err := f.report(cmd.Context(), f.window)
			if err != nil {
				return err
			}
			if object != nil {
				scope = ""
			}
			edges, err := report.Edges(scope, object)
			if err != nil {
				return err
			}
			warnUnread(cmd.ErrOrStderr(), report.Unread(&traffic.Query{Kind: traffic.KindPod}))
			switch {
			case f.output == "json" || f.output == "yaml":
				err = usage.PrintAs(cmd.OutOrStdout(), f.output, append([]traffic.Edge{}, edges...))
			case len(edges) == 0:
				terminal.Fprintln(cmd.ErrOrStderr(), "the proxies have counted no requests or connections")
			default:
				err = printEdges(cmd.OutOrStdout(), edges, f.output == "wide", f.window > 0)
			}
			if err == nil && nothingRead(report) {
				err = errReported
			}
			return err
		},
	}
	cmd.Flags().DurationVar(&f.window, "window", 0, "how long requests are counted; the default is since the proxies started")
	f.add(cmd, "wide", "json", "yaml")
	return cmd
}

// printEdges writes the table of edges, whose numbers are rates or counts.
func printEdges(w io.Writer, edges []traffic.Edge, wide, rates bool) error {
	number := func(n float64) string { return fmt.Sprintf("%.0f", n) }
	unit := ""
	if rates {
		number, unit = rate, "/S"
	}
	t := terminal.NewTable(w, 3)
	header := fmt.Sprintf("SOURCE\tDESTINATION\tCLIENT\tSERVER\tREQUESTS%[1]s\tCONNECTIONS%[1]s\tMTLS\tDENIED%[1]s", unit)
	if wide {
		header += "\tSERVICES\tSUCCESS\tP50\tP95\tP99"
	}
	t.Header(header)
	for i := range edges {
		e := &edges[i]
		cells := []string{
			edgeEnd(e.Source, nil), edgeEnd(e.Destination, e.Services), identityOf(e.Source), identityOf(e.Destination),
			number(e.Requests), number(e.Connections), share(e.MutualTLS), denied(e.Denied, number),
		}
		if wide {
			var success *float64
			if e.Requests > 0 {
				success = new(1 - e.Failed/e.Requests)
			}
			cells = append(cells, orDash(strings.Join(e.Services, ",")), share(success),
				latency(e.Durations.Quantile(0.5)), latency(e.Durations.Quantile(0.95)), latency(e.Durations.Quantile(0.99)))
		}
		t.Row(cells...)
	}
	return t.Flush()
}

// edgeEnd names an end by its workloads, its service account, or the services that were called.
func edgeEnd(end traffic.EdgeEnd, services []string) string {
	if end.Namespace == "" {
		return "(outside)"
	}
	name := cmp.Or(strings.Join(end.Workloads, ","), end.ServiceAccount)
	if name == "" {
		name = "(unknown)"
		if len(services) > 0 {
			name = "svc/" + strings.Join(services, ",")
		}
	}
	return end.Namespace + "/" + name
}

// identityOf returns the identity of an end.
func identityOf(end traffic.EdgeEnd) string {
	if end.ServiceAccount == "" {
		return "-"
	}
	return end.Namespace + "/" + end.ServiceAccount
}

// denied formats denials with their reasons.
func denied(reasons map[string]float64, number func(float64) string) string {
	if len(reasons) == 0 {
		return number(0)
	}
	return number(sum(reasons)) + " (" + strings.Join(slices.Sorted(maps.Keys(reasons)), ", ") + ")"
}
