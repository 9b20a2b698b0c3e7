package install

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	chart "github.com/outrigger-mesh/outrigger/charts/outrigger"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
)

// manifestOptions are the flags of 'outrigger manifests'.
type manifestOptions struct {
	valueFlags
	includeCRDs, crdsOnly bool
}

func newManifestsCommand() *cobra.Command {
	var o manifestOptions
	cmd := &cobra.Command{
		Use:   "manifests",
		Short: "Print the manifests that install the mesh",
		Long: `Print the manifests that install the mesh, for GitOps and for reading.

They are what 'outrigger install' applies, in the order in which they can be applied.
Nothing is asked of a cluster and nothing is changed in one. What the user should know,
such as values that have no effect, goes to stderr.

kubectl refuses objects of kinds that are not there when it starts, so the first
time the CRDs go before. Where somebody else has changed a field since, kubectl
names it and stops; --force-conflicts takes it back.

The values are those of the chart, and of Open Service Mesh and osm-edge.`,
		Example: `  # The first time: the CRDs, then the rest.
  outrigger manifests --crds-only | kubectl apply --server-side -f -
  outrigger manifests | kubectl apply --server-side -f -

  # With the values of an Open Service Mesh, whose MeshConfig stays.
  outrigger manifests -f osm-values.yaml --set meshConfig.create=false

  # Another injector beside the first, for what has the label openservicemesh.io/rev=canary.
  outrigger manifests --revision canary --set osm.image.tag=0.2.0`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	o.valueFlags.add(flags)
	flags.BoolVar(&o.includeCRDs, "include-crds", true, "print the CRDs too")
	flags.BoolVar(&o.crdsOnly, "crds-only", false, "print nothing but the CRDs")
	return cmd
}

func (o *manifestOptions) run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) error {
	if o.crdsOnly && !o.includeCRDs {
		return usage.Errorf("--crds-only and --include-crds=false leave nothing to print")
	}
	values, err := o.read(stdin)
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
