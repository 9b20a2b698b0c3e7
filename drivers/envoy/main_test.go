package envoy

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
)

// ownNetwork is set in the environment of a test program that has a network of its own.
const ownNetwork = "OUTRIGGER_TEST_OWN_NETWORK"

// TestMain gives the test program a network of its own, with loopback only, where it may.
// Rules of the machine's, such as those of a kubelet or of Docker, make the kernel follow
// connections, and then it tells Envoy of each where it really goes: Envoy believes that
// instead of the PROXY header by which a test says where a connection was meant to go.
func TestMain(m *testing.M) {
	if os.Getuid() == 0 && os.Getenv(ownNetwork) == "" {
		// What is executed takes over the network of the thread that executes it.
		runtime.LockOSThread()
		if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
			fmt.Fprintln(os.Stderr, "the tests stay in the machine's network:", err)
		} else if err := startAgain(); err != nil {
			fmt.Fprintln(os.Stderr, "starting the tests in a network of their own:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// startAgain replaces the program by itself, in the network of the thread that runs.
func startAgain() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), ownNetwork+"=1"))
}
