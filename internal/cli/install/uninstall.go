package install

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	release "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
)

// uninstallOptions are the flags of 'outrigger uninstall'.
type uninstallOptions struct {
	clusterFlags
	namespace, name, revision string
	purge, yes, force, dryRun bool
	timeout                   time.Duration
}

func newUninstallCommand() *cobra.Command {
	var o uninstallOptions
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the mesh from the cluster",
		Long: `Remove the mesh from the cluster.

The command lists what it will remove, what it will keep, and the consequences for pods
with a sidecar. Then it asks for confirmation; without a terminal, --yes is required. It
finds the objects by the labels of the mesh, so it works for an installation by Helm,
'outrigger install' or kubectl, and also if some objects are already removed.

It removes the webhook first, so that pods can be created at any time. It removes the
controller before the objects that the controller reads, so that no proxy gets a
configuration without policies. Pods with a sidecar keep their last configuration.

Without --purge, it keeps the CRDs with all their objects, such as the MeshConfig, and the
Secrets with the mesh's CA, so that a new installation continues with them. With --purge,
it removes everything.

Exit codes: 0 the mesh is removed or was not installed, 1 something failed, 2 wrong usage,
3 refused, or the answer was no.`,
		Example: `  # Show what would be removed.
  outrigger uninstall --dry-run

  # Remove the mesh, with its CA, its CRDs and all policies.
  outrigger uninstall --purge

  # Remove one injector that no namespace uses any more.
  outrigger uninstall --revision canary`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	o.clusterFlags.add(flags)
	flags.StringVarP(&o.namespace, "namespace", "n", defaultNamespace, "namespace of the control plane")
	flags.StringVar(&o.name, "name", "osm", "name of the mesh")
	flags.StringVar(&o.revision, "revision", "", "remove only the injector of this revision")
	flags.BoolVar(&o.purge, "purge", false, "also remove the CRDs with all their objects, and the mesh's CA")
	flags.BoolVarP(&o.yes, "yes", "y", false, "do not ask for confirmation")
	flags.BoolVar(&o.force, "force", false, "remove a revision although namespaces use it")
	flags.BoolVar(&o.dryRun, "dry-run", false, "list what would be removed, and remove nothing")
	flags.DurationVar(&o.timeout, "timeout", 5*time.Minute, "how long to wait until everything is removed")
	return cmd
}

// removal is one uninstallation.
type removal struct {
	*uninstallOptions
	*target
	releases []*release.Release
	// webhooks, workloads, objects and left are removed in this order. Left are the objects
	// that the controller and the injectors have created.
	webhooks, workloads, objects, left []*unstructured.Unstructured
	// secrets and crds are removed last, and only with --purge.
	secrets, crds []*unstructured.Unstructured
	// kept describes what is not removed.
	kept []string
}

func (o *uninstallOptions) run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) error {
	if o.timeout <= 0 {
		return usage.Errorf("--timeout %s: give a time such as 5m", o.timeout)
	}
	if o.revision == defaultRevision {
		o.revision = ""
	}
	if o.revision != "" && o.purge {
		return usage.Errorf("--purge removes objects that all revisions share: leave out --revision or --purge")
	}
	t, err := newTarget(o.clusterFlags, o.namespace, stderr)
	if err != nil {
		return err
	}
	r := &removal{uninstallOptions: o, target: t}
	if err := r.reachable(); err != nil {
		return err
	}
	if err := r.take(ctx); err != nil {
		return err
	}
	if o.revision != "" {
		if err := r.unused(ctx); err != nil {
			return err
		}
	}
	if r.nothing() {
		r.say("mesh %s has no objects in namespace %s", o.name, o.namespace)
		return r.removeNamespace(ctx)
	}
	if err := r.list(ctx, stdout); err != nil {
		return err
	}
	if o.dryRun {
		return nil
	}
	if !o.yes {
		if err := confirm(stdin, stderr); err != nil {
			return err
		}
	}
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("it did not finish within %s; run 'outrigger uninstall' again to continue", o.timeout))
	defer cancel()
	if err := r.remove(ctx); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w: %w", err, cause)
		}
		return err
	}
	r.say("uninstalled (%s)", time.Since(began).Round(100*time.Millisecond))
	return nil
}

func (r *removal) nothing() bool {
	return len(r.releases)+len(r.webhooks)+len(r.workloads)+len(r.objects)+len(r.left)+len(r.secrets)+len(r.crds) == 0
}

