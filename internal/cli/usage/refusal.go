package usage

import "fmt"

// Refusal is the answer no: nothing is wrong with the command line and nothing has failed,
// but what was asked for would do harm. It ends the program with exit code 3.
type Refusal struct {
	// Err says why, and the way out.
	Err error
}

// Error returns why not.
func (r Refusal) Error() string { return r.Err.Error() }

// Unwrap returns Err.
func (r Refusal) Unwrap() error { return r.Err }

// Refusalf returns a Refusal whose text is that of [fmt.Errorf].
func Refusalf(format string, args ...any) error { return Refusal{fmt.Errorf(format, args...)} }
