package agent

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/capture"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// network is a pod's network: a thread in its own network namespace.
type network struct{ do chan func() }

// newNetwork returns a network with the addresses of lo and the given ones. It is removed
// after the test.
func newNetwork(t *testing.T, addresses ...string) *network {
	t.Helper()
	n := &network{do: make(chan func())}
	made := make(chan error, 1)
	go func() {
		// The thread ends with the goroutine, and the namespace with its last socket.
		runtime.LockOSThread()
		made <- makeNetwork(addresses)
		for f := range n.do {
			f()
		}
	}()
	t.Cleanup(func() { close(n.do) })
	if err := <-made; errors.Is(err, os.ErrPermission) {
		t.Skipf("SKIPPED: network namespaces need root or CAP_SYS_ADMIN: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	return n
}

func makeNetwork(addresses []string) error {
	handle, err := netns.New()
	if err != nil {
		return err
	}
	defer handle.Close()
	card := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer"}
	if err := netlink.LinkAdd(card); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	for _, link := range []netlink.Link{lo, card} {
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
	}
	for _, a := range addresses {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		addr.Flags = syscall.IFA_F_NODAD
		if err := netlink.AddrAdd(card, addr); err != nil {
			return err
		}
	}
	return nil
}

// in runs f in the network.
func (n *network) in(f func() error) error {
	done := make(chan error, 1)
	n.do <- func() { done <- f() }
	return <-done
}

func (n *network) listen(t *testing.T, address string) net.Listener {
	t.Helper()
	var l net.Listener
	if err := n.in(func() (err error) { l, err = net.Listen("tcp", address); return err }); err != nil {
		t.Fatal(err)
	}
	return l
}

func (n *network) dial(_ context.Context, kind, address string) (c net.Conn, err error) {
	err = n.in(func() (err error) { c, err = net.Dial(kind, address); return err })
	return c, err
}

// TestProbesPassTheRedirection runs the agent as the proxy's user in a network with the real
// rules, which redirect that user's connections to the pod's own address to the inbound
// port. Probes must still reach the app.
func TestProbesPassTheRedirection(t *testing.T) {
	const ip4, ip6 = "10.77.0.1", "2001:db8:77::1"
	hosts := map[string]string{"pod": "", "pod4": ip4}
	addresses := []string{ip4 + "/24"}
	if disabled, err := os.ReadFile("/proc/sys/net/ipv6/conf/default/disable_ipv6"); err != nil || string(disabled) != "0\n" {
		t.Log("SKIPPED: the part about IPv6, which is switched off here")
	} else {
		hosts["pod6"] = ip6
		addresses = append(addresses, ip6+"/64")
	}
	n := newNetwork(t, addresses...)
	if err := n.in(func() error { return capture.Apply(agentspec.Redirection{}, capture.Options{}) }); err != nil {
		t.Fatal(err)
	}
	answer := func(l net.Listener, status int) {
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })}
		go server.Serve(l)
		t.Cleanup(func() { server.Close() })
	}
	for _, host := range hosts {
		if host != "" {
			answer(n.listen(t, net.JoinHostPort(host, "8080")), 200)
		}
	}
	answer(n.listen(t, ":15003"), 418)

	p := newPod(t)
	p.dial = n.dial
	asProxyUser := func(cmd *exec.Cmd) error {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{Uid: capture.DefaultUID, Gid: capture.DefaultUID},
		}
		return n.in(cmd.Start)
	}
	p.launch = asProxyUser
	// The user must be able to access the program and the folders.
	p.self = p.path("agent")
	if err := copyProgram(p.self); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Dir(p.dir), p.dir} {
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	p.env[agentspec.EnvPodIP] = ip4
	p.spec.Command, p.spec.ReadyURL = []string{"sleep", "600"}, ""
	for name, host := range hosts {
		p.spec.Probes = append(p.spec.Probes,
			agentspec.Probe{Path: "/http/" + name, Kind: agentspec.HTTP, Port: 8080, Host: host, TimeoutSeconds: 5},
			agentspec.Probe{Path: "/tcp/" + name, Kind: agentspec.TCP, Port: 8081, Host: host, TimeoutSeconds: 5})
	}
	if err := n.in(func() error { p.serve(); return nil }); err != nil {
		t.Fatal(err)
	}
	p.start()
	p.untilReady()
	for name := range hosts {
		if status, text := p.ask("GET", "/http/"+name); status != 200 {
			t.Errorf("the app's answer of %s comes back as %d %s", name, status, text)
		}
		// The app does not listen there; the inbound side would accept the connection.
		if status, text := p.ask("GET", "/tcp/"+name); status != 503 {
			t.Errorf("a port of %s where nobody listens is answered with %d %s", name, status, text)
		}
	}

	// Any other connection of this user is redirected.
	for _, host := range hosts {
		if host == "" {
			continue
		}
		var out logBuffer
		cmd := exec.Command(p.self, asClient, "http://"+net.JoinHostPort(host, "8080"))
		cmd.Stdout = &out
		if err := asProxyUser(cmd); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if out.String() != "418" {
			t.Errorf("the proxy's own call of %s is answered with %s", host, out.String())
		}
	}
}

func copyProgram(to string) error {
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer from.Close()
	// A process that another test starts in the meantime would keep the file open for
	// writing until it runs its own program, and this one could not be run.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return kit.WriteFile(to, from, 0o755)
}
