package command

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/cli"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/test/demo"
)

// demoFiles is the demo of a machine that cannot create pods, for the reason: it shows what
// the mesh does with the bookstore's manifests, by the commands that work on files.
func demoFiles(cmd *cobra.Command, opts demo.Options, reason error) error {
	ctx, out := cmd.Context(), opts.Out
	folder := filepath.Join(opts.Dir, "bookstore")
	if err := writeManifests(folder, opts.Class); err != nil {
		return err
	}
	terminal.Fprintf(out, `This machine cannot create the demo's pods, so traffic is left out: %v.
In a container, 'docker run --privileged' or 'podman run --privileged' turns it on.
What follows uses the real commands and the real proxies on the bookstore's manifests.
`, reason)
	d := fileDemo{out: out, folder: folder}
	d.heading("Which pods get a sidecar, and what is added to them")
	err := d.run(ctx, func(line string) bool { return line != "" && line[0] != ' ' || strings.Contains(line, "gets:") }, "check-inject", "-f", folder)
	if err != nil {
		return err
	}
	if err := d.injected(ctx); err != nil {
		return err
	}
	d.heading("Who may call whom, and which rule decides")
	for _, question := range [][]string{
		{"bookbuyer/bookbuyer", "bookstore/bookstore:80", "GET", "/books"},
		{"bookthief/bookthief", "bookstore/bookstore:80", "GET", "/books"},
		{"bookstore/bookstore-v2", "bookwarehouse/bookwarehouse:80", "POST", "/restock"},
		{"bookthief/bookthief", "bookwarehouse/bookwarehouse:80", "POST", "/restock"},
	} {
		if err := d.run(ctx, nil, append([]string{"explain", "-f", folder}, question...)...); err != nil {
			return err
		}
	}
	d.heading("The configuration of each proxy, which the real one checks")
	if err := d.translated(cmd); err != nil {
		return err
	}
	_, err = terminal.Fprintf(out, "\nThe demo is complete, without traffic.\n")
	return err
}

// writeManifests writes the bookstore's manifests with sidecars of a class to a folder.
func writeManifests(folder, class string) error {
	manifests, err := demo.Manifests(class)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	for name, text := range manifests {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// fileDemo runs commands on a folder of manifests, and shows what they print.
type fileDemo struct {
	out    io.Writer
	folder string
}

func (d fileDemo) heading(text string) { terminal.Fprintf(d.out, "\n== %s\n", text) }

// run shows a command and the lines of its output that the function selects; nil selects all.
func (d fileDemo) run(ctx context.Context, selects func(line string) bool, args ...string) error {
	d.say(args...)
	text, _, err := d.output(ctx, args...)
	for line := range strings.Lines(text) {
		if selects == nil || selects(strings.TrimSuffix(line, "\n")) {
			_, _ = io.WriteString(d.out, line)
		}
	}
	return err
}

// say shows a command as a user would enter it.
func (d fileDemo) say(args ...string) {
	terminal.Fprintf(d.out, "\n$ outrigger %s\n", strings.ReplaceAll(strings.Join(args, " "), d.folder, "samples/bookstore-smi"))
}

// output runs a command and returns its output. That something is denied is no error.
func (d fileDemo) output(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	var out, problems bytes.Buffer
	root := cli.NewRootCommand()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&problems)
	if err = root.ExecuteContext(ctx); cli.IsRefusal(err) {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("outrigger %s: %w\n%s", strings.Join(args, " "), err, problems.String())
	}
	return out.String(), problems.String(), err
}

// injected says how injection changes the manifests.
func (d fileDemo) injected(ctx context.Context) error {
	args := []string{"inject", "-f", d.folder}
	d.say(args...)
	after, _, err := d.output(ctx, args...)
	if err != nil {
		return err
	}
	images := map[string]bool{}
	for line := range strings.Lines(after) {
		if _, image, ok := strings.Cut(line, "image: "); ok {
			images[strings.TrimSpace(image)] = true
		}
	}
	terminal.Fprintf(d.out, "(%d lines of manifests, whose containers have the images %s)\n", strings.Count(after, "\n"), strings.Join(slices.Sorted(maps.Keys(images)), ", "))
	return nil
}

// translated translates for each proxy, and has the real one check the result.
func (d fileDemo) translated(cmd *cobra.Command) error {
	proxies, err := cli.Proxies(cmd, d.folder)
	if err != nil {
		return err
	}
	for _, proxy := range proxies {
		// The replicas of a workload have the same one.
		if !strings.HasSuffix(proxy.Name.Name, "-0") {
			continue
		}
		args := []string{"translate", "-f", d.folder, "--proxy", proxy.Name.String()}
		driver, err := sidecar.Capabilities(proxy.Class)
		if err != nil {
			return err
		}
		if driver.Checker != nil {
			args = append(args, "--check")
		}
		d.say(args...)
		text, checked, err := d.output(cmd.Context(), args...)
		if err != nil {
			return err
		}
		terminal.Fprintf(d.out, "(%d lines for %s)\n", strings.Count(text, "\n"), proxy.Class)
		_, _ = io.WriteString(d.out, checked)
	}
	return nil
}
