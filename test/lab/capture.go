package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// captureLimit is how many bytes of frames a Capture keeps.
const captureLimit = 64 << 20

// allProtocols is what a packet socket is bound to that reads every frame.
var allProtocols = binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))

// Frame is an Ethernet frame captured on a link.
type Frame struct {
	// Sent is true for frames that the network's owner sent, false for those that it
	// received.
	Sent bool
	Data []byte
}

// Capture records the frames on a network's link to the bridge, without loopback traffic.
// Its methods are safe for concurrent use.
type Capture struct {
	network *Network
	file    *os.File
	raw     interface {
		Read(func(fd uintptr) bool) error
	}
	done chan struct{}

	mu      sync.Mutex
	frames  []Frame
	size    int
	dropped int
	err     error
}

// Capture records frames until ctx or the pod ends or Close is called. It keeps at most
// 64 MiB and counts the rest.
func (n *Network) Capture(ctx context.Context) (*Capture, error) {
	c := &Capture{network: n, done: make(chan struct{})}
	err := n.Do(func() error {
		device, err := net.InterfaceByName(n.device)
		if err != nil {
			return err
		}
		// Without a protocol nothing arrives before the socket is bound to the link.
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("a packet socket: %w", err)
		}
		// Only root may exceed the system's limit, which is not essential.
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 8<<20)
		}
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: allProtocols, Ifindex: device.Index}); err != nil {
			_ = unix.Close(fd)
			return fmt.Errorf("binding a packet socket to %s: %w", n.device, err)
		}
		c.file = os.NewFile(uintptr(fd), "packets")
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("capturing in %s: %w", n.name, err)
	}
	if c.raw, err = c.file.SyscallConn(); err != nil {
		return nil, errors.Join(fmt.Errorf("capturing in %s: %w", n.name, err), c.file.Close())
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, errors.Join(fmt.Errorf("capturing in %s: %w", n.name, ErrClosed), c.file.Close())
	}
	n.captures[c] = struct{}{}
	stop := context.AfterFunc(ctx, c.Close)
	go func() {
		defer stop()
		defer close(c.done)
		// It returns when the file is closed.
		_ = c.raw.Read(func(fd uintptr) bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.drain(int(fd))
			return c.err != nil
		})
	}()
	return c, nil
}

// drain reads the frames that have arrived.
func (c *Capture) drain(fd int) {
	buffer := make([]byte, 1<<16+64)
	for {
		n, from, err := unix.Recvfrom(fd, buffer, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return
		case err != nil:
			c.err = err
			return
		}
		if c.size+n > captureLimit {
			c.dropped++
			continue
		}
		sender, _ := from.(*unix.SockaddrLinklayer)
		c.frames = append(c.frames, Frame{
			Sent: sender != nil && sender.Pkttype == unix.PACKET_OUTGOING,
			Data: slices.Clone(buffer[:n]),
		})
		c.size += n
	}
}

// Frames returns the frames so far, including all that have already arrived at the
// socket. The caller must not change their bytes.
func (c *Capture) Frames() []Frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take()
	return slices.Clone(c.frames)
}

// take drains the socket if it is open.
func (c *Capture) take() {
	if control, err := c.file.SyscallConn(); err == nil {
		_ = control.Control(func(fd uintptr) { c.drain(int(fd)) })
	}
}

// Dropped returns how many frames were not kept, including those that the kernel dropped.
func (c *Capture) Dropped() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if control, err := c.file.SyscallConn(); err == nil {
		_ = control.Control(func(fd uintptr) {
			// Reading resets the kernel's counter.
			if stats, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
				c.dropped += int(stats.Drops)
			}
		})
	}
	return c.dropped
}

// Close ends the capture. Frames still returns its frames.
func (c *Capture) Close() {
	c.network.mu.Lock()
	delete(c.network.captures, c)
	c.network.mu.Unlock()
	c.end()
}

func (c *Capture) end() {
	c.mu.Lock()
	c.take()
	c.mu.Unlock()
	_ = c.file.Close()
	<-c.done
}

// Segment is the TCP segment of a frame.
type Segment struct {
	From, To netip.AddrPort
	Payload  []byte
}

// Segment returns the TCP segment in the frame, if there is one. IPv6 extension headers
// and fragments are not supported.
func (f Frame) Segment() (Segment, bool) {
	const header = 14
	if len(f.Data) < header {
		return Segment{}, false
	}
	packet := f.Data[header:]
	var from, to netip.Addr
	switch kind := binary.BigEndian.Uint16(f.Data[12:header]); {
	case kind == unix.ETH_P_IP && len(packet) >= 20 && packet[9] == unix.IPPROTO_TCP:
		from, to = netip.AddrFrom4([4]byte(packet[12:16])), netip.AddrFrom4([4]byte(packet[16:20]))
		size, total := int(packet[0]&0xf)*4, int(binary.BigEndian.Uint16(packet[2:4]))
		// The frame may be padded, or have no length if it awaits segmentation offload.
		if total > size && total < len(packet) {
			packet = packet[:total]
		}
		packet = packet[min(size, len(packet)):]
	case kind == unix.ETH_P_IPV6 && len(packet) >= 40 && packet[6] == unix.IPPROTO_TCP:
		from, to = netip.AddrFrom16([16]byte(packet[8:24])), netip.AddrFrom16([16]byte(packet[24:40]))
		packet = packet[40:]
	default:
		return Segment{}, false
	}
	if len(packet) < 20 {
		return Segment{}, false
	}
	return Segment{
		From:    netip.AddrPortFrom(from, binary.BigEndian.Uint16(packet[0:2])),
		To:      netip.AddrPortFrom(to, binary.BigEndian.Uint16(packet[2:4])),
		Payload: packet[min(int(packet[12]>>4)*4, len(packet)):],
	}, true
}

// WaitFor waits for a frame that is wanted.
func (c *Capture) WaitFor(ctx context.Context, wanted func(Frame) bool) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if slices.ContainsFunc(c.Frames(), wanted) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for a frame in %s: %w", c.network.name, ctx.Err())
		}
	}
}
