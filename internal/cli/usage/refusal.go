package usage

import "fmt"

// Refusal is the error of a command that refuses to do what was requested because it would do
// harm. The command line is valid and nothing has failed. It ends the program with exit code 3.
type Refusal struct {
	// Err contains the reason and what to do instead.
	Err error
}

// Error returns the text of Err.
func (r Refusal) Error() string { return r.Err.Error() }

// Unwrap returns Err.
func (r Refusal) Unwrap() error { return r.Err }

// Refusalf returns a Refusal whose text is that of [fmt.Errorf].
func Refusalf(format string, args ...any) error { return Refusal{fmt.Errorf(format, args...)} }
