// Package agent is the program in every pod of the mesh: as the command of the
// sidecar container it gets the pod's identity, runs the proxy, answers the app's
// probes and drains. What it does for a proxy is data that the driver's Patch has
// emitted (package agentspec), so it knows no driver; and it is small, so it imports
// no client of Kubernetes.
//
// The private key of the pod is born here. It is written to the identity folder, and
// to nothing else.
package agent

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// The program's exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	// exitMisused is for a command line, or an environment, that cannot be carried
	// out; trying again does not help.
	exitMisused = 2
	// exitRefused is the answer no to a question.
	exitRefused = 3
)

// misuse is an error that ends the program with exitMisused.
type misuse struct{ error }

func (m misuse) Unwrap() error { return m.error }

// refusal is an error that ends the program with exitRefused.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// program is one run of the command line.
type program struct {
	stdout, stderr io.Writer
	env            func(string) (string, bool)
	rules          Rules
	pace           pace
}

// command is one of the program's commands.
type command struct {
	name, usage, summary string
	// long is the help text, with examples.
	long    string
	maxArgs int // how many arguments there may be beside flags
	// prepare adds the command's flags and returns what carries it out.
	prepare func(p *program, flags *flag.FlagSet) func(args []string) error
}

func commands() []command { return []command{initCommand, runCommand, waitCommand, copyCommand} }

// Rules are what 'init' does about the pod's traffic.
type Rules struct {
	// Apply writes the redirection's rules.
	Apply func(agentspec.Redirection) error
	// There reports whether somebody has written them.
	There func() (bool, error)
}

// Main carries out the command line, without the program's name, and returns the exit
// code.
func Main(args []string, rules Rules) int {
	p := &program{stdout: os.Stdout, stderr: os.Stderr, env: os.LookupEnv, rules: rules, pace: usualPace}
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
			return p.carryOut(c, args)
		}
	}
	if name == "" {
		fmt.Fprintf(p.stderr, "error: no command is given\n\n%s", overview())
	} else {
		fmt.Fprintf(p.stderr, "error: unknown command %q\n\n%s", name, overview())
	}
	return exitMisused
}

func (p *program) carryOut(c command, args []string) int {
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
	b.WriteString(`outrigger-agent is what Outrigger runs in a pod of the mesh. The injector puts it
there with all that it needs in the environment.

Usage:
  outrigger-agent COMMAND [FLAGS]

Commands:
`)
	for _, c := range commands() {
		fmt.Fprintf(&b, "  %-6s %s\n", c.name, c.summary)
	}
	b.WriteString(`
Exit codes: 0 done, 1 failed, 2 a command line or an environment that cannot be
carried out, 3 not ready in time ('wait'), or traffic that is not redirected
('init --verify').

See 'outrigger-agent COMMAND --help'.
`)
	return b.String()
}

func (c command) help(flags *flag.FlagSet) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nUsage:\n  outrigger-agent %s\n", strings.TrimSpace(c.long), c.usage)
	first := true
	flags.VisitAll(func(f *flag.Flag) {
		if first {
			b.WriteString("\nFlags:\n")
			first = false
		}
		value, usage := flag.UnquoteUsage(f)
		fmt.Fprintf(&b, "  --%s\n        %s", strings.TrimSpace(f.Name+" "+value), usage)
		if f.DefValue != "" {
			fmt.Fprintf(&b, " (default %s)", f.DefValue)
		}
		b.WriteString("\n")
	})
	return b.String()
}

// logLevel is a flag's value. The words are those of the MeshConfig.
type logLevel slog.Level

func (l *logLevel) String() string { return strings.ToLower(slog.Level(*l).String()) }

func (l *logLevel) Set(name string) error {
	level, ok := map[string]slog.Level{
		"trace": slog.LevelDebug, "debug": slog.LevelDebug, "info": slog.LevelInfo,
		"warn": slog.LevelWarn, "warning": slog.LevelWarn, "error": slog.LevelError,
	}[strings.ToLower(name)]
	if !ok {
		return errors.New("levels are debug, info, warn and error")
	}
	*l = logLevel(level)
	return nil
}

// words is the value of a flag that may be given several times.
type words []string

func (w *words) String() string { return strings.Join(*w, ",") }

func (w *words) Set(value string) error {
	if value == "" {
		return errors.New("it is empty")
	}
	*w = append(*w, value)
	return nil
}
