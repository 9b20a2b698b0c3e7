package cli

import (
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/pflag"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// logFlags are the flags for the log of a long-running command.
type logFlags struct {
	name  string
	level slog.LevelVar
}

func (f *logFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.name, "log-level", "", "debug, info, warn or error; the default is the MeshConfig's osmLogLevel")
}

// logger returns the command's logger, which writes JSON.
func (f *logFlags) logger(w io.Writer) (*slog.Logger, error) {
	if f.name != "" {
		level, err := logLevel(f.name)
		if err != nil {
			return nil, usage.Error{Err: fmt.Errorf("--log-level: %w", err)}
		}
		f.level.Set(level)
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: &f.level})), nil
}

// follow adopts the level of a new MeshConfig, unless the flag sets one.
func (f *logFlags) follow(c *source.Config) {
	if f.name == "" {
		f.level.Set(c.LogLevel())
	}
}

// logLevel parses a level of the flag, or of Open Service Mesh's MeshConfig.
func logLevel(level string) (slog.Level, error) {
	switch strings.ToLower(level) {
	case "trace", "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn", "warning":
		return slog.LevelWarn, nil
	case "error", "critical", "fatal", "panic", "off", "disabled":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("%q is not a log level; levels are debug, info, warn and error", level)
}
