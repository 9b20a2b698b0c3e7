package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// newTranslateCommand returns the command translate. Lookup returns the driver of a class.
func newTranslateCommand(lookup func(class string) (driver.Capabilities, error)) *cobra.Command {
	var (
		flags                           snapshotFlags
		proxy, class, output, directory string
		check                           bool
	)
	cmd := &cobra.Command{
		Use:   "translate (-f DIR | --from-cluster) --proxy NAMESPACE/POD",
		Short: "Print the configuration that a proxy would get",
		Long: `Print the configuration that a proxy would get.

The command reads the mesh from manifests or from a cluster. The driver of the pod's
sidecar class translates the part that the pod's proxy may see. The result is byte for
byte what the controller would send to the proxy.

With -o yaml, all files are one stream, with a comment line before each; with -o json,
they are fields of one object; with --output-dir, each is a file. With --check, the real
proxy, whose program must be on this machine, checks the configuration. What is wrong with
the manifests is printed to standard error.

Without --proxy, the command lists the proxies on standard error. The pods of a Deployment
are called NAME-0, NAME-1 and so on.

Exit codes: 0 success, 1 something failed or the proxy rejects the configuration, 2 wrong
usage.`,
		Example: `  # print the configuration of the bookbuyer's proxy, and check it with the real proxy
  outrigger translate -f manifests --proxy bookbuyer/bookbuyer-0 --check

  # show how a change of the manifests changes the configuration
  outrigger translate -f old --proxy shop/cart-0 --output-dir before
  outrigger translate -f new --proxy shop/cart-0 --output-dir after
  diff -r before after

  # the configuration if the pod had another proxy
  outrigger translate -f manifests --proxy shop/cart-0 --driver envoy -o json`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "json" && output != "yaml" {
				return usage.Errorf("-o %q: formats are yaml and json", output)
			}
			if output == "json" && directory != "" {
				return usage.Errorf("--output-dir writes the files as the proxy gets them; leave out -o json")
			}
			read, err := flags.read(cmd)
			if err != nil {
				return err
			}
			warn(cmd.ErrOrStderr(), allProblems(read.Snapshot, read.problems))
			view, err := chooseView(read.Snapshot, proxy)
			if err != nil {
				return err
			}
			view = ofClass(view, class)
			d, err := lookup(view.Proxy.Class)
			if err != nil {
				return err
			}
			if d.Translator == nil {
				return fmt.Errorf("driver %s cannot print a configuration; name another driver with --driver", view.Proxy.Class)
			}
			files, err := d.Translator.Translate(view)
			if err != nil {
				return fmt.Errorf("translating for %s: %w", view.Proxy.Name, err)
			}
			if directory != "" {
				err = writeConfiguration(directory, files)
			} else {
				err = printConfiguration(cmd.OutOrStdout(), output, files)
			}
			if err != nil || !check {
				return err
			}
			return checkConfiguration(cmd.Context(), cmd.ErrOrStderr(), d, view)
		},
	}
	flags.add(cmd.Flags())
	cmd.Flags().StringVar(&proxy, "proxy", "", "pod of the proxy, as NAMESPACE/POD")
	cmd.Flags().StringVar(&class, "driver", "", "driver that translates, instead of the one of the pod's sidecar class")
	cmd.Flags().StringVarP(&output, "output", "o", "yaml", "format: yaml or json")
	cmd.Flags().StringVar(&directory, "output-dir", "", "write the files to this folder, which is created if it does not exist, instead of printing them")
	cmd.Flags().BoolVar(&check, "check", false, "check the configuration with the real proxy")
	return cmd
}

// warn writes the first Problems, and the command that prints the others.
func warn(w io.Writer, problems []mesh.Problem) {
	const most = 20
	for _, problem := range problems[:min(len(problems), most)] {
		terminal.Fprintln(w, "warning:", problem)
	}
	if len(problems) > most {
		terminal.Fprintf(w, "warning: and %d more problems; see outrigger validate\n", len(problems)-most)
	}
}

// chooseView returns the View of a pod's proxy. If there is none, the error lists the proxies.
func chooseView(s *fact.Snapshot, pod string) (*mesh.View, error) {
	var proxies []string
	for _, view := range s.Views.All() {
		if view.Proxy.Name.String() == pod {
			return view, nil
		}
		proxies = append(proxies, fmt.Sprintf("%s (%s)", view.Proxy.Name, view.Proxy.Class))
	}
	slices.Sort(proxies)
	const most = 50
	if len(proxies) > most {
		proxies = append(proxies[:most], fmt.Sprintf("and %d more", len(proxies)-most))
	}
	list := "there are no proxies"
	if len(proxies) > 0 {
		list = "the proxies are:\n  " + strings.Join(proxies, "\n  ")
	}
	if pod == "" {
		return nil, usage.Errorf("name a proxy with --proxy; %s", list)
	}
	return nil, fmt.Errorf("no pod %s has a proxy; %s", pod, list)
}

// ofClass returns the View that the proxy would have with another class.
func ofClass(view *mesh.View, class string) *mesh.View {
	class = strings.ToLower(class)
	if class == "" || class == view.Proxy.Class {
		return view
	}
	proxy := *view.Proxy
	proxy.Class = class
	proxy.Plaintext = slices.Contains(view.Settings.PlaintextClasses, class)
	return mesh.NewView(mesh.Seal(&proxy), view.Settings, view.Inbound, view.Outbound, view.Egress)
}

func checkConfiguration(ctx context.Context, report io.Writer, d driver.Capabilities, view *mesh.View) error {
	if d.Checker == nil {
		return fmt.Errorf("driver %s cannot check a configuration with its proxy; leave out --check", view.Proxy.Class)
	}
	if err := d.Checker.Check(ctx, view); err != nil {
		if errors.Is(err, driver.ErrNoProxy) {
			return fmt.Errorf("not checked: %w", err)
		}
		return fmt.Errorf("the proxy rejects the configuration of %s: %w", view.Proxy.Name, err)
	}
	terminal.Fprintf(report, "the proxy accepts the configuration of %s\n", view.Proxy.Name)
	return nil
}

// printConfiguration writes the files as one YAML stream or one JSON object.
func printConfiguration(w io.Writer, format string, files []driver.File) error {
	if format == "yaml" {
		for _, file := range files {
			content := bytes.TrimPrefix(file.Content, []byte("---\n"))
			if _, err := terminal.Fprintf(w, "---\n# %s\n", file.Name); err != nil {
				return err
			}
			if _, err := w.Write(append(bytes.TrimRight(content, "\n"), '\n')); err != nil {
				return err
			}
		}
		return nil
	}
	object := make(map[string]any, len(files))
	for _, file := range files {
		object[file.Name] = string(file.Content)
		if !slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(file.Name)) {
			continue
		}
		var value any
		if err := yaml.Unmarshal(file.Content, &value); err == nil {
			object[file.Name] = value
		}
	}
	return usage.PrintAs(w, "json", object)
}

func writeConfiguration(directory string, files []driver.File) error {
	for _, file := range files {
		name := filepath.FromSlash(file.Name)
		if !filepath.IsLocal(name) {
			return fmt.Errorf("the driver names a file %q, which would be outside of %s", file.Name, directory)
		}
		name = filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, file.Content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
