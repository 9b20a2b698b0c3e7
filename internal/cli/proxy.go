package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// proxyFlags are the flags of the commands that query controllers.
type proxyFlags struct {
	kube    kubeFlags
	mesh    meshFlags
	address string
	timeout time.Duration
	output  string
	// namespace is the value of -n, and all that of -A.
	namespace string
	all       bool
}

func (f *proxyFlags) add(cmd *cobra.Command, formats ...string) {
	flags := cmd.Flags()
	f.kube.add(flags)
	flags.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the pods; the default for pods that are named is that of the kubeconfig's context")
	f.addMesh(flags)
	f.kube.complete(cmd)
	completeValues(cmd, "output", formats...)
}

// addMesh adds the flags that say which controllers are asked.
func (f *proxyFlags) addMesh(flags *pflag.FlagSet) {
	flags.StringVar(&f.mesh.Namespace, "mesh-namespace", env("POD_NAMESPACE", "osm-system"), "namespace of the control plane")
	f.addAddress(flags)
	flags.DurationVar(&f.timeout, "timeout", 30*time.Second, "how long the requests may take")
}

func (f *proxyFlags) addAddress(flags *pflag.FlagSet) {
	flags.StringVar(&f.address, "debug-address", "", "HOST:PORT of the debug pages of a controller that is not in a cluster; the default is to ask the controller's pods")
}

// newProxyCommand returns the command proxy.
func newProxyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "Show the proxies of the mesh, their configuration and their logs",
		Long: `Show the proxies of the mesh, their configuration and their logs.

The commands ask the controllers through the API server, as 'kubectl port-forward' does,
with a token of the service account outrigger-viewer. The user needs a RoleBinding to the
Role outrigger-viewer in the control plane's namespace. Pods are named as in kubectl: POD
with -n, pod/POD, deploy/NAME, svc/NAME and so on, or NAMESPACE/POD.

For a controller that is not in a cluster, give --debug-address. Its MeshConfig must have
spec.observability.enableDebugServer set to true.`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newProxyListCommand(), newProxyGetCommand(), newProxyLogsCommand())
	return cmd
}

// oneTarget is a [cobra.PositionalArgs] for the argument of podTarget.
func oneTarget(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usage.Errorf("%s: name one pod or workload, as POD, TYPE/NAME or NAMESPACE/POD", cmd.CommandPath())
	}
	return nil
}

func newProxyListCommand() *cobra.Command {
	var f proxyFlags
	cmd := &cobra.Command{
		Use:   "list [TYPE/NAME...]",
		Short: "List the proxies that are connected or keep crashing",
		Long: `List the proxies that are connected to a controller, and those that keep crashing.

The state of a proxy is one of:

  Failing   it keeps crashing, whether it is connected or not; -o yaml shows more
  Current   it runs the latest configuration that it was sent
  Waiting   it has not acknowledged the latest configuration yet
  Rejected  it rejected a part of the configuration
  Empty     it has not been sent a configuration yet

Without arguments and without -n, the list has all proxies of the mesh. A proxy that is
neither connected nor crashing is not listed; 'outrigger check' finds its pod.

Exit codes: 0 all controllers have answered, 1 something failed, 2 wrong usage.`,
		Example: `  # all proxies of the mesh
  outrigger proxy list

  # which parts of their configuration do the proxies of a namespace reject?
  outrigger proxy list -n shop -o yaml

  # the proxies of a Deployment, with the versions of their configuration
  outrigger proxy list deploy/web -n shop -o wide

  # the proxies of a controller without a cluster
  outrigger proxy list --debug-address 127.0.0.1:9092 -o wide`,
		ValidArgsFunction: f.completeTargets,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains([]string{"", "name", "wide", "json", "yaml"}, f.output) {
				return usage.Errorf("-o %q: formats are name, wide, json and yaml", f.output)
			}
			if err := f.check(); err != nil {
				return err
			}
			if f.all && (f.namespace != "" || len(args) > 0) {
				return usage.Errorf("-A means all namespaces: give neither -n nor names with it")
			}
			of, err := f.named(cmd.Context(), args)
			if err != nil {
				return err
			}
			proxies, failed := f.list(cmd.Context())
			proxies = slices.DeleteFunc(proxies, func(p listedProxy) bool {
				return f.namespace != "" && p.Name.Namespace != f.namespace || of != nil && !of[p.Name]
			})
			switch {
			case f.output == "name":
				for i := range proxies {
					terminal.Fprintln(cmd.OutOrStdout(), proxies[i].Name)
				}
			case f.output == "json" || f.output == "yaml":
				// Without proxies the output is an empty list, not null.
				err = usage.PrintAs(cmd.OutOrStdout(), f.output, append([]listedProxy{}, proxies...))
			case len(proxies) == 0 && failed == nil:
				terminal.Fprintln(cmd.ErrOrStderr(), "no proxy is connected")
			case len(proxies) > 0:
				err = printProxies(cmd.OutOrStdout(), proxies, f.output == "wide", time.Now())
			}
			return errors.Join(err, failed)
		},
	}
	cmd.Flags().StringVarP(&f.output, "output", "o", "", "format: name (NAMESPACE/POD), wide, json or yaml; the default is a table")
	cmd.Flags().BoolVarP(&f.all, "all-namespaces", "A", false, "all namespaces; this is the default without -n")
	f.add(cmd, "name", "wide", "json", "yaml")
	return cmd
}

