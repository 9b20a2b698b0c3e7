package command

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"

	"github.com/spf13/pflag"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
)

// logFlags are the flags for the log of a mesh.
type logFlags struct{ level string }

func (f *logFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.level, "log-level", "warn", "debug, info, warn or error: what is reported of pods, besides their output")
}

// logger returns a logger for people.
func (f *logFlags) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.level)); err != nil {
		return nil, usage.Errorf("--log-level %q: levels are debug, info, warn and error", f.level)
	}
	return slog.New(&handler{w: w, level: level, mu: new(sync.Mutex)}), nil
}

// handler writes each record on one line: "warning: text: key value, key value".
type handler struct {
	w     io.Writer
	level slog.Level
	attrs []slog.Attr
	mu    *sync.Mutex
}

// Enabled implements [slog.Handler].
func (h *handler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level }

// Handle implements [slog.Handler].
func (h *handler) Handle(_ context.Context, r slog.Record) error {
	var parts []string
	add := func(a slog.Attr) bool {
		parts = append(parts, fmt.Sprintf("%s %s", a.Key, a.Value))
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	word := strings.ToLower(r.Level.String())
	if r.Level == slog.LevelWarn {
		word = "warning"
	}
	text := word + ": " + r.Message
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := terminal.Fprintln(h.w, text)
	return err
}

// WithAttrs implements [slog.Handler].
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	more := *h
	more.attrs = append(append([]slog.Attr(nil), h.attrs...), attrs...)
	return &more
}

// WithGroup implements [slog.Handler]. Groups have no meaning here.
func (h *handler) WithGroup(string) slog.Handler { return h }
