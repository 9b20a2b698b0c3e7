package cli

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/explain"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/dir"
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
		Short: "Explain what becomes of a request, and which rule decides",
		Long: `Explain what becomes of a request, and which rule decides.

Follows one request through the mesh of the manifests, or of the cluster: who
calls, which route and which split take it, which endpoints it may reach and in
what security, and which rule lets it in. If none does, it names those that come
nearest and says what each lacks. Steps that end a way of the request are marked
with a star.

FROM is NAMESPACE/NAME of a pod or a service account. TO is NAMESPACE/NAME[:PORT]
of a service or a pod, or HOST[:PORT] or ADDRESS[:PORT] for anything else; PORT is
a number or the name of a service's port. A HOST that is the DNS name of a service,
NAME alone in the caller's namespace or NAME.NAMESPACE and longer, means the service.
Without METHOD and PATH the question is about a connection, which is all that there
is for protocols other than HTTP.

The pods of a Deployment are called NAME-0, NAME-1 and so on.

The verdict is Allowed, Denied, Unreachable (there is nobody to call) or Mixed (it
depends on the endpoint that is chosen, on the address of a host, or on the request
if only a connection is asked for).

There is no verdict if a manifest cannot be read, or if FROM or TO is not there: what
is neither in the mesh nor a host, or a service outside the mesh, that an Egress or
the mesh's egress decides on.

Exit codes: 0 Allowed, 1 there is no verdict, 2 wrong usage, 3 any other verdict.`,
		Example: `  # may the bookbuyer buy?
  outrigger explain -f manifests bookbuyer/bookbuyer bookstore/bookstore GET /books

  # which version answers a canary, and where may a pod go outside the mesh?
  outrigger explain -f manifests shop/desk-0 shop/cart:80 GET / --header x-canary=1
  outrigger explain -f manifests shop/desk-0 api.example.com:443 GET /

  # may it connect?
  outrigger explain -f manifests shop/cart shop/db:5432

  # why is a pod of the cluster refused?
  outrigger explain --from-cluster shop/desk-7d9f-x2x4z shop/cart POST /orders

  # a test in a pipeline: the thief must not get in
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
				fmt.Fprintln(cmd.ErrOrStderr(), "warning:", problem)
			}
			unreadable := func(p mesh.Problem) bool { return p.Reason == dir.ReasonUnreadable }
			if slices.ContainsFunc(read.problems, unreadable) {
				return errors.New("there is no answer, because what cannot be read may change it; correct the manifests or leave them out")
			}
			answer, err := explain.Explain(read.Snapshot, read.facts, source.Policies(), question)
			if err != nil {
				return err
			}
			if output == "text" {
				err = answer.WriteText(cmd.OutOrStdout())
			} else {
				err = printAs(cmd.OutOrStdout(), output, answer)
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
