package cli

import (
	"cmp"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
)

// statFlags are the flags of the commands that show rows.
type statFlags struct {
	trafficFlags
	to, from                   string
	toNamespace, fromNamespace string
}

func (f *statFlags) add(cmd *cobra.Command, formats ...string) {
	f.trafficFlags.add(cmd, formats...)
	flags := cmd.Flags()
	flags.StringVar(&f.to, "to", "", "only what the objects send to this one, as TYPE/NAME")
	flags.StringVar(&f.from, "from", "", "only what the objects receive from this one, as TYPE/NAME")
	flags.StringVar(&f.toNamespace, "to-namespace", "", "namespace of --to; the default is that of the objects")
	flags.StringVar(&f.fromNamespace, "from-namespace", "", "namespace of --from; the default is that of the objects")
	for _, flag := range []string{"to", "from"} {
		completeFlag(cmd, flag, func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
			return f.completeTraffic(cmd, nil, begun)
		})
		completeFlag(cmd, flag+"-namespace", f.kube.completeNamespaces)
	}
}

// query returns the query of the arguments.
func (f *statFlags) query(args []string) (*traffic.Query, error) {
	kind, names, err := trafficObjects(args)
	if err != nil {
		return nil, err
	}
	q := &traffic.Query{Kind: kind, Names: names}
	scope, err := f.scope()
	if err != nil {
		return nil, err
	}
	if kind != traffic.KindNamespace {
		q.Namespace = scope
	}
	if q.To, err = trafficObject(f.to, cmp.Or(f.toNamespace, scope), "--to"); err != nil {
		return nil, err
	}
	if q.From, err = trafficObject(f.from, cmp.Or(f.fromNamespace, scope), "--from"); err != nil {
		return nil, err
	}
	if err := q.Check(); err != nil {
		return nil, usage.Error{Err: err}
	}
	return q, nil
}

// readFor returns the namespaces whose proxies must be read for a query.
func readFor(q *traffic.Query) []string {
	switch {
	case q.Kind == traffic.KindService && q.From != nil:
		return []string{cmp.Or(q.From.Namespace, q.From.Name)}
	case q.Kind == traffic.KindService:
		return nil
	case q.Kind == traffic.KindNamespace:
		return q.Names
	}
	return []string{q.Namespace}
}

func newStatCommand() *cobra.Command {
	var f statFlags
	cmd := &cobra.Command{
		Use:   "stat TYPE [NAME...] | TYPE/NAME...",
		Short: "Show the requests of workloads, services, pods or namespaces: rate, success, latency",
		Long: `Show the requests of workloads, services, pods or namespaces: rate, success, latency.

TYPE is deploy, sts, ds, rs, job, po, svc or ns, with all of kubectl's names, or all for
the workloads of all types. The command reads the metrics of their proxies twice, with
--window in between, and needs no Prometheus. With --prometheus it asks a Prometheus.

Without --to and --from, rows show what objects receive. A row is always measured by the
proxies of its own pods, except that of a service, which the proxies of its callers
measure. Pods without a sidecar measure nothing, and callers that have none are seen by
the pods that they call only.

  PODS        pods whose proxies were read, and pods with a sidecar
  RPS         HTTP requests per second
  SUCCESS     requests that were answered, neither with a status of 500 or above nor with a
              gRPC status that means a failure of the server
  P50 ...     time that 50%, 95% and 99% of the requests did not exceed
  CONN/S      TCP connections per second. They count when they begin, those through HAProxy
              when they end
  RECEIVED/S  bytes per second from callers, and SENT/S to callers
  MTLS        requests and connections with mutual TLS
  DENIED/S    requests and connections per second that the sidecar has refused

A pod that can't be read is named in a warning. Proxies count requests up to two seconds
late. The rights are those of 'outrigger proxy list'.

Exit codes: 0 at least one proxy was read, 1 none was or something failed, 2 wrong usage.`,
		Example: `  # what do the Deployments of a namespace receive?
  outrigger stat deploy -n shop

  # all workloads of the mesh, with response codes
  outrigger stat all -A -o wide

  # what does one workload send to a service, and receive from another workload?
  outrigger stat deploy/web -n shop --to svc/cart
  outrigger stat deploy/cart -n shop --from deploy/web

  # which pod is slow?
  outrigger stat po -n shop --window 30s

  # the last hour, from Prometheus
  outrigger stat svc -A --prometheus http://127.0.0.1:9090 --window 1h`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage.Errorf("%s: give the type of the objects, such as deploy, or TYPE/NAME", cmd.CommandPath())
			}
			return nil
		},
		ValidArgsFunction: f.completeTraffic,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			q, err := f.query(args)
			if err != nil {
				return err
			}
			report, err := f.report(cmd.Context(), f.period(), readFor(q)...)
			if err != nil {
				return err
			}
			rows, err := statRows(cmd.ErrOrStderr(), report, q)
			if err != nil {
				return err
			}
			if f.output == "json" || f.output == "yaml" {
				err = usage.PrintAs(cmd.OutOrStdout(), f.output, append([]traffic.Row{}, rows...))
			} else if len(rows) > 0 {
				err = printRows(cmd.OutOrStdout(), rows, q, f.output == "wide")
			}
			if err == nil && nothingRead(report) {
				err = errReported
			}
			return err
		},
	}
	cmd.Flags().DurationVar(&f.window, "window", 0, "how long requests are counted (default 10s, or 5m with --prometheus)")
	f.add(cmd, "wide", "json", "yaml")
	return cmd
}

// period returns the time that requests are counted.
func (f *trafficFlags) period() time.Duration {
	if f.prometheus != "" {
		return cmp.Or(f.window, prometheusWindow)
	}
	return cmp.Or(f.window, readWindow)
}

// statRows returns the rows of a query, after warnings about what they lack.
func statRows(warnings io.Writer, report *traffic.Report, q *traffic.Query) ([]traffic.Row, error) {
	rows, notes, err := report.Rows(q)
	if errors.Is(err, traffic.ErrQuery) {
		return nil, usage.Error{Err: err}
	} else if err != nil {
		return nil, err
	}
	warnUnread(warnings, report.Unread(q))
	for _, note := range notes {
		terminal.Fprintln(warnings, "note:", note)
	}
	if len(rows) == 0 {
		terminal.Fprintln(warnings, "nothing in the mesh has this type; see 'outrigger check-inject' for pods without a sidecar")
	}
	return rows, nil
}

// nothingRead reports whether proxies should have been read and none was.
func nothingRead(report *traffic.Report) bool {
	failed := false
	for i := range report.Pods {
		if report.Pods[i].Read {
			return false
		}
		failed = failed || report.Pods[i].Problem != ""
	}
	return failed
}
