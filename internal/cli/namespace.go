package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/page"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/sidecar"
)

// namespaceFlags are the flags of all commands about namespaces.
type namespaceFlags struct {
	kube kubeFlags
	mesh meshFlags
}

func (f *namespaceFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.kube.add(flags)
	flags.StringVar(&f.mesh.Name, "mesh-name", "osm", "name of the mesh, the value of the label "+metadata.MonitoredBy)
	flags.StringVar(&f.mesh.Namespace, "mesh-namespace", env("POD_NAMESPACE", "osm-system"), "namespace of the control plane")
}

func newNamespaceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "namespace",
		Aliases: []string{"ns"},
		Short:   "Add namespaces to the mesh, remove them, list them",
		Long: `Add namespaces to the mesh, remove them, list them.

These commands change labels and annotations of namespaces, which kubectl can do too.
They do not change running pods; they print which workloads must be restarted.`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newNamespaceAddCommand(), newNamespaceRemoveCommand(), newNamespaceIgnoreCommand(), newNamespaceListCommand())
	return cmd
}

// change has the new labels and annotations of a namespace; nil removes one.
type change struct{ labels, annotations map[string]*string }

func newNamespaceAddCommand() *cobra.Command {
	var (
		f               namespaceFlags
		class, revision string
		noInjection     bool
	)
	cmd := &cobra.Command{
		Use:   "add NAMESPACE...",
		Short: "Add namespaces to the mesh",
		Long: `Add namespaces to the mesh.

New pods in these namespaces get a sidecar. With --disable-sidecar-injection they get none,
but the mesh knows them. Without --class or --revision, the namespace keeps its class or
revision.

Exit codes: 0 all were added, 1 something failed, 2 wrong usage.`,
		Example: `  outrigger namespace add shop cart

  # with a proxy other than the mesh's default
  outrigger namespace add legacy --class haproxy`,
		Args:              someNamespaces,
		ValidArgsFunction: f.kube.completeNamespaces,
		RunE: func(cmd *cobra.Command, args []string) error {
			if class != "" && !slices.Contains(sidecar.Drivers(), strings.ToLower(class)) {
				return usage.Errorf("--class %q: this class does not exist%s; classes are %s", class, suggestion(class, sidecar.Drivers()), strings.Join(sidecar.Drivers(), ", "))
			}
			injection := "enabled"
			if noInjection {
				injection = "disabled"
			}
			c := change{
				labels:      map[string]*string{metadata.MonitoredBy: &f.mesh.Name, metadata.Ignore: nil},
				annotations: map[string]*string{metadata.Injection: &injection},
			}
			if class != "" {
				c.annotations[metadata.Class] = &class
			}
			if revision != "" {
				c.labels[metadata.Revision] = &revision
			}
			return f.each(cmd, args, func(client kubernetes.Interface, ns *corev1.Namespace) error {
				if of, ok := ns.Labels[metadata.MonitoredBy]; ok && of != f.mesh.Name {
					return fmt.Errorf("namespace %s is in mesh %s; remove it from there first: outrigger namespace remove %s --mesh-name %s", ns.Name, of, ns.Name, of)
				}
				if err := c.apply(cmd.Context(), client, ns.Name); err != nil {
					return err
				}
				terminal.Fprintf(cmd.OutOrStdout(), "namespace/%s added to mesh %s\n", ns.Name, f.mesh.Name)
				if noInjection {
					return nil
				}
				return f.tellRestarts(cmd, client, ns.Name, "without a sidecar", func(p *corev1.Pod) bool { return !inject.Injected(p) && !p.Spec.HostNetwork })
			})
		},
	}
	f.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&class, "class", "", "sidecar class of the namespace's pods; the default is the mesh's")
	flags.StringVar(&revision, "revision", "", "revision of the injector that adds the sidecars")
	flags.BoolVar(&noInjection, "disable-sidecar-injection", false, "add no sidecars to pods, except those that request one themselves")
	f.kube.complete(cmd)
	return cmd
}