// list prints what will be removed and kept.
func (r *removal) list(ctx context.Context, stdout io.Writer) error {
	terminal.Fprintln(stdout, "To be removed:")
	for _, rel := range r.releases {
		terminal.Fprintf(stdout, "  the Helm release %s %s\n", rel.Name, rel.Chart.AppVersion())
	}
	for _, objects := range [][]*unstructured.Unstructured{r.webhooks, r.workloads, r.objects, r.left, r.secrets, r.crds} {
		for _, obj := range objects {
			line := title(obj)
			if obj.GetKind() == crdKind {
				count, err := r.count(ctx, obj)
				if err != nil {
					return err
				}
				line += fmt.Sprintf(" with %d objects", count)
			}
			terminal.Fprintln(stdout, "  "+line)
		}
	}
	if len(r.kept) > 0 {
		terminal.Fprintln(stdout, "Kept:")
		for _, line := range r.kept {
			terminal.Fprintln(stdout, "  "+line)
		}
	}
	return r.listPods(ctx, stdout)
}

// confirm asks the user, and returns an error unless the answer is yes.
func confirm(stdin io.Reader, stderr io.Writer) error {
	if file, ok := stdin.(*os.File); ok {
		if info, err := file.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			terminal.Fprintf(stderr, "Continue? [y/N] ")
			answer, err := bufio.NewReader(file).ReadString('\n')
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			if answer = strings.ToLower(strings.TrimSpace(answer)); answer == "y" || answer == "yes" {
				return nil
			}
			return usage.Refusalf("nothing was removed")
		}
	}
	return usage.Errorf("there is no terminal for the confirmation: give --yes to remove what is listed above")
}

// remove removes everything, in an order in which running pods are not disturbed.
func (r *removal) remove(ctx context.Context) error {
	// Without the webhook and the policies, pods are created without sidecars.
	if err := r.deleteAll(ctx, "the webhook", r.webhooks); err != nil {
		return err
	}
	if err := r.deleteAll(ctx, "the control plane", r.workloads); err != nil {
		return err
	}
	if err := r.podsGone(ctx); err != nil {
		return err
	}
	if err := r.deleteAll(ctx, "the rest of the release", r.objects); err != nil {
		return err
	}
	// The control plane may have created more objects until it ended.
	if err := r.takeLeft(ctx); err != nil {
		return err
	}
	if err := r.deleteAll(ctx, "what the control plane has created", r.left); err != nil {
		return err
	}
	if err := r.deleteAll(ctx, "the mesh's CA and certificates", r.secrets); err != nil {
		return err
	}
	if err := r.deleteAll(ctx, "the CRDs and their objects", r.crds); err != nil {
		return err
	}
	for _, rel := range r.releases {
		states, err := r.helm.Releases.History(rel.Name)
		if err != nil {
			return fmt.Errorf("reading the Helm release %s: %w", rel.Name, err)
		}
		for _, found := range states {
			state, ok := found.(*release.Release)
			if !ok {
				continue
			}
			if _, err := r.helm.Releases.Delete(state.Name, state.Version); err != nil {
				return fmt.Errorf("deleting revision %d of the Helm release %s: %w", state.Version, state.Name, err)
			}
		}
		r.say("removed the Helm release %s", rel.Name)
	}
	if r.revision != "" {
		return nil
	}
	return r.removeNamespace(ctx)
}

// deleteAll deletes objects and waits until they are gone. Objects that do not exist are no
// error.
func (r *removal) deleteAll(ctx context.Context, what string, objects []*unstructured.Unstructured) error {
	background := metav1.DeletePropagationBackground
	for _, obj := range objects {
		resource, err := r.resource(obj)
		if err != nil {
			return fmt.Errorf("%s: %w", title(obj), err)
		}
		if err := resource.Delete(ctx, obj.GetName(), metav1.DeleteOptions{PropagationPolicy: &background}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting %s: %w", title(obj), err)
		}
	}
	for _, obj := range objects {
		for {
			found, err := r.exists(ctx, obj)
			if err != nil {
				return err
			}
			if found == nil || found.GetUID() != obj.GetUID() {
				break
			}
			if err := pause(ctx); err != nil {
				return fmt.Errorf("%s still exists (finalizers %v)", title(obj), found.GetFinalizers())
			}
		}
	}
	if len(objects) > 0 {
		r.say("removed %s: %d objects", what, len(objects))
	}
	return nil
}

// podsGone waits until the pods of the control plane are gone.
func (r *removal) podsGone(ctx context.Context) error {
	for {
		pods, err := r.kube.CoreV1().Pods(r.target.namespace).List(ctx, metav1.ListOptions{LabelSelector: r.selector()})
		if err != nil {
			return fmt.Errorf("listing the control plane's pods: %w", err)
		}
		left := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return r.revision != "" && p.Labels["app"] != inject.ObjectName(r.revision) })
		if len(left) == 0 {
			return nil
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("pod %s/%s is still running", left[0].Namespace, left[0].Name)
		}
	}
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(200 * time.Millisecond):
		return nil
	}
}
