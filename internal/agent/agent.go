// Package agent is the program in every pod of the mesh. As the command of the sidecar
// container it obtains the pod's identity, runs the proxy, answers the app's probes and
// drains. The driver's Patch emits what to do for a proxy as data (package agentspec), so
// the agent knows no driver. To stay small it must not import a Kubernetes client.
//
// The pod's private key is generated here and written to the identity folder only.
package agent

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
)

// The program's exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	// exitMisused reports an invalid command line or environment; retrying does not help.
	exitMisused = 2
	// exitRefused reports that a condition the command checks or waits for does not hold.
	exitRefused = 3
)

func commands() []command {
	return []command{initCommand, runCommand, waitCommand, copyCommand, successorCommand}
}

// Main executes the command line, given without the program's name, and returns the exit
// code.
func Main(args []string, rules Rules) int {
	p := &program{stdout: os.Stdout, stderr: os.Stderr, env: os.LookupEnv, rules: rules, timings: kit.DefaultTimings}
	return p.main(args)
}

func (p *program) main(args []string) int {
	name := ""
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	switch name {
	case "help", "-h", "-help", "--help":
		fmt.Fprint(p.stdout, overview())
		return exitOK
	}
	for _, c := range commands() {
		if c.name == name {
			return p.execute(c, args)
		}
	}
	if name == "" {
		fmt.Fprintf(p.stderr, "error: no command given\n\n%s", overview())
	} else {
		fmt.Fprintf(p.stderr, "error: unknown command %q\n\n%s", name, overview())
	}
	return exitMisused
}

func (p *program) execute(c command, args []string) int {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	run := c.prepare(p, flags)
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(p.stdout, c.help(flags))
		return exitOK
	case err != nil:
		err = misuse{err}
	case flags.NArg() > c.maxArgs:
		err = misuse{fmt.Errorf("unknown argument %q", flags.Arg(c.maxArgs))}
	default:
		err = run(flags.Args())
	}
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(p.stderr, "error: outrigger-agent %s: %v\n", c.name, err)
	switch {
	case errors.As(err, &misuse{}):
		fmt.Fprintf(p.stderr, "See 'outrigger-agent %s --help'.\n", c.name)
		return exitMisused
	case errors.As(err, &refusal{}):
		return exitRefused
	}
	return exitFailed
}

func overview() string {
	var b strings.Builder
	b.WriteString(`outrigger-agent runs in every pod of the mesh. The injector adds it and configures it
through the environment.

Usage:
  outrigger-agent COMMAND [FLAGS]

Commands:
`)
	for _, c := range commands() {
		fmt.Fprintf(&b, "  %-6s %s\n", c.name, c.summary)
	}
	b.WriteString(`
Exit codes: 0 done, 1 failed, 2 invalid command line or environment, 3 not ready in time
('wait') or traffic not redirected ('init --verify').

See 'outrigger-agent COMMAND --help'.
`)
	return b.String()
}
