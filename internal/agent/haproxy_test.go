package agent

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

const haproxyConfig = `
global
  hard-stop-after 5s
defaults
  mode http
  timeout client 5s
  timeout server 5s
  timeout connect 5s
frontend admin
  bind IP:15000
  http-request return status 200
frontend inbound
  bind IP:15003 ssl crt IDENTITY/identity.pem ca-file IDENTITY/bundle.pem verify required
  http-request return status 200 content-type text/plain string TEXT
`

// TestHAProxy runs the real HAProxy from a mirrored folder: a reload of its master loads new
// files and identities, and files that it would reject never reach it.
func TestHAProxy(t *testing.T) {
	program, err := exec.LookPath("haproxy")
	if err != nil {
		t.Skip("SKIPPED: there is no HAProxy in PATH; Debian's package haproxy has it")
	}
	t.Parallel()
	p := newPod(t)
	r := mirrored(p)
	p.spec.Command = []string{program, "-W", "-db", "-f", p.path("files/haproxy.cfg")}
	p.spec.Version = []string{program, "-vv"}
	p.spec.Mirror.Live = ""
	p.spec.Mirror.Check = []string{program, "-c", "-f", "${MIRROR}/haproxy.cfg"}
	p.spec.Reload = &agentspec.Reload{Signal: "USR2", Workers: true}
	p.serve()
	config := func(text string) string {
		return strings.NewReplacer("IP", p.ip, "IDENTITY", p.path("identity"), "TEXT", text).Replace(haproxyConfig)
	}
	// answer sends a request with a certificate of the authority and returns the answer.
	answer := func(authority *authority) string {
		client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
			// This test is about how the proxy verifies the client.
			InsecureSkipVerify: true, Certificates: []tls.Certificate{authority.server(t, "client")},
		}}}
		response, err := client.Get("https://" + p.ip + ":15003/")
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		return string(text)
	}
	r.set("haproxy.cfg", config("first"))
	r.serve()
	p.start()
	p.untilReady()
	if text := answer(p.ca); text != "first" {
		t.Fatalf("the proxy answers %q", text)
	}

	next := r.set("haproxy.cfg", config("second"))
	p.until("serving the second version", func() bool { return answer(p.ca) == "second" && r.isAcked(next) })
	own, library, _ := strings.Cut(r.proxyVersion(), " ")
	if out, err := exec.Command(program, "-vv").Output(); err != nil || own == "" || library == "" || !strings.Contains(string(out), " "+own+" ") || !strings.Contains(string(out), ": "+library+" ") {
		t.Errorf("the repository was told that HAProxy has the version %q, but it says %q, %v", r.proxyVersion(), out, err)
	}
	bad := r.set("haproxy.cfg", config("third")+"  nonsense\n")
	p.until("refused", func() bool { return len(r.refused()) == 1 })
	if report := r.refused()[0]; report.Version != bad || !strings.Contains(report.Error, "unknown keyword 'nonsense'") {
		t.Errorf("the repository got %+v", report)
	}
	if text := answer(p.ca); text != "second" {
		t.Errorf("the proxy answers %q after a version that it refuses", text)
	}

	// The former worker has no time to stop: it might still accept connections.
	former := workersOf(p.path("files/haproxy.cfg"))
	if len(former) == 0 {
		t.Fatal("HAProxy has no worker")
	}
	signalAll(t, former, unix.SIGSTOP)
	third := r.set("haproxy.cfg", config("third"))
	p.until("starting a new worker", func() bool {
		return slices.ContainsFunc(workersOf(p.path("files/haproxy.cfg")), func(pid int) bool { return !slices.Contains(former, pid) })
	})
	time.Sleep(500 * time.Millisecond)
	if r.isAcked(third) {
		t.Error("a version counts as in use although the former worker may still accept connections")
	}
	signalAll(t, former, unix.SIGCONT)
	p.until("using the third version alone", func() bool { return r.isAcked(third) && answer(p.ca) == "third" })
	next = r.set("haproxy.cfg", config("second"))
	p.until("serving the second version again", func() bool { return answer(p.ca) == "second" && r.isAcked(next) })

	// The master needs long on a busy machine. The version must not be rolled back meanwhile: the
	// new rules would take effect, be undone, and take effect again.
	master := masterOf(p.path("files/haproxy.cfg"))
	refused := len(r.refused())
	signalAll(t, master, unix.SIGSTOP)
	slow := r.set("haproxy.cfg", config("slow"))
	p.until("installing a version", func() bool {
		text, err := os.ReadFile(p.path("files/haproxy.cfg"))
		return err == nil && strings.Contains(string(text), "slow")
	})
	time.Sleep(2500 * time.Millisecond)
	signalAll(t, master, unix.SIGCONT)
	p.until("using the version of a slow reload", func() bool { return answer(p.ca) == "slow" && r.isAcked(slow) })
	if all := r.refused(); len(all) > refused {
		t.Errorf("a slow reload is refused: %+v", all[refused:])
	}
	next = r.set("haproxy.cfg", config("second"))
	p.until("serving the second version once more", func() bool { return answer(p.ca) == "second" && r.isAcked(next) })

	other := newAuthority(t, "next")
	if text := answer(other); text == "second" {
		t.Error("a client that nobody knows is answered")
	}
	p.service.set(func() { p.service.bundle = bundleOf(p.ca, other) })
	p.write("ca.crt", string(bundleOf(p.ca, other)))
	p.until("trusting another root", func() bool { return answer(other) == "second" })
	if n := p.number("outrigger_agent_proxy_restarts_total"); n != 0 {
		t.Errorf("the proxy was started again %v times", n)
	}
}

// workersOf returns the worker processes of the HAProxy with the configuration file, or nil
// while its master process executes its program again.
func workersOf(file string) []int {
	for _, pid := range processesOf(file) {
		if workers := below(pid); len(workers) > 0 {
			return workers
		}
	}
	return nil
}

// masterOf returns the process of the HAProxy with the configuration file that has workers.
func masterOf(file string) []int {
	return slices.DeleteFunc(processesOf(file), func(pid int) bool { return len(below(pid)) == 0 })
}

// processesOf returns the processes of the HAProxy with the configuration file.
func processesOf(file string) (out []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range all {
		text, err := os.ReadFile(name)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err == nil && strings.Contains(string(text), "\x00-f\x00"+file) {
			out = append(out, pid)
		}
	}
	return out
}

// below returns the children of a process.
func below(pid int) (out []int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, word := range strings.Fields(string(text)) {
		if child, err := strconv.Atoi(word); err == nil {
			out = append(out, child)
		}
	}
	return out
}

func signalAll(t *testing.T, processes []int, s unix.Signal) {
	t.Helper()
	for _, pid := range processes {
		if err := unix.Kill(pid, s); err != nil {
			t.Fatal(err)
		}
	}
}
