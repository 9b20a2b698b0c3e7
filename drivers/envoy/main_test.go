package envoy

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
)

// ownNetwork is set in the environment of a test program in its own network namespace.
const ownNetwork = "OUTRIGGER_TEST_OWN_NETWORK"

// TestMain runs the test program in its own network namespace with only loopback, if it
// may. Otherwise iptables rules of the machine, such as those of a kubelet or of
// Docker, can enable connection tracking, from which Envoy reads the original
// destination instead of from the PROXY header of a test.
func TestMain(m *testing.M) {
	if os.Getuid() == 0 && os.Getenv(ownNetwork) == "" {
		// The executed program inherits the network namespace of the thread.
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

// startAgain re-executes the program in the network namespace of the current thread.
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
