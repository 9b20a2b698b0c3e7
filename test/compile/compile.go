// Package compile compiles the programs that a test runs.
package compile

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Options say what Build compiles.
type Options struct {
	// Folder is where the go command runs; "" is the current one.
	Folder string
	// Packages are the main packages, as for 'go build'.
	Packages []string
	// Output is the file of the program, or a folder if it ends in a slash.
	Output string
	// Env are more variables for the go command, such as "CGO_ENABLED=0".
	Env []string
	// Flags are more flags of 'go build'. Without -ldflags among them the programs are stripped.
	Flags []string
}

// Build compiles main packages. It looks at each source file of the same module in the test's
// own process, since that is how the go command knows that the result of a test depends on
// it: without that, 'go test' would repeat a cached result although the program has changed.
func Build(ctx context.Context, o Options) error {
	// Tables of symbols take as long to write as all the rest of a program.
	args := append([]string{"build", "-o", o.Output, "-ldflags=-s -w"}, o.Flags...)
	if _, err := o.command(ctx, append(args, o.Packages...)); err != nil {
		return fmt.Errorf("compiling %s: %w", strings.Join(o.Packages, " "), err)
	}
	list := append([]string{"list", "-deps"}, tagsOf(o.Flags)...)
	sources, err := o.command(ctx, append(append(list, "-f", sourceFormat), o.Packages...))
	if err != nil {
		return fmt.Errorf("listing the sources of %s: %w", strings.Join(o.Packages, " "), err)
	}
	for source := range strings.Lines(sources) {
		if source = strings.TrimSpace(source); source != "" {
			if _, err := os.Stat(source); err != nil {
				return err
			}
		}
	}
	return nil
}

// sourceFormat prints the files of packages that are not in the module cache.
const sourceFormat = `{{if and .Module (not .Module.Version)}}{{$dir := .Dir}}{{.Module.GoMod}}
{{range .GoFiles}}{{$dir}}/{{.}}
{{end}}{{range .EmbedFiles}}{{$dir}}/{{.}}
{{end}}{{end}}`

// tagsOf returns the build tags of the flags, which decide which files are compiled.
func tagsOf(flags []string) []string {
	for i, flag := range flags {
		if flag == "-tags" && i+1 < len(flags) {
			return flags[i : i+2]
		}
	}
	return nil
}

// command runs the go command and returns its standard output. The error contains its standard
// error.
func (o Options) command(ctx context.Context, args []string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	var stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stderr = o.Folder, append(os.Environ(), o.Env...), &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}
