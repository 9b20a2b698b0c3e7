// Package usage has what the commands of the program outrigger share: Error for an invalid
// command line, which ends the program with exit code 2, Refusal, and the formats of -o.
package usage

import (
	"fmt"

	"github.com/spf13/cobra"
)

// Error is the error of an invalid command line.
type Error struct {
	// Err contains the reason.
	Err error
}

// Error returns the text of Err.
func (e Error) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e Error) Unwrap() error { return e.Err }

// Errorf returns an Error whose text is that of [fmt.Errorf].
func Errorf(format string, args ...any) error { return Error{fmt.Errorf(format, args...)} }

// NoArgs is a [cobra.PositionalArgs] that returns an Error if there are arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		if cmd.SuggestionsMinimumDistance <= 0 {
			cmd.SuggestionsMinimumDistance = 2
		}
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			return Errorf("%s: unknown command %q; did you mean %q?", cmd.CommandPath(), args[0], near[0])
		}
		return Errorf("%s: unknown command or argument %q", cmd.CommandPath(), args[0])
	}
	return nil
}