// named returns the names of the pods of the arguments, or nil without arguments.
func (f *proxyFlags) named(ctx context.Context, args []string) (map[mesh.Name]bool, error) {
	if len(args) == 0 {
		return nil, nil
	}
	names := make(map[mesh.Name]bool)
	for _, arg := range args {
		target, err := f.target(arg)
		if err != nil {
			return nil, err
		}
		if target.kind == "pod" {
			names[mesh.Name{Namespace: target.namespace, Name: target.name}] = true
			continue
		}
		pods, err := f.podsOf(ctx, target)
		if err != nil {
			return nil, err
		}
		for i := range pods {
			names[mesh.Name{Namespace: pods[i].Namespace, Name: pods[i].Name}] = true
		}
	}
	return names, nil
}

// target parses an argument. The default namespace is that of -n or, without it, of the
// kubeconfig's context.
func (f *proxyFlags) target(arg string) (podTarget, error) {
	target, err := parseTarget(arg, f.namespace)
	if err != nil || target.namespace != "" {
		return target, err
	}
	if f.address != "" {
		return target, usage.Errorf("%q: with --debug-address name a pod as NAMESPACE/POD, or its namespace with -n", arg)
	}
	target.namespace, err = f.kube.namespace()
	return target, err
}

// podsOf returns the pods of a target in the cluster.
func (f *proxyFlags) podsOf(ctx context.Context, target podTarget) ([]corev1.Pod, error) {
	if f.address != "" {
		return nil, usage.Errorf("%s: with --debug-address there is no cluster that could list its pods; name a pod as NAMESPACE/POD", target)
	}
	client, err := f.kube.client()
	if err != nil {
		return nil, err
	}
	return target.pods(ctx, client)
}

