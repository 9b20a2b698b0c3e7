package lab_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/test/lab"
)

// TestLose cuts a pod off and has it come back, and then drops a fifth of what enters and of what
// leaves. Datagrams are counted, since TCP waits ever longer when it loses many packets in a row.
func TestLose(t *testing.T) {
	l := newLab(t, lab.Options{})
	a, b := startPod(t, l, newPod("a", 2)), startPod(t, l, newPod("b", 3))
	echo(t, a.Network, ":80", "a")
	wantTalk(t, b.Network, "tcp", "198.18.7.2:80", "a")
	lose := func(percent int) {
		t.Helper()
		if err := a.Lose(percent); err != nil {
			t.Fatal(err)
		}
	}
	lose(100)
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := talk(short, b.Network, "tcp", "198.18.7.2:80", "!")
	if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
		t.Errorf("a pod that is cut off answers with %v, want nothing at all", err)
	}
	wantTalk(t, a.Network, "tcp", "127.0.0.1:80", "a")
	lose(0)
	wantTalk(t, b.Network, "tcp", "198.18.7.2:80", "a")

	server := listenPacket(t, a.Network, "198.18.7.2:81")
	client := listenPacket(t, b.Network, "198.18.7.3:81")
	// One at a time, so that no buffer overflows.
	const sent = 2000
	arrive := func(from, to net.PacketConn) (arrived int) {
		t.Helper()
		buffer := make([]byte, 16)
		for range sent {
			if _, err := from.WriteTo([]byte("!"), to.LocalAddr()); err != nil && !errors.Is(err, unix.EPERM) {
				t.Fatal(err)
			}
			_ = to.SetReadDeadline(time.Now().Add(2 * time.Millisecond))
			for {
				if _, _, err := to.ReadFrom(buffer); err != nil {
					break
				}
				arrived++
				_ = to.SetReadDeadline(time.Now())
			}
		}
		return arrived
	}
	lose(20)
	for name, arrived := range map[string]int{"to": arrive(client, server), "from": arrive(server, client)} {
		// Six standard deviations.
		if arrived < sent*74/100 || arrived > sent*86/100 {
			t.Errorf("%d of %d datagrams %s a pod that loses a fifth arrived", arrived, sent, name)
		}
	}
}

// TestDelay holds a pod's packets for a while in both directions, in order and out of order, and
// checks that none is lost or changed.
func TestDelay(t *testing.T) {
	l := newLab(t, lab.Options{})
	a, b := startPod(t, l, newPod("a", 2)), startPod(t, l, newPod("b", 3))
	echo(t, a.Network, ":80", "a")
	echo(t, b.Network, ":80", "b")
	server := listenPacket(t, a.Network, "198.18.7.2:81")
	client := listenPacket(t, b.Network, "198.18.7.3:81")
	delay := func(d, jitter time.Duration) {
		t.Helper()
		if err := a.Delay(d, jitter); err != nil {
			t.Fatal(err)
		}
		// Everybody knows everybody's hardware address afterwards.
		wantTalk(t, b.Network, "tcp", "198.18.7.2:80", "a")
		wantTalk(t, a.Network, "tcp", "198.18.7.3:80", "b")
	}
	// arrive sends numbered datagrams and returns the order in which they arrive, and the shortest
	// time that one took.
	arrive := func(from, to net.PacketConn) (order []byte, shortest time.Duration) {
		t.Helper()
		const count = 100
		var sent [count]time.Time
		for i := range sent {
			sent[i] = time.Now()
			if _, err := from.WriteTo([]byte{byte(i)}, to.LocalAddr()); err != nil {
				t.Fatal(err)
			}
		}
		shortest = time.Minute
		buffer := make([]byte, 16)
		_ = to.SetReadDeadline(time.Now().Add(10 * time.Second))
		for range sent {
			if _, _, err := to.ReadFrom(buffer); err != nil {
				t.Fatalf("after %d datagrams: %v", len(order), err)
			}
			order = append(order, buffer[0])
			shortest = min(shortest, time.Since(sent[buffer[0]]))
		}
		return order, shortest
	}
	for _, test := range []struct{ delay, jitter time.Duration }{
		{20 * time.Millisecond, 0}, {20 * time.Millisecond, 20 * time.Millisecond}, {0, 20 * time.Millisecond},
	} {
		delay(test.delay, test.jitter)
		for name, ends := range map[string][2]net.PacketConn{"to": {client, server}, "from": {server, client}} {
			order, shortest := arrive(ends[0], ends[1])
			if shortest < test.delay {
				t.Errorf("%v: a datagram %s the pod took %v", test, name, shortest)
			}
			if slices.IsSorted(order) != (test.jitter == 0) {
				t.Errorf("%v: datagrams %s the pod arrived in this order: %d", test, name, order)
			}
		}
	}
	for _, address := range []string{"198.18.7.2:80", "[2001:db8::7:2]:80"} {
		conn, err := b.Dial(deadline(t), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		large := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		go func() { _, _ = conn.Write(large) }()
		got := make([]byte, 1+len(large))
		if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got[1:], large) {
			t.Errorf("%s: what came back differs from the %d bytes that were sent: %v", address, len(large), err)
		}
	}
	wantTalk(t, a.Network, "tcp", "127.0.0.1:80", "a")
	wantTalk(t, l.Node(), "tcp", "198.18.7.2:80", "a")

	delay(200*time.Millisecond, 0)
	delay(0, 0)
	begin := time.Now()
	wantTalk(t, b.Network, "tcp", "198.18.7.2:80", "a")
	if took := time.Since(begin); took > 200*time.Millisecond {
		t.Errorf("a connection took %v after the delay", took)
	}
	delay(time.Millisecond, 0)
	if err := a.Stop(deadline(t)); err != nil {
		t.Error(err)
	}
	if err := a.Delay(time.Millisecond, 0); !errors.Is(err, lab.ErrClosed) {
		t.Errorf("delaying a pod that has stopped: %v; want ErrClosed", err)
	}
	links := ""
	err := l.Node().Do(func() error {
		all, err := net.Interfaces()
		for _, link := range all {
			links += link.Name + " "
		}
		return err
	})
	if err != nil || strings.Contains(links, "held") {
		t.Errorf("the links %sare left: %v", links, err)
	}
}

// listenPacket opens a UDP socket in a network.
func listenPacket(t *testing.T, n *lab.Network, address string) net.PacketConn {
	t.Helper()
	var conn net.PacketConn
	err := n.Do(func() (err error) {
		conn, err = net.ListenPacket("udp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
