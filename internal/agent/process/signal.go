package process

import (
	"strings"

	"golang.org/x/sys/unix"
)

// SignalNumber returns the signal of a name such as HUP or SIGHUP, or 0.
func SignalNumber(name string) unix.Signal {
	return unix.SignalNum("SIG" + strings.TrimPrefix(name, "SIG"))
}