func newProxyGetCommand() *cobra.Command {
	var f proxyFlags
	cmd := &cobra.Command{
		Use:   "get POD | TYPE/NAME | NAMESPACE/POD",
		Short: "Show the part of the mesh that a proxy may see, and its configuration",
		Long: `Show the part of the mesh that a proxy may see, and its configuration.

The command prints the state of the proxy and what it rejects, its View (the part of the
mesh that it may see), and the configuration into which its driver translates the View.
A comment line with the name comes before each part. 'outrigger translate' shows the same
for manifests. If the argument names several pods, one that is running is shown.

Exit codes: 0 the pod has a proxy in the mesh, 1 it has none or something failed, 2
wrong usage.`,
		Example: `  outrigger proxy get deploy/cart -n shop
  outrigger proxy get shop/cart-7d9f-x2x4z

  # which Envoy clusters does it have?
  outrigger proxy get shop/cart-7d9f-x2x4z -o json | jq -r '.configuration["clusters.yaml"]'`,
		Args:              oneTarget,
		ValidArgsFunction: f.completeTargets,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains([]string{"text", "json", "yaml"}, f.output) {
				return usage.Errorf("-o %q: formats are text, json and yaml", f.output)
			}
			if err := f.check(); err != nil {
				return err
			}
			target, err := f.target(args[0])
			if err != nil {
				return err
			}
			pod := target.namespace + "/" + target.name
			if target.kind != "pod" {
				pods, err := f.podsOf(cmd.Context(), target)
				if err != nil {
					return err
				}
				chosen, err := target.chosen(pods)
				if err != nil {
					return err
				}
				pod = chosen.Namespace + "/" + chosen.Name
				if len(pods) > 1 {
					terminal.Fprintf(cmd.ErrOrStderr(), "%s has %d pods; showing %s\n", target, len(pods), pod)
				}
			}
			page, err := f.get(cmd.Context(), pod)
			if err != nil {
				return err
			}
			if f.output != "text" {
				return printRaw(cmd.OutOrStdout(), f.output, page.raw)
			}
			return page.print(cmd.OutOrStdout(), pod)
		},
	}
	cmd.Flags().StringVarP(&f.output, "output", "o", "text", "format: text, json or yaml")
	f.add(cmd, "text", "json", "yaml")
	return cmd
}

// listedProxy is a proxy, and the controller that it is connected to.
type listedProxy struct {
	registry.Proxy
	Controller string `json:"controller"`
}

// list returns the proxies of all controllers that answer, sorted by name. The error names
// the controllers that do not answer.
func (f *proxyFlags) list(ctx context.Context) ([]listedProxy, error) {
	var all []listedProxy
	err := f.ask(ctx, debug.ProxyPath, func(controller string, answer []byte) error {
		var proxies []registry.Proxy
		if err := json.Unmarshal(answer, &proxies); err != nil {
			return fmt.Errorf("controller %s: %w", controller, err)
		}
		for _, p := range proxies {
			all = append(all, listedProxy{p, controller})
		}
		return nil
	})
	// While a proxy changes its controller, both may list it; the newest connection counts.
	slices.SortFunc(all, func(a, b listedProxy) int {
		return cmp.Or(a.Name.Compare(b.Name), cmp.Compare(a.UID, b.UID), b.Connected.Compare(a.Connected))
	})
	return slices.CompactFunc(all, func(a, b listedProxy) bool { return a.UID == b.UID }), err
}

