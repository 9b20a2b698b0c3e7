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

The command installs what 'outrigger manifests' prints: it applies the CRDs itself, and
everything else as a Helm release with the name outrigger, so 'helm list', 'helm upgrade'
and 'helm rollback' work too. If CRDs exist already, such as those of Open Service Mesh, it
takes them over with all their objects, and reports this.

With --revision, it installs another injector for the same mesh, as a Helm release with the
name outrigger-REVISION.

It first checks the API server's version, the user's rights and the values. On stderr it
reports what it waits for, and why that is not ready. If an installation has failed, remove
the cause and run the same command again.

Exit codes: 0 installed and ready, 1 something failed, 2 wrong usage, 3 refused, because the
installation would damage existing objects; the message says what to do instead.`,
		Example: `  # Install the mesh, with a value of the chart.
  outrigger install --set osm.enablePermissiveTrafficPolicy=false

  # Show what this would change.
  outrigger install --set osm.enablePermissiveTrafficPolicy=false --dry-run

  # With the values of Open Service Mesh, whose MeshConfig stays.
  outrigger install -f osm-values.yaml

  # Another injector, for namespaces and pods with the label openservicemesh.io/rev=canary.
  outrigger install --revision canary --set osm.image.tag=0.2.0`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.add(cmd)
	cmd.Flags().BoolVar(&o.takeOwnership, "take-ownership", false, "make existing objects, created by 'outrigger manifests | kubectl apply', part of the release")
	cmd.Flags().BoolVar(&o.force, "force", false, "continue although another installation has not finished, for example because it was killed")
	return cmd
}

func newUpgradeCommand() *cobra.Command {
	o := applyOptions{upgrade: true}
	cmd := &cobra.Command{
		Use:   "upgrade",
		Short: "Change the mesh to this program's version or to other values",
		Long: `Change the mesh to this program's version or to other values, and wait until it is ready.

The command first upgrades the CRDs, which Helm does not upgrade, then the release. It keeps
the values of the release, and the given values override them; with --reset-values, it starts
with the chart's values. Fields of the MeshConfig that were changed in the cluster keep their
values, unless --force-conflicts is given.

This program may be one minor version older or newer than the release. Pods keep their
sidecar until they are replaced, and it works while the control plane is upgraded. If the
upgrade fails, the release is rolled back, unless --atomic=false is given. The CRDs are not
rolled back, because stored objects may need them; they work with both versions.

Exit codes: 0 upgraded and ready, 1 something failed, 2 wrong usage, 3 refused.`,
		Example: `  # Upgrade to the version of this program, and keep the values.
  outrigger upgrade

  # Show which objects would change, and how.
  outrigger upgrade --dry-run

  # Change one value.
  outrigger upgrade --set osm.sidecarClass=haproxy`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.add(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&o.resetValues, "reset-values", false, "start with the chart's values instead of the release's")
	flags.BoolVar(&o.reuseValues, "reuse-values", true, "start with the release's values; the given values override them")
	flags.BoolVar(&o.atomic, "atomic", true, "roll the release back if it does not become ready")
	flags.BoolVar(&o.force, "force", false, "allow a change of more than one minor version, and continue although another upgrade has not finished")
	cmd.MarkFlagsMutuallyExclusive("reset-values", "reuse-values")
	return cmd
}

func (o *applyOptions) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	o.valueFlags.add(flags)
	o.clusterFlags.add(flags)
	flags.BoolVar(&o.wait, "wait", true, "wait until everything is ready")
	flags.DurationVar(&o.timeout, "timeout", 5*time.Minute, "how long to wait")
	flags.BoolVar(&o.dryRun, "dry-run", false, "show what would change, using a dry run of the API server, and change nothing")
	flags.BoolVar(&o.forceConflicts, "force-conflicts", false, "overwrite fields that others have changed in the cluster")
	flags.StringVarP(&o.output, "output", "o", "", "format of the result: name, json or yaml; the default is the chart's notes")
}
