package agent

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
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

// Rules write and check the rules that redirect the pod's traffic, for 'init'.
type Rules struct {
	// Apply writes the rules.
	Apply func(agentspec.Redirection) error
	// Present reports whether the rules exist, whoever wrote them.
	Present func() (bool, error)
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
