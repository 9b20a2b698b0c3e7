// Package usage has what the commands of the program outrigger share: the error of a
// command line that cannot be carried out, which ends the program with exit code 2.
package usage

import (
	"fmt"

	"github.com/spf13/cobra"
)

// Error is a command line that cannot be carried out.
type Error struct {
	// Err says what is wrong with it.
	Err error
}

// Error returns what is wrong with the command line.
func (e Error) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e Error) Unwrap() error { return e.Err }

// Errorf returns an Error whose text is that of [fmt.Errorf].
func Errorf(format string, args ...any) error { return Error{fmt.Errorf(format, args...)} }

// NoArgs is a [cobra.PositionalArgs] that returns an Error where there is an argument.
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
