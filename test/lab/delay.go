package lab

import (
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Delay holds each packet that reaches the pod or leaves it for d, and for up to jitter more, at
// random. With a jitter packets overtake each other. With neither the delay ends. Packets that are
// held while the delay changes are lost. The pod's own loopback is not affected.
func (p *Pod) Delay(d, jitter time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.prepared {
		return fmt.Errorf("delaying the packets of %s: %w", p.name, ErrClosed)
	}
	links := &p.lab.links
	err := errors.Join(p.detour.end(), links.remove(detourOf(p.link)))
	p.detour = nil
	switch {
	case err != nil:
	case d > 0 || jitter > 0:
		p.detour, err = links.makeDetour(p.link, d, jitter)
	default:
		err = links.node.Do(func() error { return enslave(p.link, links.bridge) })
	}
	if err != nil {
		return fmt.Errorf("delaying the packets of %s: %w", p.name, err)
	}
	return nil
}

// detour is a way that frames take between a pod's link and the bridge through this process, since
// few kernels can delay packets (netem, queues of nftables).
type detour struct {
	files [2]*os.File
	done  chan struct{}
}

// Names of a detour's pair of links: the bridge has the first, and the second stands opposite the
// pod's.
func detourOf(link string) string   { return link + "-held" }
func oppositeOf(link string) string { return link + "-way" }

// makeDetour takes a pod's link off the bridge, and carries its frames to another one.
func (l *links) makeDetour(link string, delay, jitter time.Duration) (*detour, error) {
	d := &detour{done: make(chan struct{}, 2)}
	err := l.node.Do(func() error {
		attributes := netlink.NewLinkAttrs()
		attributes.Name = detourOf(link)
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: oppositeOf(link)}); err != nil {
			return fmt.Errorf("creating a link to the bridge: %w", err)
		}
		for i, name := range []string{link, oppositeOf(link)} {
			if err := silence(name); err != nil {
				return err
			}
			file, err := openLink(name)
			if err != nil {
				return err
			}
			d.files[i] = file
		}
		if err := errors.Join(enslave(link, 0), enslave(detourOf(link), l.bridge), up(detourOf(link)), up(oppositeOf(link))); err != nil {
			return err
		}
		return errors.Join(awaitUp(detourOf(link)), awaitUp(oppositeOf(link)))
	})
	for i, file := range d.files {
		if file == nil {
			d.done <- struct{}{}
			continue
		}
		go func() {
			carry(file, d.files[1-i], delay, jitter)
			d.done <- struct{}{}
		}()
	}
	if err != nil {
		return nil, errors.Join(err, d.end(), l.remove(detourOf(link)))
	}
	return d, nil
}

// end closes the detour's sockets, and waits until nothing is carried any more.
func (d *detour) end() error {
	if d == nil {
		return nil
	}
	var errs []error
	for _, file := range d.files {
		if file != nil {
			errs = append(errs, file.Close())
		}
	}
	<-d.done
	<-d.done
	return errors.Join(errs...)
}

// silence has the current thread's namespace answer nothing on a link.
func silence(link string) error {
	all := []map[string]string{{"ipv4/conf/" + link + "/arp_ignore": "8"}}
	if hasIPv6() {
		all = append(all, map[string]string{"ipv6/conf/" + link + "/disable_ipv6": "1"})
	}
	return set(all...)
}

// enslave makes a link of the current thread's namespace a port of a bridge, or of none.
func enslave(name string, bridge int) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetMasterByIndex(link, bridge)
	}
	if err != nil {
		return fmt.Errorf("the port %s of the bridge: %w", name, err)
	}
	return nil
}

func up(name string) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("the link %s: %w", name, err)
	}
	return nil
}

// openLink opens a socket that reads the frames that arrive on a link, and sends what is written.
// Each frame has a header for what the link's driver has still to do: checksums, segmentation.
func openLink(name string) (*os.File, error) {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("the link %s: %w", name, err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("a packet socket: %w", err)
	}
	for option, value := range map[int]int{unix.PACKET_VNET_HDR: 1, unix.PACKET_IGNORE_OUTGOING: 1} {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, option, value); err != nil {
			_ = unix.Close(fd)
			return nil, fmt.Errorf("a packet socket: %w", err)
		}
	}
	for option, force := range map[int]int{unix.SO_RCVBUF: unix.SO_RCVBUFFORCE, unix.SO_SNDBUF: unix.SO_SNDBUFFORCE} {
		// Only root may exceed the system's limit, which is not essential.
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, 8<<20) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 8<<20)
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: allProtocols, Ifindex: device.Index}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("binding a packet socket to %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// carry sends on one link what arrives on another, each frame after its delay, until the first is
// closed.
func carry(from, to *os.File, delay, jitter time.Duration) {
	var held frames
	buffer := make([]byte, 1<<17)
	for {
		for len(held) > 0 && !held[0].due.After(time.Now()) {
			// A frame that a link does not take is lost, as anywhere in a network.
			_, _ = to.Write(heap.Pop(&held).(heldFrame).data)
		}
		var next time.Time
		if len(held) > 0 {
			next = held[0].due
		}
		if from.SetReadDeadline(next) != nil {
			return
		}
		n, err := from.Read(buffer)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			// The next frame is due, or the link was down and the socket has said so.
			continue
		}
		due := time.Now().Add(delay)
		if jitter > 0 {
			due = due.Add(rand.N(jitter))
		}
		heap.Push(&held, heldFrame{due, slices.Clone(buffer[:n])})
	}
}

type heldFrame struct {
	due  time.Time
	data []byte
}

// frames is a heap, the frame that is due next first.
type frames []heldFrame

func (f frames) Len() int           { return len(f) }
func (f frames) Less(i, j int) bool { return f[i].due.Before(f[j].due) }
func (f frames) Swap(i, j int)      { f[i], f[j] = f[j], f[i] }
func (f *frames) Push(frame any)    { *f = append(*f, frame.(heldFrame)) }
func (f *frames) Pop() any {
	last := (*f)[len(*f)-1]
	*f = (*f)[:len(*f)-1]
	return last
}
