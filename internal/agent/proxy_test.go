package agent

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// journal returns the proxy's journal without process IDs.
func (p *pod) journal() []string {
	return strings.Fields(regexp.MustCompile(` \S+`).ReplaceAllString(p.read("journal"), ""))
}

// proxyPID returns the process ID of the proxy's latest start.
func (p *pod) proxyPID() int {
	starts := regexp.MustCompile(`(?m)^start (\d+)$`).FindAllStringSubmatch(p.read("journal"), -1)
	if len(starts) == 0 {
		return 0
	}
	pid, _ := strconv.Atoi(starts[len(starts)-1][1])
	return pid
}

func (p *pod) crashProxy() {
	p.t.Helper()
	response, err := http.Get("http://" + p.ip + ":15000/crash?code=3")
	if err == nil {
		response.Body.Close()
	}
}

func TestProxyIsStartedAgain(t *testing.T) {
	t.Parallel()
	p := newPod(t, "-gate", "${GATE}")
	p.env["GATE"] = p.path("gate")
	p.write("gate", "")
	p.serve()
	p.start()
	p.untilReady()
	first := p.proxyPID()
	// The readiness of the old process must not count for the new one.
	if err := os.Remove(p.path("gate")); err != nil {
		t.Fatal(err)
	}
	p.crashProxy()
	p.until("started again", func() bool { return p.proxyPID() != first })
	if p.isReady() {
		t.Error("ready although the new process has no configuration")
	}
	p.write("gate", "")
	p.untilReady()
	if got := p.metric("outrigger_agent_proxy_restarts_total"); got != "1" {
		t.Errorf("restarts are counted as %q", got)
	}
	if !strings.Contains(p.log.String(), "exit code 3") {
		t.Error("the log does not say how the proxy ended")
	}

	if err := unix.Kill(p.proxyPID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.until("counted", func() bool { return p.metric("outrigger_agent_proxy_restarts_total") == "2" })
	p.untilReady()
	if !strings.Contains(p.log.String(), "SIGKILL") {
		t.Error("the log does not say which signal ended the proxy")
	}
}

// TestCrashLoop checks that pauses double, that the agent eventually reports that it is not
// alive, and that it is alive again once the proxy stays up.
func TestCrashLoop(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	self := p.spec.Command[0]
	p.write("proxy", "#!/bin/sh\nif test -e "+p.path("good")+"; then exec "+self+` "$@"; fi; exit 9`)
	if err := os.Chmod(p.path("proxy"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.spec.Command[0] = p.path("proxy")
	p.serve()
	p.start()
	p.until("given up", func() bool {
		status, text := p.ask("GET", "/alive")
		return status == 503 && strings.Contains(text, "crashing")
	})
	var pauses []string
	for _, m := range regexp.MustCompile(`"after":"(\S+?)"`).FindAllStringSubmatch(p.log.String(), -1) {
		pauses = append(pauses, m[1])
	}
	if diff := cmp.Diff([]string{"20ms", "40ms", "80ms", "160ms", "200ms"}, pauses[:min(5, len(pauses))]); diff != "" {
		t.Errorf("pauses (-want +got):\n%s", diff)
	}
	p.write("good", "")
	p.untilReady()
	p.until("alive", func() bool { status, _ := p.ask("GET", "/alive"); return status == 200 })

	// After a stable run the first pause is short again.
	p.crashProxy()
	p.until("started again soon", func() bool { return strings.Count(p.log.String(), `"after":"20ms"`) == 2 })
}

func TestProxyThatIsNotThere(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.spec.Command[0] = "/no/such/proxy"
	p.serve()
	p.start()
	p.until("logged", func() bool { return strings.Contains(p.log.String(), "no such file") })
	if _, text := p.ask("GET", "/ready"); text != "the proxy is not running" {
		t.Errorf("/ready: %s", text)
	}
	p.signal(unix.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("the agent ended with %d", code)
	}
}

func TestTermBeforeAnIdentity(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.start()
	p.until("serving", func() bool { status, _ := p.ask("GET", "/alive"); return status == 200 })
	p.signal(unix.SIGTERM)
	if code := p.exit(); code != 0 || p.read("journal") != "" {
		t.Errorf("the agent ended with %d, and the journal says %q", code, p.read("journal"))
	}
}

func TestDrain(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.spec.Drain = &agentspec.Drain{URL: "http://${POD_IP}:15000/drain", Seconds: 2}
	p.serve()
	p.start()
	p.untilReady()
	began := time.Now()
	p.signal(unix.SIGTERM)
	p.until("draining", func() bool { _, text := p.ask("GET", "/ready"); return text == "the proxy is draining" })
	p.until("asked to drain", func() bool { return strings.Contains(p.read("journal"), "drain POST") })
	if p.exit() != 0 {
		t.Error("the agent did not end well")
	}
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("the proxy was given %v to drain", took)
	}
	if diff := cmp.Diff([]string{"start", "drain", "SIGTERM"}, p.journal()); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestDrainEndsWithTheProxy(t *testing.T) {
	t.Parallel()
	p := newPod(t, "-end-on-drain")
	p.spec.Drain = &agentspec.Drain{URL: "http://${POD_IP}:15000/drain", Seconds: 3600}
	p.serve()
	p.start()
	p.untilReady()
	p.signal(unix.SIGTERM)
	if p.exit() != 0 {
		t.Error("the agent did not end well")
	}
	if diff := cmp.Diff([]string{"start", "drain"}, p.journal()); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestStubbornProxyIsKilled(t *testing.T) {
	t.Parallel()
	p := newPod(t, "-stubborn")
	p.serve()
	p.start()
	p.untilReady()
	p.signal(unix.SIGTERM)
	if p.exit() != 0 {
		t.Error("the agent did not end well")
	}
	if diff := cmp.Diff([]string{"start", "SIGTERM"}, p.journal()); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestSecondTermIsImmediate(t *testing.T) {
	t.Parallel()
	p := newPod(t, "-stubborn")
	p.spec.Drain = &agentspec.Drain{URL: "http://${POD_IP}:15000/drain", Seconds: 3600}
	p.serve()
	p.start()
	p.untilReady()
	p.signal(unix.SIGTERM)
	p.until("draining", func() bool { return strings.Contains(p.read("journal"), "drain POST") })
	p.signal(unix.SIGTERM)
	if p.exit() != 0 {
		t.Error("the agent did not end well")
	}
	if diff := cmp.Diff([]string{"start", "drain"}, p.journal()); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// TestSignalsOfTheTerminal signals the whole process group, as a terminal does: the proxy
// must get the signal only from the agent, after the drain.
func TestSignalsOfTheTerminal(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.spec.Drain = &agentspec.Drain{URL: "http://${POD_IP}:15000/drain", Seconds: 0}
	p.serve()
	p.start()
	p.untilReady()
	group, err := unix.Getpgid(p.proxyPID())
	if err != nil || group != p.proxyPID() {
		t.Errorf("the proxy is in the process group %d, %v", group, err)
	}
	p.signal(unix.SIGINT)
	if p.exit() != 0 {
		t.Error("the agent did not end well")
	}
	if diff := cmp.Diff([]string{"start", "drain", "SIGTERM"}, p.journal()); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestQuitquitquit(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.serve()
	p.start()
	p.untilReady()
	if status, _ := p.ask("GET", "/quitquitquit"); status != 405 {
		t.Errorf("GET is answered with %d", status)
	}
	// Requests that the proxy forwards from the network come from this address.
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 6)}}
	client := http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
	response, err := client.Post("http://"+p.ip+":15901/quitquitquit", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != 403 {
		t.Errorf("a request through the proxy is answered with %d", response.StatusCode)
	}
	if !p.isReady() {
		t.Fatal("the agent ends on a request that it refused")
	}
	if status, text := p.ask("POST", "/quitquitquit"); status != 200 {
		t.Errorf("POST is answered with %d %s", status, text)
	}
	if code := p.exit(); code != 0 {
		t.Errorf("the agent ended with %d", code)
	}
	if diff := cmp.Diff([]string{"start", "SIGTERM"}, p.journal()); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestExitWith(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("report-of-the-day-%d", os.Getpid())
	if err := os.Symlink(self, p.path(name)); err != nil {
		t.Fatal(err)
	}
	p.serve()
	p.start("--exit-with", name)
	p.untilReady()
	job := exec.Command(p.path(name), asApp)
	if err := job.Start(); err != nil {
		t.Fatal(err)
	}
	// Several rounds of the watch must not shut the agent down.
	select {
	case <-p.ended:
		t.Error("the agent ended before the process")
	case <-time.After(10 * testTimings.Watch):
	}
	if err := job.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = job.Wait()
	if code := p.exit(); code != 0 {
		t.Errorf("the agent ended with %d", code)
	}
	if diff := cmp.Diff([]string{"start", "SIGTERM"}, p.journal()); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// childrenOf returns the states of a process's children, by process ID.
func childrenOf(t *testing.T, parent int) map[int]string {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	states := make(map[int]string)
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue
		}
		// The name in parentheses may contain any character.
		pid, _, _ := strings.Cut(string(text), " ")
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			n, _ := strconv.Atoi(pid)
			states[n] = fields[0]
		}
	}
	return states
}

func TestOrphansAreCollected(t *testing.T) {
	t.Parallel()
	p := newPod(t, "-orphan")
	p.serve()
	p.start()
	p.untilReady()
	m := regexp.MustCompile(`orphan (\d+)`).FindStringSubmatch(p.read("journal"))
	if m == nil {
		t.Fatalf("the proxy has left no process behind: %s", p.read("journal"))
	}
	orphan, _ := strconv.Atoi(m[1])
	alive := func(state string) bool { return state != "" && state != "Z" }
	p.until("alone with its proxy and the orphan", func() bool {
		states := childrenOf(t, p.cmd.Process.Pid)
		return len(states) == 2 && alive(states[p.proxyPID()]) && alive(states[orphan])
	})
	// Processes that a proxy leaves behind are killed, since they may hold ports.
	before := p.proxyPID()
	p.crashProxy()
	p.until("alone with the next proxy", func() bool {
		states := childrenOf(t, p.cmd.Process.Pid)
		return p.proxyPID() != before && alive(states[p.proxyPID()]) && states[orphan] == ""
	})
	p.signal(unix.SIGTERM)
	p.exit()
}

func TestProxyDiesWithTheAgent(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.serve()
	p.start()
	p.untilReady()
	proxy := p.proxyPID()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.exit()
	p.until("dead", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", proxy))
		return err != nil || strings.Contains(string(text), ") Z ")
	})
}

func TestReload(t *testing.T) {
	for name, tt := range map[string]struct {
		reload agentspec.Reload
		want   func(*pod) bool
	}{
		"signal":  {agentspec.Reload{Signal: "HUP"}, func(p *pod) bool { return strings.Contains(p.read("journal"), "SIGHUP") }},
		"command": {agentspec.Reload{Command: []string{"sh", "-c", "echo $POD_NAME >>$RELOADED"}}, func(p *pod) bool { return strings.HasPrefix(p.read("reloaded"), "bookstore-0\n") }},
		// Commands and the proxy see the Spec's variables instead of the container's.
		"environment": {agentspec.Reload{Command: []string{"sh", "-c", "echo $OWN $SHARED >>$RELOADED"}}, func(p *pod) bool {
			environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.proxyPID()))
			return err == nil && strings.HasPrefix(p.read("reloaded"), "own "+podUID+"\n") &&
				strings.Contains(string(environment), "\x00SHARED="+podUID) && strings.Count(string(environment), "SHARED=") == 1
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPod(t)
			p.env["RELOADED"], p.env["SHARED"] = p.path("reloaded"), "the container's"
			p.spec.Env = []agentspec.EnvVar{{Name: "OWN", Value: "own"}, {Name: "SHARED", Value: "${POD_UID}"}}
			p.spec.Reload = &tt.reload
			p.serve()
			p.start()
			p.untilReady()
			if got := p.metric(`outrigger_agent_proxy_reloads_total{result="success"}`); got != "0" {
				t.Errorf("reloads before anything changed: %s", got)
			}
			p.write("ca.crt", string(bundleOf(p.ca, newAuthority(t, "next"))))
			p.until("reloaded", func() bool {
				return tt.want(p) && p.metric(`outrigger_agent_proxy_reloads_total{result="success"}`) == "1"
			})
		})
	}
}

func TestReloadFails(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.spec.Reload = &agentspec.Reload{Command: []string{"sh", "-c", "test -e ${GOOD} || exit 4"}}
	p.env["GOOD"] = p.path("good")
	p.serve()
	p.start()
	p.untilReady()
	p.write("ca.crt", string(bundleOf(p.ca, newAuthority(t, "next"))))
	p.until("counted", func() bool { return p.number(`outrigger_agent_proxy_reloads_total{result="error"}`) >= 2 })
	p.write("good", "")
	p.until("tried again", func() bool { return p.number(`outrigger_agent_proxy_reloads_total{result="success"}`) >= 1 })
	if !p.isReady() || !strings.Contains(p.log.String(), "exit code 4") {
		t.Error("a failed reload ends the proxy, or is not logged")
	}
}

func TestFilesThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.write("file", "")
	p.spec.Files = []agentspec.File{{Path: p.path("file/in/a/file"), Content: "x"}}
	p.serve()
	p.start()
	if code := p.exit(); code != 1 || !strings.Contains(p.log.String(), p.path("file/in/a/file")) {
		t.Errorf("the agent ended with %d: %s", code, p.log)
	}
}

func TestPlaintextPodStaysReady(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.spec.DisabledMTLS = true
	p.service.life = time.Second
	p.serve()
	p.start()
	p.untilReady()
	p.service.stop()
	p.untilEnd()
	if status, text := p.ask("GET", "/ready"); status != 200 {
		t.Errorf("/ready: %d %s", status, text)
	}
}
