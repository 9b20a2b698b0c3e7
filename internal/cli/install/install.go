// Package install implements the commands that install, upgrade and uninstall the mesh. It is
// the only part of the program that needs Helm, so outrigger-core is built without it.
package install

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
)

// Commands returns the commands.
func Commands() []*cobra.Command {
	return []*cobra.Command{
		newInstallCommand(), newUpgradeCommand(), newUninstallCommand(), newTagCommand(), newManifestsCommand(),
	}
}

func newInstallCommand() *cobra.Command {
	var o applyOptions
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install the mesh, and wait until it is ready",
		Long: `Install the mesh, and wait until it is ready.

What is installed is what 'outrigger manifests' prints: the CRDs, which this program
applies itself, and a release of Helm's with the name outrigger, so that 'helm list',
'helm upgrade' and 'helm rollback' know it too. CRDs that are there already, such as Open
Service Mesh's, are taken over with all their objects, and the command says so.

A revision other than the default is one more injector beside the mesh, and a release of
its own with the name outrigger-REVISION.

Before anything is changed, the server's version, the rights and the values are looked
at. What is waited for, and why it is not ready, goes to stderr. An installation that has
failed is repaired by the same command once its cause is gone.

Exit codes: 0 installed and ready, 1 something failed, 2 wrong usage, 3 refused: what
is there would come to harm, and the message says what to do instead.`,
		Example: `  # The mesh, with a value.
  outrigger install --set osm.enablePermissiveTrafficPolicy=false

  # What that would do.
  outrigger install --set osm.enablePermissiveTrafficPolicy=false --dry-run

  # With the values of an Open Service Mesh, whose MeshConfig stays.
  outrigger install -f osm-values.yaml

  # Another injector beside the first, for what has the label openservicemesh.io/rev=canary.
  outrigger install --revision canary --set osm.image.tag=0.2.0`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.add(cmd)
	cmd.Flags().BoolVar(&o.takeOwnership, "take-ownership", false, "make objects that 'outrigger manifests | kubectl apply' has made part of the release")
	cmd.Flags().BoolVar(&o.force, "force", false, "go on although another installation has not ended, such as one that was killed")
	return cmd
}

func newUpgradeCommand() *cobra.Command {
	o := applyOptions{upgrade: true}
	cmd := &cobra.Command{
		Use:   "upgrade",
		Short: "Change the mesh to this program's version or to other values",
		Long: `Change the mesh to this program's version or to other values, and wait until it is ready.

The CRDs go first, which Helm never changes; then the release is upgraded. The values of
the release stay and those that are given win over them; --reset-values begins with the
chart's own. Of the MeshConfig, what others have changed in the cluster stays as well,
unless --force-conflicts is given.

The program's version may be one minor version before or after the release's. Pods keep
the sidecar that they have until they are replaced, and go on while the control plane
changes. Where the upgrade fails, the release is rolled back, unless --atomic=false is
given. CRDs are not: what is stored in them may need them, and they go with both versions.

Exit codes: 0 upgraded and ready, 1 something failed, 2 wrong usage, 3 refused.`,
		Example: `  # To the version of this program, with the values that the mesh has.
  outrigger upgrade

  # Which objects would change, and how.
  outrigger upgrade --dry-run

  # One value, and nothing else.
  outrigger upgrade --set osm.sidecarClass=haproxy`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.add(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&o.resetValues, "reset-values", false, "begin with the chart's values, not with those of the release")
	flags.BoolVar(&o.reuseValues, "reuse-values", true, "begin with the values of the release, which the given ones win over")
	flags.BoolVar(&o.atomic, "atomic", true, "roll the release back where it does not become ready")
	flags.BoolVar(&o.force, "force", false, "allow a jump of more than one minor version, and go on although another upgrade has not ended")
	cmd.MarkFlagsMutuallyExclusive("reset-values", "reuse-values")
	return cmd
}

func (o *applyOptions) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	o.valueFlags.add(flags)
	o.clusterFlags.add(flags)
	flags.BoolVar(&o.wait, "wait", true, "wait until everything is ready")
	flags.DurationVar(&o.timeout, "timeout", 5*time.Minute, "how long to wait")
	flags.BoolVar(&o.dryRun, "dry-run", false, "show what would change, by the API server's own word, and change nothing")
	flags.BoolVar(&o.forceConflicts, "force-conflicts", false, "take back fields that others have changed in the cluster")
	flags.StringVarP(&o.output, "output", "o", "", "format of the result: name, json or yaml; the default is the notes for people")
}
