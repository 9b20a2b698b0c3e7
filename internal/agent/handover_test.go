package agent

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/capture"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// upgradable is a pod whose proxy is found by name: each version is a folder with a script.
type upgradable struct {
	*pod
	network *network
}

// newUpgradable starts an agent with version v1 of the proxy, in a network of its own.
func newUpgradable(t *testing.T) *upgradable {
	t.Helper()
	return newUpgradableWith(t, "")
}

// newUpgradableWith gives v1 additional flags.
func newUpgradableWith(t *testing.T, flags string) *upgradable {
	t.Helper()
	n := newNetwork(t)
	u := &upgradable{newPod(t), n}
	u.dial = n.dial
	u.launch = u.asProxyUser
	u.self = u.path("agent")
	if err := copyProgram(u.self); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Dir(u.dir), u.dir} {
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	u.spec.Command[0] = "the-proxy"
	u.spec.Upgrade = &agentspec.Upgrade{URL: "http://${POD_IP}:15000/drain", Seconds: 3600}
	u.flags = append(u.flags, "--successor-socket", u.path("successor.sock"))
	u.spec.OnDemand = &agentspec.OnDemand{Known: "127.0.0.1:15004", Outside: "127.0.0.1:15005"}
	u.version("v1", flags)
	if err := n.in(func() error { u.serve(); return nil }); err != nil {
		t.Fatal(err)
	}
	u.env["PATH"] = u.path("v1") + ":" + os.Getenv("PATH")
	u.start()
	u.untilReady()
	return u
}

func (u *upgradable) asProxyUser(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{Uid: capture.DefaultUID, Gid: capture.DefaultUID},
	}
	return u.network.in(cmd.Start)
}

// version makes a version of the proxy, which gets additional flags.
func (u *upgradable) version(name, flags string) {
	u.t.Helper()
	if err := os.MkdirAll(u.path(name), 0o755); err != nil {
		u.t.Fatal(err)
	}
	script := "#!/bin/sh\nexec " + u.self + ` "$@" -shared -socket ` + u.path("proxy.sock") + " -version " + name + " " + flags + "\n"
	if err := kit.WriteFile(u.path(name+"/the-proxy"), strings.NewReader(script), 0o755); err != nil {
		u.t.Fatal(err)
	}
}

// container starts a container with a version of the proxy. Its log is its own.
func (u *upgradable) container(version string) *pod {
	u.t.Helper()
	c := &pod{t: u.t, dir: u.dir, self: u.self, launch: u.asProxyUser, env: map[string]string{"PATH": u.path(version) + ":" + os.Getenv("PATH")}}
	c.run(u.self, []string{asAgent, "successor", "--socket", u.path("successor.sock")})
	return c
}

// takenOver starts a container, and returns when its proxy has taken over.
func (u *upgradable) takenOver(version string) *pod {
	u.t.Helper()
	c := u.container(version)
	u.until("taken over", func() bool { return strings.Contains(c.log.String(), "has taken over") })
	return c
}

// get returns the answer of the proxy on a new connection, getAt that at another address, and
// atSocket that of its Unix socket.
func (u *upgradable) get(path string) string { return u.getAt(u.ip+":15000", path) }

func (u *upgradable) getAt(address, path string) string {
	client := http.Client{Timeout: deadline, Transport: &http.Transport{DisableKeepAlives: true, DialContext: u.dial}}
	response, err := client.Get("http://" + address + path)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (u *upgradable) atSocket() string {
	conn, err := net.Dial("unix", u.path("proxy.sock"))
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	text, err := io.ReadAll(conn)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// isServedBy waits until a version answers, and then checks that no other does.
func (u *upgradable) isServedBy(version string) {
	u.t.Helper()
	u.until("served by "+version, func() bool { return u.get("/version") == version })
	for range 20 {
		if got := u.get("/version"); got != version {
			u.t.Fatalf("served by %q, want %s", got, version)
		}
	}
	if got := u.atSocket(); got != version {
		u.t.Errorf("the Unix socket is served by %q, want %s", got, version)
	}
}

// keep opens a connection to the proxy and uses it once. The proxy keeps it open.
func (u *upgradable) keep() {
	u.t.Helper()
	conn, err := u.dial(u.t.Context(), "tcp", u.ip+":15000")
	if err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, "GET /version HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		u.t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		u.t.Fatal(err)
	}
	response.Body.Close()
}

func (u *upgradable) untilOver() {
	u.t.Helper()
	u.until("over", func() bool { return strings.Contains(u.log.String(), "the former process of the proxy has ended") })
}

// TestUpgrade upgrades the proxy twice. The requests of the former one are answered.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	u := newUpgradable(t)
	slow := make(chan string)
	go func() { slow <- u.get("/slow") }()
	u.version("v2", "")
	second := u.takenOver("v2")
	u.isServedBy("v2")
	if got := <-slow; got != "v1" {
		t.Errorf("the request that was open is answered with %q, want v1", got)
	}
	u.untilOver()
	u.isServedBy("v2")
	if journal := u.read("journal"); !strings.Contains(journal, "drain POSTv1") || strings.Contains(journal, "POSTv2") {
		t.Errorf("only v1 should have been drained: %s", journal)
	}
	if !u.isReady() {
		t.Error("the pod is not ready")
	}

	u.version("v3", "")
	third := u.takenOver("v3")
	if code := second.exit(); code != 0 {
		t.Errorf("the container that is not needed any longer ended with %d: %s", code, second.log)
	}
	u.isServedBy("v3")
	if got := u.metric(`outrigger_agent_proxy_upgrades_total{result="success"}`); got != "2" {
		t.Errorf("upgrades are counted as %q", got)
	}

	u.signal(syscall.SIGTERM)
	if code := u.exit(); code != 0 {
		t.Errorf("the agent ended with %d", code)
	}
	if code := third.exit(); code != 0 {
		t.Errorf("the last container ended with %d: %s", code, third.log)
	}
	if got := u.get("/version"); !strings.Contains(got, "refused") {
		t.Errorf("after the agent's end the proxy answers %q", got)
	}
	if left, _ := filepath.Glob(u.path(".former-*")); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}

