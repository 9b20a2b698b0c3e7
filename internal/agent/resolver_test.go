package agent

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// resolver is the only name server of a pod.
type resolver struct {
	answer atomic.Pointer[drivertest.NameAnswer]
	asked  atomic.Int64
}

// resolve gives the pod's agent a resolver, which is the only one in its /etc/resolv.conf.
func resolve(p *pod) *resolver {
	p.t.Helper()
	if os.Getuid() != 0 {
		p.t.Skip("a file of the pod's own at /etc/resolv.conf needs root")
	}
	conn, err := net.ListenPacket("udp", p.ip+":53")
	if err != nil {
		p.t.Skip("the port of name servers: ", err)
	}
	r := new(resolver)
	r.answer.Store(new(drivertest.NameAnswer))
	drivertest.ServeNames(p.t, conn, func(string) drivertest.NameAnswer {
		r.asked.Add(1)
		return *r.answer.Load()
	})
	p.write("resolv.conf", "nameserver "+p.ip+"\noptions timeout:1 attempts:1\n")
	if err := exec.Command("unshare", "--mount", "true").Run(); err != nil {
		p.t.Skip("no mounts of its own: ", err)
	}
	p.launch = func(cmd *exec.Cmd) error {
		script := fmt.Sprintf(`mount --make-rprivate / && mount --bind %s /etc/resolv.conf && exec "$@"`, p.path("resolv.conf"))
		cmd.Args = append([]string{"/bin/sh", "-c", script, "sh"}, cmd.Args...)
		cmd.Path = "/bin/sh"
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWNS}
		return startChild(cmd)
	}
	return r
}

// TestNameOfTheController checks that an agent backs off while the name of the controller does not
// resolve, although no answer may be cached, and that it goes on as soon as the name resolves.
func TestNameOfTheController(t *testing.T) {
	t.Parallel()
	p, repository := followed(t)
	names := resolve(p)
	p.spec.Mirror.URL = "https://" + controllerHost + ":6060/repo/" + podUID + "/"
	p.serve()
	repository.set("code", "1")
	repository.serve()
	// most is more than two requests ask with the longest pause in between, in the test's timings.
	const second, most = time.Second, 100
	fails := func(what string, code byte) {
		t.Helper()
		names.answer.Store(&drivertest.NameAnswer{Code: code})
		asked := names.asked.Load()
		time.Sleep(second)
		if n := names.asked.Load() - asked; n == 0 || n > most {
			t.Errorf("%s: the agent asked %d times within %v, want some and at most %d", what, n, second, most)
		}
		if status, _ := p.ask("GET", "/alive"); status != 200 {
			t.Errorf("%s: the agent is not alive", what)
		}
	}
	p.start("--identity-address", controllerHost+":15129")
	for _, row := range []struct {
		what string
		code byte
	}{{"a name that does not exist", 3}, {"a server that fails", 2}, {"a name without an address", 0}} {
		fails(row.what, row.code)
	}
	if status, text := p.ask("GET", "/ready"); status != 503 || text != "the pod has no certificate yet" {
		t.Errorf("/ready: %d %s", status, text)
	}
	names.answer.Store(&drivertest.NameAnswer{Address: netip.MustParseAddr(p.ip)})
	p.untilReady()

	repository.stop()
	fails("a repository whose name is gone", 3)
	if !p.isReady() {
		t.Error("the pod is not ready although it has all that it needs")
	}
}
