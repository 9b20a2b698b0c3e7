package lab_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/test/lab"
)

// echo answers every connection of a listener with a text and the received data.
func echo(t testing.TB, n *lab.Network, address, text string) {
	t.Helper()
	listener, err := n.Listen(deadline(t), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
				_, _ = io.WriteString(conn, text)
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
}

// talk sends a text and returns the whole answer.
func talk(ctx context.Context, n *lab.Network, network, address, text string) (string, error) {
	conn, err := n.Dial(ctx, network, address)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(conn, text); err != nil {
		return "", err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}

// wantTalk fails the test unless a connection reaches the server that answers with the
// text.
func wantTalk(t *testing.T, n *lab.Network, network, address, want string) {
	t.Helper()
	got, err := talk(deadline(t), n, network, address, "!")
	if err != nil {
		t.Errorf("%s %s: %v", network, address, err)
	} else if got != want+"!" {
		t.Errorf("%s %s: the answer is %q, want %q", network, address, got, want+"!")
	}
}

func TestPodsReachEachOther(t *testing.T) {
	l := newLab(t, lab.Options{Hosts: func() map[string][]netip.Addr {
		return map[string][]netip.Addr{
			"b.example":   {netip.MustParseAddr("2001:db8::7:3"), netip.MustParseAddr("198.18.7.3")},
			"gone-then-b": {netip.MustParseAddr("2001:db8::7:ff"), netip.MustParseAddr("198.18.7.3")},
		}
	}})
	a, b := startPod(t, l, newPod("a", 2)), startPod(t, l, newPod("b", 3))
	// The same port everywhere, since the networks are separate.
	echo(t, a.Network, ":8080", "a")
	echo(t, b.Network, ":8080", "b")
	echo(t, l.Node(), ":8080", "node")

	wantTalk(t, a.Network, "tcp", "198.18.7.3:8080", "b")
	wantTalk(t, a.Network, "tcp", "[2001:db8::7:3]:8080", "b")
	wantTalk(t, b.Network, "tcp", "198.18.7.2:8080", "a")
	wantTalk(t, b.Network, "tcp", "[2001:db8::7:2]:8080", "a")
	wantTalk(t, a.Network, "tcp", "198.18.7.2:8080", "a")
	wantTalk(t, a.Network, "tcp", "localhost:8080", "a")
	wantTalk(t, a.Network, "tcp", "198.18.0.1:8080", "node")
	wantTalk(t, a.Network, "tcp", "[2001:db8::1]:8080", "node")
	wantTalk(t, l.Node(), "tcp", "198.18.7.3:8080", "b")
	wantTalk(t, l.Node(), "tcp", "[2001:db8::7:2]:8080", "a")
	// Names of Options.Hosts in an ordinary program.
	wantTalk(t, a.Network, "tcp", "b.example:8080", "b")
	wantTalk(t, a.Network, "tcp4", "b.example.:8080", "b")
	wantTalk(t, l.Node(), "tcp6", "b.example:8080", "b")
	wantTalk(t, b.Network, "tcp", "b:8080", "b")
	wantTalk(t, a.Network, "tcp4", "gone-then-b:8080", "b")

	if _, err := l.Node().Dial(deadline(t), "tcp", "nobody.example:8080"); err == nil {
		t.Error("a name that is in no table was found")
	} else if dns, ok := errors.AsType[*net.DNSError](err); !ok || !dns.IsNotFound {
		t.Errorf("a name that is in no table: %v; want a DNS error that says so", err)
	}
}

// The node reports unused addresses as unreachable, at the latest for the second packet.
func TestUnknownAddressIsRefused(t *testing.T) {
	l := newLab(t, lab.Options{})
	a := startPod(t, l, newPod("a", 2))
	for _, address := range []string{"198.19.1.2:80", "[2001:db8:1::2]:80", "203.0.113.9:80"} {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		if _, err := a.Dial(ctx, "tcp", address); err == nil {
			t.Errorf("%s answers", address)
		} else if ctx.Err() != nil {
			t.Errorf("%s: %v; want an error from the node", address, err)
		}
		cancel()
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	l := newLab(t, lab.Options{})
	a := startPod(t, l, newPod("a", 2))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	// In the pods' network, so that no router reports it as unreachable.
	if _, err := a.Dial(ctx, "tcp", "198.18.7.99:80"); err == nil {
		t.Error("an address that no pod has answers")
	}
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
}

// A pod may have any address, for example that of a host outside the mesh.
func TestAddressOutsideOfTheNetwork(t *testing.T) {
	l := newLab(t, lab.Options{})
	a := startPod(t, l, newPod("a", 2))
	outside := newPod("outside", 3)
	outside.Status.PodIPs = []corev1.PodIP{{IP: "203.0.113.9"}, {IP: "2001:db8:ffff::9"}}
	o := startPod(t, l, outside)
	echo(t, o.Network, ":80", "outside")
	echo(t, a.Network, ":80", "a")
	wantTalk(t, a.Network, "tcp", "203.0.113.9:80", "outside")
	wantTalk(t, a.Network, "tcp", "[2001:db8:ffff::9]:80", "outside")
	wantTalk(t, l.Node(), "tcp", "203.0.113.9:80", "outside")
	wantTalk(t, o.Network, "tcp", "198.18.7.2:80", "a")
	wantTalk(t, o.Network, "tcp", "[2001:db8::7:2]:80", "a")
}

func TestAddressIsFreeAfterStop(t *testing.T) {
	l := newLab(t, lab.Options{})
	a := startPod(t, l, newPod("a", 2))
	for n := range 3 {
		text := fmt.Sprint("b", n)
		b := startPod(t, l, newPod("b", 3))
		listener, err := b.Listen(deadline(t), "tcp", ":81")
		if err != nil {
			t.Fatal(err)
		}
		echo(t, b.Network, ":80", text)
		wantTalk(t, a.Network, "tcp", "198.18.7.3:80", text)
		wantTalk(t, a.Network, "tcp", "[2001:db8::7:3]:80", text)
		if _, err := l.StartPod(deadline(t), newPod("c", 3)); err == nil {
			t.Fatal("two pods have the same address")
		}
		if err := b.Stop(deadline(t)); err != nil {
			t.Fatal(err)
		}
		if _, err := listener.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("the listener of a pod that has stopped: %v; want it closed", err)
		}
		if _, err := b.Dial(deadline(t), "tcp", "198.18.7.2:80"); !errors.Is(err, lab.ErrClosed) {
			t.Errorf("dialling from a pod that has stopped: %v; want ErrClosed", err)
		}
	}
}

// TestAddressIsFreeAfterClose listens again and again at one address while processes start.
func TestAddressIsFreeAfterClose(t *testing.T) {
	l := newLab(t, lab.Options{})
	ctx, stop := context.WithCancel(t.Context())
	var starting sync.WaitGroup
	defer starting.Wait()
	defer stop()
	for range 4 {
		starting.Go(func() {
			for ctx.Err() == nil {
				_ = exec.CommandContext(ctx, "/bin/true").Run()
			}
		})
	}
	for range 2000 {
		on, err := l.Node().Listen(ctx, "tcp", ":8080")
		if err != nil {
			t.Fatal(err)
		}
		on.Close()
	}
}

func TestBadPods(t *testing.T) {
	l := newLab(t, lab.Options{})
	tests := map[string]func(*corev1.Pod){
		"no address":     func(p *corev1.Pod) { p.Status = corev1.PodStatus{} },
		"not an address": func(p *corev1.Pod) { p.Status.PodIPs[0].IP = "pod" },
		"the node's":     func(p *corev1.Pod) { p.Status.PodIPs[0].IP = "198.18.0.1" },
		"alias":          func(p *corev1.Pod) { p.Spec.HostAliases = []corev1.HostAlias{{IP: "x"}} },
		"init container without an image": func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "nobody's"}}
		},
		"no such program": func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Name: "app", Image: "program", Command: []string{"no-such-program"}}}
		},
		"zero byte": func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Name: "app", Image: "program", Command: []string{"/program", "\x00"}}}
		},
		"root that may not be": func(p *corev1.Pod) {
			c := container("app", "wait")
			c.SecurityContext = &corev1.SecurityContext{RunAsNonRoot: new(true)}
			p.Spec.Containers = []corev1.Container{c}
		},
		"capability": func(p *corev1.Pod) {
			c := container("app", "wait")
			c.SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"FLY"}}}
			p.Spec.Containers = []corev1.Container{c}
		},
		"volume that is not there": func(p *corev1.Pod) {
			c := container("app", "wait")
			c.VolumeMounts = []corev1.VolumeMount{{Name: "none", MountPath: "/none"}}
			p.Spec.Containers = []corev1.Container{c}
		},
		"kind of volume": func(p *corev1.Pod) {
			c := container("app", "wait")
			c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/none"}}
			p.Spec.Containers = []corev1.Container{c}
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
		},
		"path that leaves the volume": func(p *corev1.Pod) {
			c := container("app", "wait")
			c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v", SubPath: "../../.."}}
			p.Spec.Containers = []corev1.Container{c}
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		},
		"no tokens": func(p *corev1.Pod) {
			c := container("app", "wait")
			c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
			p.Spec.Containers = []corev1.Container{c}
			p.Spec.Volumes = []corev1.Volume{tokenVolume("v", 600)}
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			pod := newPod("bad", 9)
			change(pod)
			p, err := l.StartPod(deadline(t), pod)
			if err == nil {
				t.Fatal("it started:", p.Name())
			}
			t.Log(err)
		})
	}
	// Nothing of them is left.
	startPod(t, l, newPod("bad", 9))
}

