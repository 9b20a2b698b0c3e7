package kit

import "log/slog"

// Logged are the kinds of failures that have been logged.
type Logged map[string]bool

// Level returns the level of the first failure of each kind, and for later ones that for
// debugging.
func (l Logged) Level(kind string, first slog.Level) slog.Level {
	if l[kind] {
		return slog.LevelDebug
	}
	l[kind] = true
	return first
}
