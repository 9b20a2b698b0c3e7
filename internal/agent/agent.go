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
	"log/slog"
	"os"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
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
	timings        kit.Timings
}

// command is one of the program's commands.
type command struct {
	name, usage, summary string
	// long is the help text, with examples.
	long    string
	maxArgs int // maximum number of arguments besides flags
	// prepare adds the command's flags and returns the function that executes it.
	prepare func(p *program, flags *flag.FlagSet) func(args []string) error
}

func commands() []command {
	return []command{initCommand, runCommand, waitCommand, copyCommand, successorCommand}
}

// Rules write and check the rules that redirect the pod's traffic, for 'init'.
type Rules struct {
	// Apply writes the rules.
	Apply func(agentspec.Redirection) error
	// Present reports whether the rules exist, whoever wrote them.
	Present func() (bool, error)
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

// logLevel is a flag's value. It accepts the MeshConfig's names of levels.
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

// stringList is the value of a flag that may be repeated.
type stringList []string

func (l *stringList) String() string { return strings.Join(*l, ",") }

func (l *stringList) Set(value string) error {
	if value == "" {
		return errors.New("it is empty")
	}
	*l = append(*l, value)
	return nil
}
