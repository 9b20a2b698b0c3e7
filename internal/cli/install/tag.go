package install

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	release "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/page"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
)

const (
	// taken is how long an injector may take to notice a change of its ConfigMap, and
	// takenFromVolume how long if it reads the ConfigMap from a volume.
	taken           = 2 * time.Second
	takenFromVolume = 90 * time.Second
)

// tagFlags are the flags of all subcommands of 'outrigger tag'.
type tagFlags struct {
	clusterFlags
	namespace, name string
	timeout         time.Duration
}

func (f *tagFlags) add(flags *pflag.FlagSet) {
	f.clusterFlags.add(flags)
	flags.StringVarP(&f.namespace, "namespace", "n", defaultNamespace, "namespace of the control plane")
	flags.StringVar(&f.name, "name", "osm", "name of the mesh")
	flags.DurationVar(&f.timeout, "timeout", 5*time.Minute, "how long to wait for the Helm release")
}

func newTagCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tag",
		Short: "Give revisions names that can be moved to another revision",
		Long: `Give revisions names that can be moved to another revision.

A namespace with the label openservicemesh.io/rev=TAG gets its sidecars from the injector
of the revision to which the tag points. If the tag is moved to another revision, new pods in
these namespaces get their sidecars from that revision. The namespaces themselves and their
running pods do not change.

Tags are stored in the value revisionTags of the revision's Helm release, so an upgrade keeps
them. If the mesh was installed without Helm, set this value instead of using this command.`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTagSetCommand(), newTagListCommand(), newTagRemoveCommand())
	return cmd
}

// oneTag requires the name of a tag as the only argument.
func oneTag(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usage.Errorf("%s: name one tag", cmd.CommandPath())
	}
	if problems := validation.IsDNS1123Label(args[0]); len(problems) > 0 {
		return usage.Errorf("%s %q: %s", cmd.CommandPath(), args[0], strings.Join(problems, "; "))
	}
	return nil
}

func newTagSetCommand() *cobra.Command {
	var (
		f         tagFlags
		revision  string
		overwrite bool
	)
	cmd := &cobra.Command{
		Use:   "set TAG",
		Short: "Point a tag to a revision",
		Long: `Point a tag to a revision.

While a tag is moved, it points to both revisions for a moment, so that no pod is created
without a sidecar. A pod that is created in this moment gets its sidecar from one of them.

Exit codes: 0 the tag points to the revision, 1 something failed, 2 wrong usage, 3 refused.`,
		Example: `  # Namespaces with openservicemesh.io/rev=prod use the default revision.
  outrigger tag set prod --revision default

  # Now they use the revision canary.
  outrigger tag set prod --revision canary --overwrite`,
		Args: oneTag,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.set(cmd.Context(), cmd.ErrOrStderr(), args[0], revision, overwrite)
		},
	}
	f.add(cmd.Flags())
	cmd.Flags().StringVar(&revision, "revision", defaultRevision, "revision that the tag points to")
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "move a tag that points to another revision")
	return cmd
}

func newTagListCommand() *cobra.Command {
	var (
		f      tagFlags
		output string
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the tags, and the namespaces that use them",
		Args:  usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"", "json", "yaml"}, output) {
				return usage.Errorf("-o %q: formats are json and yaml", output)
			}
			return f.list(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), output)
		},
	}
	f.add(cmd.Flags())
	cmd.Flags().StringVarP(&output, "output", "o", "", "format: json or yaml; the default is a table")
	return cmd
}

func newTagRemoveCommand() *cobra.Command {
	var (
		f     tagFlags
		force bool
	)
	cmd := &cobra.Command{
		Use:   "remove TAG",
		Short: "Remove a tag that no namespace uses",
		Long: `Remove a tag that no namespace uses.

Exit codes: 0 the tag is removed, 1 something failed, 2 wrong usage, 3 refused.`,
		Args: oneTag,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.remove(cmd.Context(), cmd.ErrOrStderr(), args[0], force)
		},
	}
	f.add(cmd.Flags())
	cmd.Flags().BoolVar(&force, "force", false, "remove the tag although namespaces use it; their new pods then get no sidecar")
	return cmd
}

// tagsOf returns the tags in the values of a release.
func tagsOf(config map[string]any) []string {
	tags, _, _ := unstructured.NestedStringSlice(config, "revisionTags")
	return tags
}

// open returns the target and the releases of the mesh.
func (f *tagFlags) open(stderr io.Writer) (*target, []*release.Release, error) {
	if f.timeout <= 0 {
		return nil, nil, usage.Errorf("--timeout %s: give a time such as 5m", f.timeout)
	}
	t, err := newTarget(f.clusterFlags, f.namespace, stderr)
	if err != nil {
		return nil, nil, err
	}
	all, err := t.releases()
	if err != nil {
		return nil, nil, err
	}
	all = slices.DeleteFunc(all, func(rel *release.Release) bool { return meshOf(rel.Config) != f.name })
	if len(all) == 0 {
		return nil, nil, usage.Refusalf("mesh %s has no Helm release in namespace %s: name its namespace with -n; if it was installed without Helm, set the value revisionTags", f.name, f.namespace)
	}
	return t, all, nil
}

