package lab

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Available returns nil if this program can run labs, or an error that wraps
// ErrUnavailable and says what is missing. It tests the required features once.
func Available() error { return available() }

var available = sync.OnceValue(func() error {
	if err := tryAll(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil
})

func tryAll() error {
	if os.Geteuid() != 0 {
		if enterErr != nil {
			return fmt.Errorf("it needs root, or a user namespace with a range of user IDs: %w", enterErr)
		}
		return errors.New("it needs root, or the program must call Enter first")
	}
	if err := enoughUsers(); err != nil {
		return err
	}
	m, err := newMachine()
	if err != nil {
		return fmt.Errorf("mount namespaces: %w", err)
	}
	err = tryProcess(m)
	if err := errors.Join(err, m.close()); err != nil {
		return fmt.Errorf("PID namespaces with their own /proc: %w", err)
	}
	return onNewThread(func() error {
		if err := leave(unix.CLONE_NEWNET); err != nil {
			return err
		}
		if err := set(settings); err != nil {
			return err
		}
		if err := tryLinks(); err != nil {
			return fmt.Errorf("network namespaces with a bridge and veth pairs: %w", err)
		}
		if err := tryTables(); err != nil {
			return fmt.Errorf("nftables in the kernel: %w", err)
		}
		return nil
	})
}

// tryProcess starts a process that exits without executing a program.
func tryProcess(m *machine) error {
	return m.do(func() error {
		if err := leave(unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS); err != nil {
			return err
		}
		calls := new(calls)
		calls.mount("mounting /proc", "proc", newRoot, "proc", unix.MS_NODEV|unix.MS_NOSUID|unix.MS_NOEXEC)
		calls.add("ending", unix.SYS_EXIT_GROUP, 0)
		pid, err := calls.fork()
		if err != nil {
			return err
		}
		_, err = syscall.Wait4(pid, nil, 0, nil)
		return err
	})
}

// enoughUsers returns an error if the current user namespace has too few user IDs for
// containers.
func enoughUsers() error {
	text, err := os.ReadFile("/proc/self/uid_map")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		var first, outside, count uint64
		if _, err := fmt.Sscan(line, &first, &outside, &count); err == nil && first+count >= wantedIDs {
			return nil
		}
	}
	return fmt.Errorf("this user namespace has fewer than %d user IDs", wantedIDs)
}

func tryLinks() error {
	attributes := netlink.NewLinkAttrs()
	attributes.Name = bridge
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attributes}); err != nil {
		return err
	}
	attributes.Name = "pod0"
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: podEnd})
}

// tryTables asks the kernel for the generation of its nftables rules, the simplest
// request.
func tryTables() error {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	request.AddData(new(nl.Nfgenmsg))
	_, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	return err
}