func newNamespaceRemoveCommand() *cobra.Command {
	var f namespaceFlags
	cmd := &cobra.Command{
		Use:   "remove NAMESPACE...",
		Short: "Remove namespaces from the mesh",
		Long: `Remove namespaces from the mesh.

Running pods keep their sidecars until they are restarted, but the controller does not
serve these sidecars any more.

Exit codes: 0 all were removed, 1 something failed, 2 wrong usage.`,
		Example:           `  outrigger namespace remove shop`,
		Args:              someNamespaces,
		ValidArgsFunction: f.kube.completeNamespaces,
		RunE: func(cmd *cobra.Command, args []string) error {
			c := change{
				labels:      map[string]*string{metadata.MonitoredBy: nil, metadata.Revision: nil},
				annotations: map[string]*string{metadata.Injection: nil, metadata.Class: nil},
			}
			return f.each(cmd, args, func(client kubernetes.Interface, ns *corev1.Namespace) error {
				of, ok := ns.Labels[metadata.MonitoredBy]
				switch {
				case !ok:
					terminal.Fprintf(cmd.OutOrStdout(), "namespace/%s is in no mesh\n", ns.Name)
					return nil
				case of != f.mesh.Name:
					return fmt.Errorf("namespace %s is in mesh %s, not in %s; name it with --mesh-name", ns.Name, of, f.mesh.Name)
				}
				if err := c.apply(cmd.Context(), client, ns.Name); err != nil {
					return err
				}
				terminal.Fprintf(cmd.OutOrStdout(), "namespace/%s removed from mesh %s\n", ns.Name, f.mesh.Name)
				return f.tellRestarts(cmd, client, ns.Name, "with a sidecar", func(p *corev1.Pod) bool { return inject.Injected(p) })
			})
		},
	}
	f.add(cmd)
	f.kube.complete(cmd)
	return cmd
}

func newNamespaceIgnoreCommand() *cobra.Command {
	var f namespaceFlags
	cmd := &cobra.Command{
		Use:   "ignore NAMESPACE...",
		Short: "Keep namespaces out of every mesh",
		Long: `Keep namespaces out of every mesh.

The label ` + metadata.Ignore + ` overrides all others. 'outrigger namespace add'
removes it.

Exit codes: 0 all are ignored, 1 something failed, 2 wrong usage.`,
		Example:           `  outrigger namespace ignore monitoring`,
		Args:              someNamespaces,
		ValidArgsFunction: f.kube.completeNamespaces,
		RunE: func(cmd *cobra.Command, args []string) error {
			c := change{labels: map[string]*string{metadata.Ignore: new("true")}}
			return f.each(cmd, args, func(client kubernetes.Interface, ns *corev1.Namespace) error {
				if err := c.apply(cmd.Context(), client, ns.Name); err != nil {
					return err
				}
				terminal.Fprintf(cmd.OutOrStdout(), "namespace/%s ignored\n", ns.Name)
				return f.tellRestarts(cmd, client, ns.Name, "with a sidecar", func(p *corev1.Pod) bool { return inject.Injected(p) })
			})
		},
	}
	f.add(cmd)
	f.kube.complete(cmd)
	return cmd
}

func someNamespaces(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usage.Errorf("%s: name one or more namespaces", cmd.CommandPath())
	}
	return nil
}

// each calls do for each namespace, also after errors, and returns all errors.
func (f *namespaceFlags) each(cmd *cobra.Command, names []string, do func(kubernetes.Interface, *corev1.Namespace) error) error {
	client, err := f.kube.client()
	if err != nil {
		return err
	}
	var failed []error
	for _, name := range names {
		name = strings.TrimPrefix(strings.TrimPrefix(name, "namespace/"), "ns/")
		if inject.NamespaceExempt(name, f.mesh.Namespace) {
			failed = append(failed, usage.Errorf("namespace %s belongs to Kubernetes or to the control plane, and cannot be in a mesh", name))
			continue
		}
		ns, err := client.CoreV1().Namespaces().Get(cmd.Context(), name, metav1.GetOptions{})
		if err != nil {
			failed = append(failed, fmt.Errorf("namespace %s: %w", name, err))
			continue
		}
		failed = append(failed, do(client, ns))
	}
	return errors.Join(failed...)
}