func (f *tagFlags) set(ctx context.Context, stderr io.Writer, tag, revision string, overwrite bool) error {
	t, all, err := f.open(stderr)
	if err != nil {
		return err
	}
	var to *release.Release
	var from []*release.Release
	for _, rel := range all {
		of := revisionOf(rel.Config)
		if of == tag {
			return usage.Refusalf("%s is the name of a revision; choose another for the tag", tag)
		}
		switch {
		case of == revision:
			to = rel
		case slices.Contains(tagsOf(rel.Config), tag):
			from = append(from, rel)
		}
	}
	if to == nil {
		return usage.Refusalf("revision %s does not exist in namespace %s: install it first with 'outrigger install --revision %s'", revision, f.namespace, revision)
	}
	if len(from) > 0 && !overwrite {
		return usage.Refusalf("tag %s points to revision %s; give --overwrite to move it", tag, revisionOf(from[0].Config))
	}
	if tags := tagsOf(to.Config); !slices.Contains(tags, tag) {
		if err := f.change(ctx, t, to, append(slices.Clone(tags), tag)); err != nil {
			return err
		}
	}
	if len(from) > 0 {
		// From now on both revisions select the pods, and the one that is called first injects.
		if err := settle(ctx, to); err != nil {
			return err
		}
	}
	for _, rel := range from {
		if err := f.change(ctx, t, rel, slices.DeleteFunc(tagsOf(rel.Config), func(s string) bool { return s == tag })); err != nil {
			return fmt.Errorf("tag %s points to revision %s, but also still to %s: %w; run the same command again", tag, revision, revisionOf(rel.Config), err)
		}
	}
	having, err := t.labelled(ctx, tag)
	if err != nil {
		return err
	}
	t.say("tag %s points to revision %s; namespaces that use it: %s", tag, revision, orNone(having))
	return nil
}

// settle waits until the injectors of a release know its tags.
func settle(ctx context.Context, rel *release.Release) error {
	delay := taken
	if mounted, _, _ := unstructured.NestedBool(rel.Config, "injector", "mountConfig"); mounted {
		delay = takenFromVolume
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(delay):
		return nil
	}
}

// change changes the tags of a release, but neither its chart nor its other values.
func (f *tagFlags) change(ctx context.Context, t *target, rel *release.Release, tags []string) error {
	if rel.Info.Status.IsPending() {
		return usage.Refusalf("the release %s is %s: wait until that has finished", rel.Name, rel.Info.Status)
	}
	values := loader.MergeMaps(rel.Config, nil)
	list := make([]any, len(tags))
	for i, tag := range tags {
		list[i] = tag
	}
	values["revisionTags"] = list
	a := &application{
		applyOptions: &applyOptions{upgrade: true, wait: true, atomic: true, timeout: f.timeout},
		target:       t, revision: revisionOf(rel.Config), release: rel.Name, values: values, chart: rel.Chart, last: rel,
	}
	err := a.render(ctx)
	if err == nil {
		err = a.keepChanges(ctx)
	}
	if err == nil {
		_, err = a.runHelm(ctx)
	}
	if err != nil {
		return fmt.Errorf("setting the tags of the release %s to %s: %w", rel.Name, orNone(tags), err)
	}
	return nil
}

// labelled returns the namespaces that select a tag or a revision.
func (t *target) labelled(ctx context.Context, name string) ([]string, error) {
	namespaces, err := page.All[corev1.Namespace](ctx, t.kube.CoreV1().Namespaces().List, metav1.ListOptions{LabelSelector: metadata.Revision + "=" + name})
	if err != nil {
		return nil, fmt.Errorf("listing namespaces: %w", err)
	}
	var names []string
	for _, namespace := range namespaces {
		names = append(names, namespace.Name)
	}
	return names, nil
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// tagOf is a tag in the output of 'outrigger tag list'.
type tagOf struct {
	Tag        string   `json:"tag"`
	Revision   string   `json:"revision"`
	Version    string   `json:"version"`
	Namespaces []string `json:"namespaces"`
}

func (f *tagFlags) list(ctx context.Context, stdout, stderr io.Writer, output string) error {
	t, all, err := f.open(stderr)
	if err != nil {
		return err
	}
	tags := []tagOf{}
	for _, rel := range all {
		for _, tag := range tagsOf(rel.Config) {
			having, err := t.labelled(ctx, tag)
			if err != nil {
				return err
			}
			tags = append(tags, tagOf{tag, revisionOf(rel.Config), rel.Chart.AppVersion(), having})
		}
	}
	slices.SortFunc(tags, func(a, b tagOf) int { return strings.Compare(a.Tag, b.Tag) })
	if output != "" {
		return usage.PrintAs(stdout, output, tags)
	}
	table := terminal.NewTable(stdout, 3)
	table.Header("TAG\tREVISION\tVERSION\tNAMESPACES")
	for _, tag := range tags {
		table.Row(tag.Tag, tag.Revision, tag.Version, orNone(tag.Namespaces))
	}
	return table.Flush()
}

func (f *tagFlags) remove(ctx context.Context, stderr io.Writer, tag string, force bool) error {
	t, all, err := f.open(stderr)
	if err != nil {
		return err
	}
	having, err := t.labelled(ctx, tag)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(rel *release.Release) bool { return !slices.Contains(tagsOf(rel.Config), tag) })
	if len(all) == 0 {
		t.say("tag %s does not exist", tag)
		return nil
	}
	if len(having) > 0 && !force {
		return usage.Refusalf("namespaces %s have the label %s=%s: their new pods would get no sidecar. Change their label first, or give --force", orNone(having), metadata.Revision, tag)
	}
	for _, rel := range all {
		if err := f.change(ctx, t, rel, slices.DeleteFunc(tagsOf(rel.Config), func(s string) bool { return s == tag })); err != nil {
			return err
		}
	}
	t.say("removed tag %s", tag)
	return nil
}
