package command

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/outrigger-mesh/outrigger/internal/cli"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// programFlags name the programs of a mesh.
type programFlags struct {
	agent   string
	proxies []string
}

func (f *programFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.agent, "agent", "", "the program outrigger-agent (default beside this program or in PATH)")
	flags.StringArrayVar(&f.proxies, "proxy", nil, "the program of a sidecar class, as CLASS=PATH; may be given several times (default where the class's driver finds it)")
}

// find finds the programs that no flag names. This program is the controller's too.
func (f *programFlags) find() (localmesh.Programs, error) {
	var p localmesh.Programs
	self, err := os.Executable()
	if err != nil {
		return p, fmt.Errorf("finding this program: %w", err)
	}
	p.Outrigger = self
	var missing error
	p.Agent, missing = findProgram(f.agent, "outrigger-agent", "agent")
	errs := []error{missing}
	p.Proxies, p.Missing = localmesh.FindProxies()
	for _, text := range f.proxies {
		class, program, found := strings.Cut(text, "=")
		if !found {
			return p, usage.Errorf("--proxy %q: give CLASS=PATH, for example pipy=/opt/pipy/bin/pipy", text)
		}
		if _, err := sidecar.Lookup(class); err != nil {
			errs = append(errs, fmt.Errorf("--proxy %s: %w", text, err))
			continue
		}
		errs = append(errs, named(&program, "proxy "+class))
		p.Proxies[class] = program
	}
	return p, errors.Join(errs...)
}

// findProgram returns the absolute path of the program that a flag names, or else of the one
// with the name beside this program or in PATH.
func findProgram(given, name, flag string) (string, error) {
	if given != "" {
		err := named(&given, flag)
		return given, err
	}
	program, err := cli.FindProgram(name)
	if err != nil {
		return "", fmt.Errorf("%w, or name it with --%s", err, flag)
	}
	return program, nil
}

// named replaces the program that a flag names by its absolute path.
func named(program *string, flag string) error {
	found, err := exec.LookPath(*program)
	if err == nil {
		*program, err = filepath.Abs(found)
	}
	if err != nil {
		return fmt.Errorf("--%s: %w", flag, err)
	}
	return nil
}