// TestUpgradeFails has new versions that can't take over. The former one goes on.
func TestUpgradeFails(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct{ flags, reason string }{
		"unready":  {"-gate /no/such/file", "answered 503"},
		"crashing": {"-crash", "exit code 7"},
		"deaf":     {"-admin 127.0.0.1:15099", "does not listen on"},
		"missing":  {"", "not found"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpgradable(t)
			u.version(name, want.flags)
			if name == "missing" {
				if err := os.Remove(u.path("missing/the-proxy")); err != nil {
					t.Fatal(err)
				}
			}
			c := u.container(name)
			if code := c.exit(); code != exitFailed {
				t.Errorf("the container ended with %d", code)
			}
			if !strings.Contains(c.log.String(), want.reason) {
				t.Errorf("the container's log does not say %q: %s", want.reason, c.log)
			}
			u.isServedBy("v1")
			if !u.isReady() {
				t.Error("the pod is not ready")
			}
			if got := u.metric(`outrigger_agent_proxy_upgrades_total{result="error"}`); got != "1" {
				t.Errorf("failed upgrades are counted as %q", got)
			}
			// Another one can.
			u.version("v2", "")
			u.takenOver("v2")
			u.isServedBy("v2")
		})
	}
}

// TestUpgradeReturns ends a new version that has taken over. The agent returns to its own.
func TestUpgradeReturns(t *testing.T) {
	t.Parallel()
	crash := func(u *upgradable, _ *pod) { u.get("/crash?code=5") }
	kill := func(_ *upgradable, c *pod) { c.signal(syscall.SIGKILL) }
	for name, tt := range map[string]struct {
		end func(u *upgradable, c *pod)
		// busy: the former process has a connection, so it does not end.
		busy bool
	}{
		"proxy":                      {end: crash},
		"container":                  {end: kill},
		"proxy, the former is busy":  {crash, true},
		"container, the former busy": {kill, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpgradable(t)
			if tt.busy {
				u.keep()
			}
			u.version("v2", "")
			c := u.takenOver("v2")
			u.isServedBy("v2")
			tt.end(u, c)
			u.until("restarted", func() bool { return u.metric("outrigger_agent_proxy_restarts_total") == "1" })
			u.until("there again", func() bool { return u.atSocket() == "v1" })
			u.isServedBy("v1")
			u.untilReady()
			if code := c.exit(); code == 0 {
				t.Error("the container ended with 0")
			}
			if tt.busy {
				return
			}
			u.untilOver()
			u.isServedBy("v1")
		})
	}
}

// TestUpgradeOfOnDemand has versions of which one listens to the agent, because it gets services on
// demand or got them once, and the other does not.
func TestUpgradeOfOnDemand(t *testing.T) {
	t.Parallel()
	const also = "-also 127.0.0.1:15004"
	for name, versions := range map[string][2]string{"not any more": {also, ""}, "lately": {"", also}, "always": {also, also}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpgradableWith(t, versions[0])
			u.version("v2", versions[1])
			u.takenOver("v2")
			u.untilOver()
			u.isServedBy("v2")
			answer := u.getAt("127.0.0.1:15004", "/version")
			if versions[1] != "" && answer != "v2" || versions[1] == "" && !strings.Contains(answer, "refused") {
				t.Errorf("where only the agent connects, the answer is %q", answer)
			}
		})
	}
}

// TestUpgradeOfBusy has a connection to the first version, which therefore does not end by itself:
// neither another version nor the end of the pod waits for it.
func TestUpgradeOfBusy(t *testing.T) {
	t.Parallel()
	u := newUpgradable(t)
	u.keep()
	u.version("v2", "")
	u.takenOver("v2")
	u.version("v3", "")
	u.keep()
	third := u.takenOver("v3")
	u.isServedBy("v3")
	began := time.Now()
	u.signal(syscall.SIGTERM)
	if code := u.exit(); code != 0 {
		t.Errorf("the agent ended with %d", code)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the agent took %v to end", took)
	}
	if code := third.exit(); code != 0 {
		t.Errorf("the last container ended with %d: %s", code, third.log)
	}
}

// TestSuccessorIgnoresTerm checks that the container stays until the agent ends, which drains
// the proxy.
func TestSuccessorIgnoresTerm(t *testing.T) {
	t.Parallel()
	u := newUpgradable(t)
	u.version("v2", "")
	c := u.takenOver("v2")
	c.signal(syscall.SIGTERM)
	time.Sleep(200 * time.Millisecond)
	u.untilOver()
	u.isServedBy("v2")
}
