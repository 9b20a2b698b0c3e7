package cli

import (
	"errors"
	"slices"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/explain"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/dir"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// newExplainCommand returns the command explain.
func newExplainCommand() *cobra.Command {
	var (
		flags   snapshotFlags
		headers []string
		output  string
	)
	cmd := &cobra.Command{
		Use:   "explain (-f DIR | --from-cluster) FROM TO [METHOD PATH]",
		Short: "Explain what happens to a request, and which rule decides",
		Long: `Explain what happens to a request, and which rule decides.

The command follows one request through the mesh, which it reads from manifests or from
a cluster. It prints who the caller is, which route and which traffic split apply, which
endpoints can receive the request, how the connection is secured, and which rule allows
it. If no rule allows it, it names the rules that come closest and says why each does not
match. A star marks each step at which the request ends.

FROM is NAMESPACE/NAME of a pod or a service account. TO is NAMESPACE/NAME[:PORT]
of a service or a pod, or HOST[:PORT] or ADDRESS[:PORT] for anything else; PORT is
a number or the name of a service's port. A HOST that is the DNS name of a service
means the service: NAME in the caller's namespace, or NAME.NAMESPACE or a longer form.
Without METHOD and PATH, the command explains a connection instead of an HTTP request.

The pods of a Deployment are called NAME-0, NAME-1 and so on.

The verdict is Allowed, Denied, Unreachable (nothing can receive the request) or Mixed
(it depends on which endpoint is chosen, on the address of a host, or, for a connection,
on the request).

There is no verdict if a manifest cannot be read, or if FROM or TO does not exist. TO
exists if it is in the mesh, or if it is a host or a service outside the mesh for which
an Egress or the mesh's setting for egress decides.

Exit codes: 0 Allowed, 1 there is no verdict, 2 wrong usage, 3 any other verdict.`,
		Example: `  # is this request allowed?
  outrigger explain -f manifests bookbuyer/bookbuyer bookstore/bookstore GET /books

  # which version receives a canary request, and may a pod call this host outside the mesh?
  outrigger explain -f manifests shop/desk-0 shop/cart:80 GET / --header x-canary=1
  outrigger explain -f manifests shop/desk-0 api.example.com:443 GET /

  # is this connection allowed?
  outrigger explain -f manifests shop/cart shop/db:5432

  # why is a request of a pod in the cluster denied?
  outrigger explain --from-cluster shop/desk-7d9f-x2x4z shop/cart POST /orders

  # a test in a pipeline: this request must be denied
  outrigger explain -f manifests bookthief/bookthief bookstore/bookstore GET /books; test $? = 3`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 && len(args) != 4 {
				return usage.Errorf("%s: give FROM and TO, and for a request METHOD and PATH", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "text" && output != "json" && output != "yaml" {
				return usage.Errorf("-o %q: formats are text, json and yaml", output)
			}
			args = append(args, "", "")
			question, err := explain.NewQuestion(args[0], args[1], args[2], args[3], headers)
			if err != nil {
				return usage.Error{Err: err}
			}
			read, err := flags.read(cmd)
			if err != nil {
				return err
			}
			for _, problem := range read.problems {
				terminal.Fprintln(cmd.ErrOrStderr(), "warning:", problem)
			}
			unreadable := func(p mesh.Problem) bool { return p.Reason == dir.ReasonUnreadable }
			if slices.ContainsFunc(read.problems, unreadable) {
				return errors.New("there is no verdict, because the manifests that cannot be read could change it; correct them or leave them out")
			}
			answer, err := explain.Explain(read.Snapshot, read.facts, source.Policies(), question)
			if err != nil {
				return err
			}
			if output == "text" {
				err = answer.WriteText(cmd.OutOrStdout())
			} else {
				err = usage.PrintAs(cmd.OutOrStdout(), output, answer)
			}
			if err == nil && answer.Verdict != explain.Allowed {
				err = errRefused
			}
			return err
		},
	}
	flags.add(cmd.Flags())
	cmd.Flags().StringArrayVar(&headers, "header", nil, "header of the request, as name=value; may be given several times")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "format: text, json or yaml")
	return cmd
}
