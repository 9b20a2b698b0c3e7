package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// proxyFlags say which controllers are asked.
type proxyFlags struct {
	kube    kubeFlags
	mesh    meshFlags
	address string
	timeout time.Duration
	output  string
}

func (f *proxyFlags) add(flags *pflag.FlagSet) {
	f.kube.add(flags)
	flags.StringVar(&f.mesh.namespace, "mesh-namespace", env("POD_NAMESPACE", "osm-system"), "namespace of the control plane")
	flags.StringVar(&f.address, "debug-address", "", "HOST:PORT of a controller's debug pages, for one that is not in a cluster; else the controller's pods are asked")
	flags.DurationVar(&f.timeout, "timeout", 30*time.Second, "how long asking may take")
}

// newProxyCommand returns the command proxy.
func newProxyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "Look at the proxies that are connected to the controllers",
		Long: `Look at the proxies that are connected to the controllers.

Reads the controllers' debug pages, which are there while
spec.observability.enableDebugServer of the MeshConfig is on: through the API server,
as 'kubectl port-forward' does, or directly with --debug-address.`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newProxyListCommand(), newProxyGetCommand())
	return cmd
}

func newProxyListCommand() *cobra.Command {
	var (
		f         proxyFlags
		namespace string
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the proxies that are connected to the controllers",
		Long: `List the proxies that are connected to the controllers.

The state of a proxy is Failing if it does not stay up, which -o yaml says more about,
Current if it runs the last configuration that it was sent,
Waiting if it has not said so yet, Rejected if it refuses a part of it, and Empty if
it was sent none yet.

Exit codes: 0 all controllers have answered, 1 something failed, 2 wrong usage.`,
		Example: `  # all proxies of the mesh
  outrigger proxy list

  # what do those of a namespace refuse?
  outrigger proxy list -n shop -o yaml

  # of a controller without a cluster
  outrigger proxy list --debug-address 127.0.0.1:9092 -o wide`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"", "wide", "json", "yaml"}, f.output) {
				return usage.Errorf("-o %q: formats are wide, json and yaml", f.output)
			}
			if err := f.check(); err != nil {
				return err
			}
			proxies, failed := f.list(cmd.Context())
			if namespace != "" {
				proxies = slices.DeleteFunc(proxies, func(p listedProxy) bool { return p.Name.Namespace != namespace })
			}
			var err error
			switch {
			case f.output == "json" || f.output == "yaml":
				// An empty list, not null.
				err = printAs(cmd.OutOrStdout(), f.output, append([]listedProxy{}, proxies...))
			case len(proxies) == 0 && failed == nil:
				fmt.Fprintln(cmd.ErrOrStderr(), "no proxy is connected")
			case len(proxies) > 0:
				err = printProxies(cmd.OutOrStdout(), proxies, f.output == "wide", time.Now())
			}
			return errors.Join(err, failed)
		},
	}
	f.add(cmd.Flags())
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "namespace of the pods; empty for all")
	cmd.Flags().StringVarP(&f.output, "output", "o", "", "format: wide, json or yaml; the default is a table")
	return cmd
}

