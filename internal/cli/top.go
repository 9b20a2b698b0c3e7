package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
)

func newTopCommand() *cobra.Command {
	var (
		f        statFlags
		interval time.Duration
	)
	cmd := &cobra.Command{
		Use:   "top [TYPE [NAME...] | TYPE/NAME...]",
		Short: "Show the busiest workloads, services, pods or namespaces, live",
		Long: `Show the busiest workloads, services, pods or namespaces, live.

The command shows the table of 'outrigger stat' sorted by requests and connections per
second, and replaces it after each --interval until Ctrl-C. Without TYPE it shows
all workloads. If the output is not a terminal, it writes one table after the other.

The rights are those of 'outrigger proxy list'.

Exit codes: 0 it was ended with Ctrl-C, 1 something failed, 2 wrong usage.`,
		Example: `  # the busiest workloads of the mesh
  outrigger top -A

  # the pods of a namespace, every two seconds
  outrigger top po -n shop --interval 2s

  # who calls a service most?
  outrigger top -A --to svc/cart --to-namespace shop`,
		ValidArgsFunction: f.completeTraffic,
		RunE: func(cmd *cobra.Command, args []string) error {
			if interval < time.Second || interval > debug.MaxPeriod {
				return usage.Errorf("--interval %s: give a time from 1s to %s", interval, debug.MaxPeriod)
			}
			if err := f.check(); err != nil {
				return err
			}
			if len(args) == 0 {
				args = []string{traffic.KindAny}
			}
			q, err := f.query(args)
			if err != nil {
				return err
			}
			return f.follow(cmd.Context(), screenOf(cmd.OutOrStdout()), cmd.ErrOrStderr(), q, interval)
		},
	}
	cmd.Flags().DurationVar(&interval, "interval", 5*time.Second, "how often the table is replaced, and how long requests are counted for it")
	f.add(cmd)
	return cmd
}

// follow shows a table after each interval until ctx ends. After the first one, it goes on
// when the controller does not answer.
func (f *statFlags) follow(ctx context.Context, out screen, warnings io.Writer, q *traffic.Query, interval time.Duration) error {
	terminal.Fprintf(warnings, "reading the proxies for %s\n", interval)
	period := interval
	if f.prometheus != "" {
		period = prometheusWindow
	}
	for shown := false; ; shown = true {
		begun := time.Now()
		var page bytes.Buffer
		err := f.table(ctx, &page, q, period)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !shown:
			return err
		case err != nil:
			_, _ = terminal.FprintError(&page, err)
		}
		if err := out.show(page.Bytes()); err != nil {
			return err
		}
		select {
		case <-time.After(time.Until(begun.Add(interval))):
		case <-ctx.Done():
			return nil
		}
	}
}

// table writes a table with its time, and warnings.
func (f *statFlags) table(ctx context.Context, w io.Writer, q *traffic.Query, period time.Duration) error {
	report, err := f.report(ctx, period, readFor(q)...)
	if err != nil {
		return err
	}
	terminal.Fprintf(w, "%s, requests of %s\n", time.Now().Format(time.TimeOnly), period)
	var warnings bytes.Buffer
	rows, err := statRows(&warnings, report, q)
	if err != nil {
		return err
	}
	if _, err := warnings.WriteTo(w); err != nil {
		return err
	}
	traffic.SortByRate(rows)
	return printRows(w, rows, q, false)
}

// screen shows one page after the other.
type screen struct {
	to io.Writer
	// terminal is the file of a terminal, of which each page fills the window; nil if the
	// output is none.
	terminal *os.File
}

func screenOf(w io.Writer) screen {
	if file, ok := w.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return screen{w, file}
	}
	return screen{to: w}
}

// show replaces the page in a terminal, or appends it.
func (s screen) show(page []byte) error {
	if s.terminal == nil {
		_, err := s.to.Write(append(page, '\n'))
		return err
	}
	width, height, err := term.GetSize(int(s.terminal.Fd()))
	if err != nil {
		return fmt.Errorf("the size of the terminal: %w", err)
	}
	_, err = s.to.Write(append([]byte("\x1b[H\x1b[2J"), fit(page, width, height)...))
	return err
}

// fit returns the part of a page that fits into a terminal. A longer line would take the place
// of two.
func fit(page []byte, width, height int) []byte {
	var fitting []byte
	for line := range bytes.Lines(page) {
		if height--; height <= 0 {
			break
		}
		text := []rune(string(bytes.TrimRight(line, "\n")))
		fitting = append(fitting, string(text[:min(len(text), width)])...)
		fitting = append(fitting, '\n')
	}
	return fitting
}