// apply changes a namespace.
func (c change) apply(ctx context.Context, client kubernetes.Interface, name string) error {
	metadata := map[string]any{"labels": c.labels}
	if len(c.annotations) > 0 {
		metadata["annotations"] = c.annotations
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err == nil {
		_, err = client.CoreV1().Namespaces().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		return fmt.Errorf("changing namespace %s: %w", name, err)
	}
	return nil
}

// tellRestarts prints the workloads with pods for which old returns true.
func (f *namespaceFlags) tellRestarts(cmd *cobra.Command, client kubernetes.Interface, namespace, how string, old func(*corev1.Pod) bool) error {
	pods, err := page.All[corev1.Pod](cmd.Context(), client.CoreV1().Pods(namespace).List, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing the pods of namespace %s: %w", namespace, err)
	}
	counts := make(map[string]int)
	for i := range pods {
		if pod := &pods[i]; !ended(pod) && old(pod) {
			counts[workload(pod)]++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		kind, _, _ := strings.Cut(name, "/")
		what := fmt.Sprintf("kubectl rollout restart -n %s %s", namespace, name)
		if !slices.Contains([]string{"deployment", "statefulset", "daemonset"}, kind) {
			what = fmt.Sprintf("kubectl delete -n %s %s, and create it again", namespace, name)
		}
		terminal.Fprintf(cmd.OutOrStdout(), "  %s: %d running %s until: %s\n", name, counts[name], how, what)
	}
	return nil
}

// listedNamespace is a namespace as 'namespace list' prints it.
type listedNamespace struct {
	Name      string `json:"name"`
	Mesh      string `json:"mesh,omitempty"`
	Injection string `json:"injection"`
	Class     string `json:"class,omitempty"`
	Revision  string `json:"revision,omitempty"`
	// With and Without count its running pods with and without a sidecar.
	With    int `json:"podsWithSidecar"`
	Without int `json:"podsWithoutSidecar"`
}

func newNamespaceListCommand() *cobra.Command {
	var (
		f      namespaceFlags
		output string
		all    bool
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the namespaces of the mesh",
		Long: `List the namespaces of the mesh.

Only pods that have not ended are counted.

Exit codes: 0 they were listed, 1 something failed, 2 wrong usage.`,
		Example: `  outrigger namespace list

  # all namespaces, also those of other meshes and of none
  outrigger namespace list --all -o wide`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"", "name", "wide", "json", "yaml"}, output) {
				return usage.Errorf("-o %q: formats are name, wide, json and yaml", output)
			}
			client, err := f.kube.client()
			if err != nil {
				return err
			}
			listed, err := f.list(cmd.Context(), client, all)
			if err != nil {
				return err
			}
			if output == "json" || output == "yaml" {
				return usage.PrintAs(cmd.OutOrStdout(), output, listed)
			}
			if len(listed) == 0 {
				terminal.Fprintf(cmd.ErrOrStderr(), "no namespace is in mesh %s; add one with 'outrigger namespace add'\n", f.mesh.Name)
				return nil
			}
			return printNamespaces(cmd.OutOrStdout(), listed, output)
		},
	}
	f.add(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "", "format: name, wide, json or yaml; the default is a table")
	cmd.Flags().BoolVar(&all, "all", false, "all namespaces, also those of other meshes and of none")
	f.kube.complete(cmd)
	completeValues(cmd, "output", "name", "wide", "json", "yaml")
	return cmd
}

func (f *namespaceFlags) list(ctx context.Context, client kubernetes.Interface, all bool) ([]listedNamespace, error) {
	options := metav1.ListOptions{}
	if !all {
		options.LabelSelector = metadata.MonitoredBy + "=" + f.mesh.Name
	}
	namespaces, err := page.All[corev1.Namespace](ctx, client.CoreV1().Namespaces().List, options)
	if err != nil {
		return nil, fmt.Errorf("listing namespaces: %w", err)
	}
	listed := []listedNamespace{}
	for i := range namespaces {
		ns := &namespaces[i]
		l := listedNamespace{
			Name: ns.Name, Mesh: ns.Labels[metadata.MonitoredBy], Class: ns.Annotations[metadata.Class], Revision: ns.Labels[metadata.Revision],
			Injection: cmp.Or(ns.Labels[metadata.Injection], ns.Annotations[metadata.Injection], "by policy"),
		}
		if _, ignored := ns.Labels[metadata.Ignore]; ignored {
			l.Injection = "ignored"
		}
		if l.Mesh != "" {
			pods, err := page.All[corev1.Pod](ctx, client.CoreV1().Pods(ns.Name).List, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("listing the pods of namespace %s: %w", ns.Name, err)
			}
			for i := range pods {
				switch pod := &pods[i]; {
				case ended(pod):
				case inject.Injected(pod):
					l.With++
				default:
					l.Without++
				}
			}
		}
		listed = append(listed, l)
	}
	return listed, nil
}

func printNamespaces(w io.Writer, listed []listedNamespace, format string) error {
	if format == "name" {
		for _, l := range listed {
			terminal.Fprintln(w, "namespace/"+l.Name)
		}
		return nil
	}
	t := terminal.NewTable(w, 3)
	header := "NAME\tMESH\tINJECTION\tWITH\tWITHOUT"
	if format == "wide" {
		header += "\tCLASS\tREVISION"
	}
	t.Header(header)
	for _, l := range listed {
		cells := []string{l.Name, cmp.Or(l.Mesh, "-"), l.Injection, fmt.Sprint(l.With), fmt.Sprint(l.Without)}
		if format == "wide" {
			cells = append(cells, cmp.Or(l.Class, "-"), cmp.Or(l.Revision, "-"))
		}
		t.Row(cells...)
	}
	return t.Flush()
}