func newProxyGetCommand() *cobra.Command {
	var f proxyFlags
	cmd := &cobra.Command{
		Use:   "get NAMESPACE/POD",
		Short: "Show what a proxy may see of the mesh, and its configuration",
		Long: `Show what a proxy may see of the mesh, and its configuration.

Prints whether the proxy is connected and what it refuses, its View of the mesh, and
what its driver makes of that, each part after a comment line with its name. 'outrigger
translate' shows the same for manifests.

Exit codes: 0 the pod has a proxy in the mesh, 1 it has none or something failed, 2
wrong usage.`,
		Example: `  outrigger proxy get shop/cart-7d9f-x2x4z

  # which clusters does it have?
  outrigger proxy get shop/cart-7d9f-x2x4z -o json | jq -r '.configuration["clusters.yaml"]'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || strings.Count(args[0], "/") != 1 {
				return usage.Errorf("%s: name one pod as NAMESPACE/POD", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains([]string{"text", "json", "yaml"}, f.output) {
				return usage.Errorf("-o %q: formats are text, json and yaml", f.output)
			}
			if err := f.check(); err != nil {
				return err
			}
			page, err := f.get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if f.output != "text" {
				return printRaw(cmd.OutOrStdout(), f.output, page.raw)
			}
			return page.print(cmd.OutOrStdout(), args[0])
		},
	}
	f.add(cmd.Flags())
	cmd.Flags().StringVarP(&f.output, "output", "o", "text", "format: text, json or yaml")
	return cmd
}

// listedProxy is a proxy, and the controller that it is connected to.
type listedProxy struct {
	registry.Proxy
	Controller string `json:"controller"`
}

// list returns the proxies of all controllers that answer, sorted by name, and an error
// about those that do not.
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
	// One that has just gone from one controller to another is listed once.
	slices.SortFunc(all, func(a, b listedProxy) int {
		return cmp.Or(a.Name.Compare(b.Name), cmp.Compare(a.UID, b.UID), b.Connected.Compare(a.Connected))
	})
	return slices.CompactFunc(all, func(a, b listedProxy) bool { return a.UID == b.UID }), err
}

// printProxies writes a table.
func printProxies(w io.Writer, proxies []listedProxy, wide bool, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	header := "NAMESPACE\tNAME\tCLASS\tSTATE\tCONNECTED"
	if wide {
		header += "\tVERSION\tSENT\tACKED\tRESOURCES\tBYTES\tADDRESS\tCONTROLLER"
	}
	fmt.Fprintln(t, header)
	for i := range proxies {
		p := &proxies[i]
		row := []string{p.Name.Namespace, p.Name.Name, cmp.Or(p.Class, "-"), p.State, connectedFor(p, now)}
		if wide {
			row = append(row, cmp.Or(p.Version, "-"), configurationOf(p.Sent), configurationOf(p.Acked),
				fmt.Sprint(p.Resources), fmt.Sprint(p.Bytes), p.Address, p.Controller)
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i := range proxies {
		if p := &proxies[i]; p.Failure != nil {
			fmt.Fprintf(w, "%s: %s\n", p.Name, p.Failure.Text())
		}
	}
	return nil
}

// connectedFor is how long a proxy has been connected.
func connectedFor(p *listedProxy, now time.Time) string {
	if p.Connected.IsZero() {
		return "-"
	}
	return duration.HumanDuration(now.Sub(p.Connected))
}

// configurationOf is a version's beginning, which is enough to tell it from another.
func configurationOf(c registry.Configuration) string {
	const enough = 12
	if c.Version == "" {
		return "-"
	}
	return c.Version[:min(len(c.Version), enough)]
}

// proxyPage is what one controller says of a proxy.
type proxyPage struct {
	controller string
	raw        []byte
	// The View is a type that is written and not read.
	said struct {
		Proxy         *registry.Proxy   `json:"proxy"`
		View          json.RawMessage   `json:"view"`
		Configuration map[string]string `json:"configuration"`
		Note          string            `json:"note"`
	}
}

// get returns what the controller says that the proxy is connected to, or any other that
// knows of it.
func (f *proxyFlags) get(ctx context.Context, pod string) (*proxyPage, error) {
	var found *proxyPage
	unknown := 0
	err := f.ask(ctx, debug.ProxyPath+"?pod="+url.QueryEscape(pod), func(controller string, answer []byte) error {
		if answer == nil {
			unknown++
			return nil
		}
		page := &proxyPage{controller: controller, raw: answer}
		if err := json.Unmarshal(answer, &page.said); err != nil {
			return fmt.Errorf("controller %s: %w", controller, err)
		}
		if found == nil || page.said.Proxy != nil {
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

// print writes it for people.
func (p *proxyPage) print(w io.Writer, pod string) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	line := func(name, format string, args ...any) { fmt.Fprintf(t, "# "+name+":\t"+format+"\n", args...) }
	line("Pod", "%s", pod)
	if proxy := p.said.Proxy; proxy == nil {
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
			line("Refuses", "%s: %s", strings.Join(rejection.Resources, ", "), rejection.Message)
		}
	}
	if p.said.Note != "" {
		line("Note", "%s", p.said.Note)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	var files []driver.File
	if len(p.said.View) > 0 && string(p.said.View) != "null" {
		view, err := yaml.JSONToYAML(p.said.View)
		if err != nil {
			return err
		}
		files = append(files, driver.File{Name: "view.yaml", Content: view})
	}
	names := make([]string, 0, len(p.said.Configuration))
	for name := range p.said.Configuration {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		files = append(files, driver.File{Name: name, Content: []byte(p.said.Configuration[name])})
	}
	return printConfiguration(w, "yaml", files)
}

// printRaw writes JSON as JSON or YAML.
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
