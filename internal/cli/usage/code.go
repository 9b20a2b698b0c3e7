package usage

import "fmt"

// Code is the error of a command that ends the program with this exit code, and has nothing to
// say: another program has said it.
type Code int

// Error returns a text with the code.
func (c Code) Error() string { return fmt.Sprintf("exit code %d", int(c)) }