func TestSeveralLabs(t *testing.T) {
	pods := make([]*lab.Pod, 3)
	for i := range pods {
		l := newLab(t, lab.Options{})
		pods[i] = startPod(t, l, newPod("a", 2))
		startPod(t, l, newPod("b", 3))
		echo(t, pods[i].Network, ":80", fmt.Sprint("lab", i))
		wantTalk(t, l.Node(), "tcp", "198.18.7.2:80", fmt.Sprint("lab", i))
	}
	for i, pod := range pods {
		wantTalk(t, pod.Network, "tcp", "198.18.7.2:80", fmt.Sprint("lab", i))
	}
}

// The program's own network is not affected by calls in pods.
func TestDo(t *testing.T) {
	l := newLab(t, lab.Options{})
	a := startPod(t, l, newPod("a", 2))
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		var within, nested string
		err := a.Do(func() error {
			within, _ = os.Readlink("/proc/thread-self/ns/net")
			return l.Node().Do(func() error {
				nested, _ = os.Readlink("/proc/thread-self/ns/net")
				return nil
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		after, _ := os.Readlink("/proc/thread-self/ns/net")
		if within == own || nested == own || within == nested || after != own {
			t.Fatalf("own %s, in the pod %s, in the node %s, after %s", own, within, nested, after)
		}
	}
	want := errors.New("wanted")
	if err := a.Do(func() error { return want }); !errors.Is(err, want) {
		t.Errorf("Do returns %v, want the function's error", err)
	}
	// Like a test that ends within Do.
	left := make(chan bool)
	go func() {
		defer close(left)
		_ = a.Do(func() error { runtime.Goexit(); return nil })
		left <- true
	}()
	if <-left {
		t.Error("the goroutine went on after Goexit in Do")
	}
}

func TestHTTPClient(t *testing.T) {
	l := newLab(t, lab.Options{})
	a, b := startPod(t, l, newPod("a", 2)), startPod(t, l, newPod("b", 3))
	listener, err := b.Listen(deadline(t), "tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RemoteAddr) }))
	}()
	client := &http.Client{Transport: &http.Transport{DialContext: a.Dial}}
	defer client.CloseIdleConnections()
	response, err := client.Get("http://198.18.7.3/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, _ := io.ReadAll(response.Body)
	if from, err := netip.ParseAddrPort(string(body)); err != nil || from.Addr() != a.Addresses()[0] {
		t.Errorf("the request comes from %s, want %s", body, a.Addresses()[0])
	}
}

func TestCapture(t *testing.T) {
	l := newLab(t, lab.Options{})
	a, b := startPod(t, l, newPod("a", 2)), startPod(t, l, newPod("b", 3))
	echo(t, b.Network, ":80", "from b")
	capture, err := a.Capture(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"198.18.7.3:80", "[2001:db8::7:3]:80"} {
		wantTalk(t, a.Network, "tcp", address, "from b")
		to := netip.MustParseAddrPort(address)
		var sent, got []byte
		for _, frame := range capture.Frames() {
			segment, ok := frame.Segment()
			switch {
			case ok && segment.To == to && frame.Sent:
				sent = append(sent, segment.Payload...)
			case ok && segment.From == to && !frame.Sent:
				got = append(got, segment.Payload...)
			}
		}
		if !bytes.Equal(sent, []byte("!")) || !bytes.Equal(got, []byte("from b!")) {
			t.Errorf("%s: sent %q and got %q", address, sent, got)
		}
	}
	err = capture.WaitFor(deadline(t), func(f lab.Frame) bool { return f.Sent && bytes.Contains(f.Data, []byte("!")) })
	if err != nil {
		t.Error(err)
	}
	if dropped := capture.Dropped(); dropped != 0 {
		t.Errorf("%d frames were dropped", dropped)
	}
	capture.Close()
	count := len(capture.Frames())
	wantTalk(t, a.Network, "tcp", "198.18.7.3:80", "from b")
	if after := len(capture.Frames()); after != count {
		t.Errorf("%d frames after Close, %d before", after, count)
	}
	// A capture ends with its pod, or with its context.
	if _, err := a.Capture(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Capture(ctx); err != nil {
		t.Fatal(err)
	}
}

// No plaintext frame is missed under load.
func TestCaptureManyFrames(t *testing.T) {
	l := newLab(t, lab.Options{})
	a, b := startPod(t, l, newPod("a", 2)), startPod(t, l, newPod("b", 3))
	echo(t, b.Network, ":80", "")
	capture, err := b.Capture(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer capture.Close()
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	got, err := talk(deadline(t), a.Network, "tcp", "198.18.7.3:80", string(want))
	if err != nil || got != string(want) {
		t.Fatalf("%d bytes came back of %d: %v", len(got), len(want), err)
	}
	size := 0
	for _, frame := range capture.Frames() {
		if segment, ok := frame.Segment(); ok && !frame.Sent {
			size += len(segment.Payload)
		}
	}
	if dropped := capture.Dropped(); size < len(want) || dropped > 0 {
		t.Errorf("%d bytes of %d were seen, and %d frames were dropped", size, len(want), dropped)
	}
}
