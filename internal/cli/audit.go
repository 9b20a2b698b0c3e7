package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
)

func newAuditCommand() *cobra.Command {
	var f trafficFlags
	var from, fromNamespace string
	cmd := &cobra.Command{
		Use:   "audit [TYPE/NAME]",
		Short: "List the calls that the audited policies would refuse",
		Long: `List the calls that the audited policies would refuse.

In permissive traffic policy mode, every workload of the mesh may call every other. With the
annotation openservicemesh.io/default-access: audit of their namespace, sidecars also
evaluate the policies that would apply without that mode. They let everything through, and
count what the policies would refuse. This command reads these counts from the sidecars. Without --window, they are those
since the sidecars started, and with it the rates during that time.

  SOURCE       the workloads that run as the service account of the caller
  DESTINATION  the workload that was called
  CLIENT       the caller's identity, as NAMESPACE/SERVICE-ACCOUNT, or '-' for a caller that
               has shown none
  REASON       access: no policy allows it. plaintext: the caller has no identity, which
               every policy requires

With -n or an object, the command lists what is sent there, and with --from only what the
other object sends. 'outrigger explain' says what is missing in the policies. The rights are
those of 'outrigger proxy list'.

Exit codes: 0 all pods are audited and nothing would be refused, 1 that is not known because
a pod is not audited, an audited pod was not read or something failed, 2 wrong usage, 3
something would be refused. Pods whose class runs no proxy need not be audited.`,
		Example: `  # try the policies of a namespace
  kubectl annotate namespace shop openservicemesh.io/default-access=audit
  outrigger audit -n shop

  # what would a workload still be refused, during a minute?
  outrigger audit -n shop --from deploy/web --window 1m

  # in a pipeline: fail unless all pods are audited and the policies allow everything that
  # was sent
  outrigger audit -A -o json`,
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
			caller, err := trafficObject(from, cmp.Or(fromNamespace, scope), "--from")
			if err != nil {
				return err
			}
			if object != nil && object.Kind == traffic.KindNamespace {
				scope = object.Name
			}
			report, err := f.report(cmd.Context(), f.window, scope)
			if err != nil {
				return err
			}
			refusals, err := report.Refusals(scope, object, caller)
			if errors.Is(err, traffic.ErrQuery) {
				return usage.Error{Err: err}
			} else if err != nil {
				return err
			}
			audited, unknown, unaudited := report.Audited(scope, object)
			warnUnread(cmd.ErrOrStderr(), unknown)
			if audited > 0 {
				warnUnaudited(cmd.ErrOrStderr(), unaudited)
			}
			if f.output == "json" || f.output == "yaml" {
				err = usage.PrintAs(cmd.OutOrStdout(), f.output, append([]traffic.Refusal{}, refusals...))
			} else if len(refusals) > 0 {
				err = printRefusals(cmd.OutOrStdout(), refusals, f.output == "wide", f.window > 0)
			}
			switch {
			case err != nil:
				return err
			case len(refusals) > 0:
				return errRefused
			case audited == 0:
				return errors.New("no pod is audited here; annotate the namespace with openservicemesh.io/default-access: audit. A control plane that is older than this program audits nothing")
			case len(unknown)+len(unaudited) > 0:
				return errReported
			}
			terminal.Fprintf(cmd.ErrOrStderr(), "the policies would refuse nothing of what %s counted\n", podsHave(audited))
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&from, "from", "", "only what this object sends, as TYPE/NAME")
	flags.StringVar(&fromNamespace, "from-namespace", "", "namespace of --from; the default is that of the command")
	flags.DurationVar(&f.window, "window", 0, "how long requests are counted; the default is since the sidecars started")
	f.addRead(cmd, "wide", "json", "yaml")
	completeFlag(cmd, "from", func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		return f.completeTraffic(cmd, nil, begun)
	})
	completeFlag(cmd, "from-namespace", f.kube.completeNamespaces)
	return cmd
}

// mostUnaudited is how many workloads warnUnaudited names.
const mostUnaudited = 5

// warnUnaudited names the workloads of pods that are not audited, some if there are many.
func warnUnaudited(w io.Writer, pods []traffic.Pod) {
	if len(pods) == 0 {
		return
	}
	names := make([]string, len(pods))
	for i := range pods {
		names[i] = pods[i].Namespace + "/" + cmp.Or(pods[i].Owner.Name, pods[i].Name.Name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if more := len(names) - mostUnaudited; more > 0 {
		names = append(names[:mostUnaudited], fmt.Sprintf("and %d more", more))
	}
	what := "a pod is not audited, so what its policies would refuse is not known; annotate its namespace"
	if len(pods) > 1 {
		what = fmt.Sprintf("%d pods are not audited, so what their policies would refuse is not known; annotate their namespaces", len(pods))
	}
	terminal.Fprintf(w, "warning: %s with openservicemesh.io/access-mode: Audit: %s\n", what, strings.Join(names, ", "))
}

func podsHave(n int) string {
	if n == 1 {
		return "1 audited pod has"
	}
	return fmt.Sprintf("%d audited pods have", n)
}

// printRefusals writes the table of refusals, whose numbers are rates or counts.
func printRefusals(w io.Writer, refusals []traffic.Refusal, wide, rates bool) error {
	number, header := func(n float64) string { return fmt.Sprintf("%.0f", n) }, "COUNT"
	if rates {
		number, header = rate, "PER SECOND"
	}
	t := terminal.NewTable(w, 3)
	header = "SOURCE\tDESTINATION\tCLIENT\tREASON\t" + header
	if wide {
		header += "\tSERVER\tPROTOCOL"
	}
	t.Header(header)
	for i := range refusals {
		r := &refusals[i]
		cells := []string{edgeEnd(r.Source, nil), edgeEnd(r.Destination, nil), identityOf(r.Source), r.Reason, number(r.Count)}
		if wide {
			cells = append(cells, identityOf(r.Destination), r.Protocol)
		}
		t.Row(cells...)
	}
	return t.Flush()
}