// printProxies writes the table, and a line for each proxy that keeps crashing.
func printProxies(w io.Writer, proxies []listedProxy, wide bool, now time.Time) error {
	t := terminal.NewTable(w, 3)
	header := "NAMESPACE\tNAME\tCLASS\tSTATE\tCONNECTED"
	if wide {
		header += "\tVERSION\tSENT\tACKED\tRESOURCES\tBYTES\tADDRESS\tCONTROLLER"
	}
	t.Header(header)
	for i := range proxies {
		p := &proxies[i]
		row := []string{p.Name.Namespace, p.Name.Name, cmp.Or(p.Class, "-"), string(p.State), connectedFor(p, now)}
		if wide {
			row = append(row, cmp.Or(p.Version, "-"), configurationOf(p.Sent), configurationOf(p.Acked),
				fmt.Sprint(p.Resources), fmt.Sprint(p.Bytes), p.Address, p.Controller)
		}
		t.Row(row...)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i := range proxies {
		if p := &proxies[i]; p.Failure != nil {
			terminal.Fprintf(w, "%s: %s\n", p.Name, p.Failure.Text())
		}
	}
	return nil
}

// connectedFor returns how long a proxy has been connected.
func connectedFor(p *listedProxy, now time.Time) string {
	if p.Connected.IsZero() {
		return "-"
	}
	return duration.HumanDuration(now.Sub(p.Connected))
}

// configurationOf returns the beginning of a version, which distinguishes it from others.
func configurationOf(c registry.Configuration) string {
	const enough = 12
	if c.Version == "" {
		return "-"
	}
	return c.Version[:min(len(c.Version), enough)]
}

// proxyPage is a controller's answer about one proxy.
type proxyPage struct {
	controller string
	raw        []byte
	// A mesh.View can be encoded as JSON, but not decoded.
	answer struct {
		Proxy         *registry.Proxy   `json:"proxy"`
		View          json.RawMessage   `json:"view"`
		Configuration map[string]string `json:"configuration"`
		Note          string            `json:"note"`
	}
}

// get returns the answer of the controller to which the proxy is connected. If there is none,
// it returns that of any controller that knows the pod.
func (f *proxyFlags) get(ctx context.Context, pod string) (*proxyPage, error) {
	var found *proxyPage
	unknown := 0
	err := f.ask(ctx, debug.ProxyPath+"?pod="+url.QueryEscape(pod), func(controller string, answer []byte) error {
		if answer == nil {
			unknown++
			return nil
		}
		page := &proxyPage{controller: controller, raw: answer}
		if err := json.Unmarshal(answer, &page.answer); err != nil {
			return fmt.Errorf("controller %s: %w", controller, err)
		}
		if found == nil || page.answer.Proxy != nil {
			found = page
		}
		return nil
	})
	switch {
	case found != nil:
		return found, nil
	case err == nil || unknown > 0:
		return nil, errors.Join(fmt.Errorf("no pod %s has a proxy in the mesh; see 'outrigger proxy list'", pod), err)
	}
	return nil, err
}

// print writes the page for people.
func (p *proxyPage) print(w io.Writer, pod string) error {
	t := terminal.NewTable(w, 2)
	line := func(name, format string, args ...any) { t.Row("# "+name+":", fmt.Sprintf(format, args...)) }
	line("Pod", "%s", pod)
	if proxy := p.answer.Proxy; proxy == nil {
		line("State", "not connected")
	} else {
		line("Class", "%s %s", proxy.Class, proxy.Version)
		line("Identity", "%s, until %s", proxy.Identity, proxy.CertificateEnds.UTC().Format(time.RFC3339))
		line("Connected", "since %s from %s to %s", proxy.Connected.UTC().Format(time.RFC3339), proxy.Address, p.controller)
		line("State", "%s; sent %s, runs %s", proxy.State, configurationOf(proxy.Sent), configurationOf(proxy.Acked))
		if proxy.Failure != nil {
			line("Fails", "%s", proxy.Failure.Text())
		}
		for _, rejection := range proxy.Rejections {
			line("Rejects", "%s: %s", strings.Join(rejection.Resources, ", "), rejection.Message)
		}
	}
	if p.answer.Note != "" {
		line("Note", "%s", p.answer.Note)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	var files []driver.File
	if len(p.answer.View) > 0 && string(p.answer.View) != "null" {
		view, err := yaml.JSONToYAML(p.answer.View)
		if err != nil {
			return err
		}
		files = append(files, driver.File{Name: "view.yaml", Content: view})
	}
	for _, name := range slices.Sorted(maps.Keys(p.answer.Configuration)) {
		files = append(files, driver.File{Name: name, Content: []byte(p.answer.Configuration[name])})
	}
	return printConfiguration(terminal.Writer(w), "yaml", files)
}

// printRaw writes a text in JSON unchanged or as YAML.
func printRaw(w io.Writer, format string, text []byte) error {
	var err error
	if format == "yaml" {
		if text, err = yaml.JSONToYAML(text); err != nil {
			return err
		}
	}
	_, err = w.Write(text)
	return err
}
