package lab_test

import (
	"encoding/json"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/outrigger-mesh/outrigger/test/lab"
)

func TestProcess(t *testing.T) {
	var changed atomic.Bool
	l := newLab(t, lab.Options{Hosts: func() map[string][]netip.Addr {
		if changed.Load() {
			return map[string][]netip.Addr{"x": {netip.MustParseAddr("198.19.0.1")}}
		}
		return map[string][]netip.Addr{"controller.example": {netip.MustParseAddr("198.18.0.1")}}
	}})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	look, err := l.StartProcess(deadline(t), lab.Process{
		Command: []string{self, program, "look", "/etc/hosts", "+" + dir + "/file"}, Env: []string{"A=b"}, Dir: dir,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := look.Wait(deadline(t)); err != nil {
		t.Fatal(err)
	}
	var s seen
	if err := json.Unmarshal([]byte(look.Output()), &s); err != nil {
		t.Fatalf("%v: %s", err, look.Output())
	}
	if s.UID != os.Getuid() || s.Dir != dir || len(s.Errors) > 0 || s.Env[0] != "A=b" || !strings.Contains(s.Files["/etc/hosts"], "198.18.0.1\tcontroller.example\n") {
		t.Errorf("it saw %+v", s)
	}

	serve, err := l.StartProcess(deadline(t), lab.Process{Name: "server", Command: []string{self, program, "serve", ":9000", "x"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := pingHTTP(t, l, "198.18.0.1:9000"); err != nil {
		t.Fatal(err)
	}
	changed.Store(true)
	if err := l.Refresh(); err != nil {
		t.Fatal(err)
	}
	if err := serve.Kill(); err != nil {
		t.Fatal(err)
	}
	wantError(t, serve.Wait(deadline(t)), "server", "137", "serving")
	if err := serve.Kill(); err != nil {
		t.Errorf("killing what has ended: %v", err)
	}
	if err := serve.Restart(deadline(t)); err != nil {
		t.Fatal(err)
	}
	pid := serve.PID()
	if err := serve.Restart(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if serve.PID() == pid {
		t.Error("it is the same process after a restart")
	}
	if err := pingHTTP(t, l, "198.18.0.1:9000/file/etc/hosts"); err != nil {
		t.Fatal(err)
	}
	if err := serve.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := serve.Wait(deadline(t)); err != nil {
		t.Error(err)
	}
	if err := serve.Signal(syscall.SIGTERM); err == nil {
		t.Error("what has ended took a signal")
	}
	if _, err := l.StartProcess(deadline(t), lab.Process{Command: []string{"/no/such/program"}}); err == nil {
		t.Error("what is not there was started")
	}
}
