// Package install is the command 'outrigger install'. It is the one part of the program
// that needs Helm; programs that are no user's tool are made without it.
package install

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/strvals"
	"k8s.io/apimachinery/pkg/util/validation"

	chart "github.com/outrigger-mesh/outrigger/charts/outrigger"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
)

// options are the flags of the command.
type options struct {
	values, set               []string
	namespace, name, revision string
	includeCRDs, crdsOnly     bool
}

// New returns the command.
func New() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Print the manifests that install the mesh",
		Long: `Print the manifests that install the mesh.

They are what 'helm install' makes of the chart charts/outrigger, which this
program brings along, in the order in which they can be applied. Nothing is asked
of a cluster and nothing is changed in one: that is left to kubectl. What the user
should know, such as values that have no effect, goes to stderr.

kubectl refuses objects of kinds that are not there when it starts, so the first
time the CRDs go before. Where somebody else has changed a field since, kubectl
names it and stops; --force-conflicts takes it back.

The values are those of the chart, and of Open Service Mesh and osm-edge.`,
		Example: `  # The first time: the CRDs, then the rest.
  outrigger install --crds-only | kubectl apply --server-side -f -
  outrigger install | kubectl apply --server-side -f -

  # With the values of an Open Service Mesh, whose MeshConfig stays.
  outrigger install -f osm-values.yaml --set meshConfig.create=false

  # Another injector beside the first, for what has the label openservicemesh.io/rev=canary.
  outrigger install --revision canary --set osm.image.tag=0.2.0`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&o.values, "values", "f", nil, "YAML file with values of the chart, - for stdin; a later one wins over an earlier one")
	flags.StringArrayVar(&o.set, "set", nil, "values as key=value,key.key=value; they win over files")
	flags.StringVarP(&o.namespace, "namespace", "n", "osm-system", "namespace of the control plane, unless the values have osm.osmNamespace")
	flags.StringVar(&o.name, "name", "", "name of the mesh, in place of the value osm.meshName")
	flags.StringVar(&o.revision, "revision", "", "revision of the injector, in place of the value revision")
	flags.BoolVar(&o.includeCRDs, "include-crds", true, "print the CRDs too")
	flags.BoolVar(&o.crdsOnly, "crds-only", false, "print nothing but the CRDs")
	return cmd
}

func (o *options) run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) error {
	if o.crdsOnly && !o.includeCRDs {
		return usage.Errorf("--crds-only and --include-crds=false leave nothing to print")
	}
	if problems := validation.IsDNS1123Label(o.namespace); len(problems) > 0 {
		return usage.Errorf("--namespace %q: %s", o.namespace, strings.Join(problems, "; "))
	}
	values, err := o.readValues(stdin)
	if err != nil {
		return err
	}
	release, err := chart.Render(ctx, o.namespace, values)
	if err != nil {
		return err
	}

	var documents []string
	if o.includeCRDs {
		documents = append(documents, release.CRDs...)
	}
	if !o.crdsOnly {
		documents = append(documents, fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: %q\n", release.Namespace))
		documents = append(documents, release.Objects...)
		if _, err := io.WriteString(stderr, release.Notes); err != nil {
			return err
		}
	}
	var manifests bytes.Buffer
	for _, document := range documents {
		fmt.Fprintf(&manifests, "---\n%s\n", strings.TrimSpace(document))
	}
	_, err = manifests.WriteTo(stdout)
	return err
}

// readValues returns what the user wants in place of the chart's own values.
func (o *options) readValues(stdin io.Reader) (map[string]any, error) {
	values := map[string]any{}
	for _, name := range o.values {
		file, err := readValuesFile(name, stdin)
		if err != nil {
			return nil, err
		}
		values = loader.MergeMaps(values, file)
	}
	for _, assignments := range o.set {
		if err := strvals.ParseInto(assignments, values); err != nil {
			return nil, usage.Errorf("--set %q: %v", assignments, err)
		}
	}
	overrides := map[string]any{}
	if o.name != "" {
		overrides["osm"] = map[string]any{"meshName": o.name}
	}
	if o.revision != "" {
		overrides["revision"] = o.revision
	}
	return loader.MergeMaps(values, overrides), nil
}

func readValuesFile(name string, stdin io.Reader) (map[string]any, error) {
	in := stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("reading values: %w", err)
		}
		defer file.Close()
		in = file
	}
	values, err := loader.LoadValues(in)
	if err != nil {
		return nil, fmt.Errorf("values in %s: %w", name, err)
	}
	return values, nil
}
