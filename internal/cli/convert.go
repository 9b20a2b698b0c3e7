package cli

import (
	"bytes"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/convert"
	"github.com/outrigger-mesh/outrigger/internal/inject/offline"
	"github.com/outrigger-mesh/outrigger/internal/manifest"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
)

// What convert writes.
const (
	toRoutes         = "routes"
	toAccessPolicies = "access-policies"
)

// newConvertCommand returns the command convert.
func newConvertCommand() *cobra.Command {
	var (
		flags      snapshotFlags
		to, output string
	)
	cmd := &cobra.Command{
		Use:   "convert (-f DIR | --from-cluster)",
		Short: "Print routes of Gateway API, or AccessPolicies, that do what older policies do",
		Long: `Print routes of Gateway API, or AccessPolicies, that do what older policies do.

With --to routes, the default, the command prints an HTTPRoute or a TCPRoute for each port of
a Service that has a TrafficSplit, or a request timeout in an UpstreamTrafficSetting, with the
matches of HTTPRouteGroups. The Services must be among the objects. If a route cannot do what
the policies of a port do, the port gets none, and its TrafficSplits must stay. A route in
force replaces the TrafficSplits of its Service, so the splits can be deleted after the
routes are applied. TrafficTargets stay: routes permit nothing.

With --to access-policies it prints AccessPolicies that allow what TrafficTargets and
IngressBackends allow, and those that mean the same as the AuthorizationPolicies of Istio and
Linkerd among the manifests. An object of these meshes of which a policy cannot say everything
gets none.

What has no equal is listed on standard error, with the field and the reason.

Exit codes: 0 the objects were printed, 1 something failed, 2 wrong usage.`,
		Example: `  # convert the TrafficSplits of a folder
  outrigger convert -f manifests > routes.yaml

  # convert those of a cluster
  outrigger convert --from-cluster | kubectl apply -f -

  # convert TrafficTargets, and look at the notes first
  outrigger convert -f manifests --to access-policies > access.yaml

  # convert the policies of Istio
  kubectl get authorizationpolicies.security.istio.io -A -o yaml | outrigger convert -f - --to access-policies`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "json" && output != "yaml" {
				return usage.Errorf("-o %q: formats are yaml and json", output)
			}
			if to != toRoutes && to != toAccessPolicies {
				return usage.Errorf("--to %q: write %s or %s", to, toRoutes, toAccessPolicies)
			}
			var others []*unstructured.Unstructured
			if to == toAccessPolicies && len(flags.files) > 0 {
				var err error
				if others, err = otherMeshes(cmd, flags.files); err != nil {
					return err
				}
			}
			read, err := flags.read(cmd)
			if err != nil {
				return err
			}
			made, notes := []*unstructured.Unstructured(nil), []convert.Note(nil)
			if to == toRoutes {
				made, notes = convert.Routes(read.facts)
			} else {
				made, notes = convert.AccessPolicies(read.Snapshot, read.facts, others)
			}
			list := map[string]any{"apiVersion": "v1", "kind": "List", "items": made}
			if err := usage.PrintAs(cmd.OutOrStdout(), output, list); err != nil {
				return err
			}
			for _, note := range notes {
				terminal.Fprintln(cmd.ErrOrStderr(), note)
			}
			if len(made) == 0 {
				terminal.Fprintln(cmd.ErrOrStderr(), "there is nothing to convert")
			}
			return nil
		},
	}
	flags.add(cmd.Flags())
	cmd.Flags().StringVar(&to, "to", toRoutes, "what to print: "+toRoutes+" or "+toAccessPolicies)
	cmd.Flags().StringVarP(&output, "output", "o", "yaml", "format: yaml or json")
	return cmd
}

// otherMeshes returns the objects of other meshes among manifests. What cannot be read is left to the
// reader of the mesh's own objects. Standard input can be read again.
func otherMeshes(cmd *cobra.Command, files []string) ([]*unstructured.Unstructured, error) {
	var stdin []byte
	if slices.Contains(files, "-") {
		var err error
		if stdin, err = io.ReadAll(cmd.InOrStdin()); err != nil {
			return nil, fmt.Errorf("reading standard input: %w", err)
		}
		cmd.SetIn(bytes.NewReader(stdin))
	}
	sources, err := offline.Read(files, bytes.NewReader(stdin))
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	add := func(object map[string]any) {
		o := &unstructured.Unstructured{Object: object}
		if convert.IsOtherMesh(o.GroupVersionKind().GroupKind()) {
			objects = append(objects, o)
		}
	}
	for _, source := range sources {
		for _, document := range manifest.Split(source.Data) {
			text, _ := document.Content()
			var object map[string]any
			if yaml.Unmarshal(text, &object) != nil {
				continue
			}
			items, isList := object["items"].([]any)
			if !isList {
				add(object)
			}
			for _, item := range items {
				if one, ok := item.(map[string]any); ok {
					add(one)
				}
			}
		}
	}
	return objects, nil
}
