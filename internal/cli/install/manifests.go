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
	"github.com/outrigger-mesh/outrigger/internal/terminal"
)

// manifestOptions are the flags of 'outrigger manifests'.
type manifestOptions struct {
	valueFlags
	includeCRDs, crdsOnly, admissionPolicy bool
}

func newManifestsCommand() *cobra.Command {
	var o manifestOptions
	cmd := &cobra.Command{
		Use:   "manifests",
		Short: "Print the manifests that install the mesh",
		Long: `Print the manifests that install the mesh, for GitOps and for reading.

These are the objects that 'outrigger install' applies, in an order in which they can be
applied. The command does not connect to a cluster. It prints warnings, for example about
values without effect, to stderr.

kubectl rejects objects whose CRD does not exist when it starts, so apply the CRDs first. If
somebody has changed a field in the cluster, kubectl names the field and stops; its flag
--force-conflicts overwrites the field.

The values may be those of the chart, of Open Service Mesh or of osm-edge.`,
		Example: `  # The first time: the CRDs, then everything.
  outrigger manifests --crds-only | kubectl apply --server-side -f -
  outrigger manifests | kubectl apply --server-side -f -

  # With the values of Open Service Mesh, whose MeshConfig stays.
  outrigger manifests -f osm-values.yaml --set meshConfig.create=false

  # The admission policies that the controller makes with injector.mode: policy.
  outrigger manifests --admission-policy --set injector.mode=policy

  # Another injector, for namespaces and pods with the label openservicemesh.io/rev=canary.
  outrigger manifests --revision canary --set osm.image.tag=0.2.0`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	o.valueFlags.add(flags)
	flags.BoolVar(&o.includeCRDs, "include-crds", true, "print the CRDs too")
	flags.BoolVar(&o.crdsOnly, "crds-only", false, "print only the CRDs")
	flags.BoolVar(&o.admissionPolicy, "admission-policy", false, "print only the admission policies that inject sidecars, which the controller makes with injector.mode: policy or both")
	return cmd
}

func (o *manifestOptions) run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) error {
	if o.crdsOnly && !o.includeCRDs {
		return usage.Errorf("--crds-only and --include-crds=false leave nothing to print")
	}
	if o.crdsOnly && o.admissionPolicy {
		return usage.Errorf("--crds-only and --admission-policy each print something else; give one")
	}
	values, err := o.read(stdin)
	if err != nil {
		return err
	}
	release, err := chart.Render(ctx, o.namespace, values)
	if err != nil {
		return err
	}
	if o.admissionPolicy {
		return printPolicies(ctx, release, stdout, stderr)
	}

	var documents []string
	if o.includeCRDs {
		documents = append(documents, release.CRDs...)
	}
	if !o.crdsOnly {
		documents = append(documents, fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: %q\n", release.Namespace))
		documents = append(documents, release.Objects...)
		if _, err := io.WriteString(stderr, terminal.Text(release.Notes)); err != nil {
			return err
		}
	}
	var manifests bytes.Buffer
	for _, document := range documents {
		manifests.WriteString("---\n" + strings.TrimSpace(document) + "\n")
	}
	_, err = manifests.WriteTo(stdout)
	return err
}
