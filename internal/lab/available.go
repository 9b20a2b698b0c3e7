package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
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
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	attributes := netlink.NewLinkAttrs()
	attributes.Name = bridge
	if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attributes}); err != nil {
		return err
	}
	attributes.Name = "pod0"
	return h.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: podEnd})
}

// tryTables asks the kernel for the generation of its nftables rules, the simplest
// request.
func tryTables() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}); err != nil {
		return err
	}
	const size = unix.NLMSG_HDRLEN + 4
	message := binary.NativeEndian.AppendUint32(nil, size)
	message = binary.NativeEndian.AppendUint16(message, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN)
	message = binary.NativeEndian.AppendUint16(message, unix.NLM_F_REQUEST)
	message = append(message, make([]byte, size-len(message))...)
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n >= unix.NLMSG_HDRLEN+4 && binary.NativeEndian.Uint16(answer[4:]) == unix.NLMSG_ERROR {
		return unix.Errno(-int32(binary.NativeEndian.Uint32(answer[unix.NLMSG_HDRLEN:])))
	}
	return nil
}
