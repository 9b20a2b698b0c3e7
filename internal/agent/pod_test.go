package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// pod stands in for a sidecar container: an agent with its folders, a signing service, and
// its own loopback address.
type pod struct {
	t       testing.TB
	dir     string
	self    string
	ip      string
	ca      *authority
	service *signingService
	env     map[string]string
	spec    agentspec.Spec
	flags   []string
	// launch starts the agent's process and dial connects to it; nil for the defaults.
	launch func(*exec.Cmd) error
	dial   func(ctx context.Context, network, address string) (net.Conn, error)

	cmd   *exec.Cmd
	log   *logBuffer
	ended chan struct{}
}

var podIdentity = mesh.Identity{TrustDomain: "cluster.local", Namespace: "bookstore", ServiceAccount: "book.store"}

const podUID = "6f1c1c4e-8c0f-4b57-9a77-0a3c1f1f2f10"

// newPod returns a pod whose proxy is this program, run as a proxy with the flags. Nothing
// is running yet. The trust bundle is mounted.
func newPod(t testing.TB, proxyFlags ...string) *pod {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{
		t: t, dir: t.TempDir(), self: self,
		// All of 127.0.0.0/8 is local, so tests need not share ports.
		ip:     fmt.Sprintf("127.%d.%d.%d", 1+rand.N(250), rand.N(250), 1+rand.N(250)),
		ca:     newAuthority(t, "root"),
		launch: startChild,
	}
	p.service = newSigningService(t, p.ip+":15129", p.ca)
	p.spec = agentspec.Spec{
		Command:  append([]string{self, asProxy, "-admin", "${POD_IP}:15000", "-journal", p.path("journal")}, proxyFlags...),
		ReadyURL: "http://${POD_IP}:15000/ready",
	}
	p.env = map[string]string{
		agentspec.EnvController: controllerHost, agentspec.EnvTrustDomain: podIdentity.TrustDomain,
		agentspec.EnvPodName: "bookstore-0", agentspec.EnvPodNamespace: podIdentity.Namespace,
		agentspec.EnvPodUID: podUID, agentspec.EnvPodIP: p.ip, agentspec.EnvServiceAccount: podIdentity.ServiceAccount,
	}
	p.flags = []string{
		"--listen", p.ip + ":15901", "--identity-address", p.ip + ":15129", "--identity-dir", p.path("identity"),
		"--token-file", p.path("token"), "--bundle-file", p.path("ca.crt"),
	}
	p.write("token", "token-1\n")
	p.write("ca.crt", string(bundleOf(p.ca)))
	return p
}

func (p *pod) path(name string) string { return filepath.Join(p.dir, name) }

// write atomically writes a file to the pod's folder.
func (p *pod) write(name, content string) {
	p.t.Helper()
	if err := kit.WriteFile(p.path(name), strings.NewReader(content), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pod) read(name string) string {
	text, err := os.ReadFile(p.path(name))
	if err != nil && !os.IsNotExist(err) {
		p.t.Error(err)
	}
	return string(text)
}

// serve starts the signing service.
func (p *pod) serve() { p.t.Helper(); p.service.start(p.t, p.ca) }

// start starts the agent.
func (p *pod) start(flags ...string) {
	p.t.Helper()
	value, err := agentspec.EnvValue(p.spec)
	if err != nil {
		p.t.Fatal(err)
	}
	p.env[agentspec.EnvSpec] = value
	p.run(p.self, append(append([]string{asAgent, "run"}, p.flags...), flags...))
}

// starts are executed on a thread that does not end. The kernel takes the end of the thread that
// started a process for that of its parent (Pdeathsig), and threads in the networks of other
// tests end with them.
var starts = func() chan<- func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for start := range c {
			start()
		}
	}()
	return c
}()

func startChild(cmd *exec.Cmd) error {
	done := make(chan error, 1)
	starts <- func() { done <- cmd.Start() }
	return <-done
}

func (p *pod) run(program string, args []string) {
	p.t.Helper()
	p.log = new(logBuffer)
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH"))
	for name, value := range p.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	// A proxy that outlives its agent must not keep the test waiting for its output.
	cmd.WaitDelay = time.Second
	// Leave no process behind even if the test is killed.
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := p.launch(cmd); err != nil {
		p.t.Fatal(err)
	}
	ended := make(chan struct{})
	p.cmd, p.ended = cmd, ended
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	p.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if p.t.Failed() {
			p.t.Logf("the agent's log:\n%s\nthe proxy's journal:\n%s", p.log, p.read("journal"))
		}
	})
}

// signal sends the agent a signal.
func (p *pod) signal(s unix.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// exit waits until the agent exits and returns its exit code.
func (p *pod) exit() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(deadline):
		p.t.Fatal("the agent does not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

// ask sends a request to the agent and returns the answer's status and text. The status is
// 0 if there is no answer.
func (p *pod) ask(method, path string) (int, string) {
	request, err := http.NewRequest(method, "http://"+p.ip+":15901"+path, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	client := http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, DialContext: p.dial},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, strings.TrimSpace(string(text))
}

// isReady reports whether /ready answers 200.
func (p *pod) isReady() bool { status, _ := p.ask("GET", "/ready"); return status == 200 }

// metric returns a metric's value.
func (p *pod) metric(name string) string {
	_, text := p.ask("GET", "/metrics")
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// deadline is longer than any step takes on a busy machine.
const deadline = time.Minute

// until waits until the condition holds. Most conditions ask the agent, so it looks less often
// the longer it waits.
func (p *pod) until(what string, holds func() bool) {
	p.t.Helper()
	for began := time.Now(); !holds(); time.Sleep(5*time.Millisecond + min(time.Since(began)/20, 50*time.Millisecond)) {
		if time.Since(began) > deadline {
			p.t.Fatalf("after %v: not %s", deadline, what)
		}
	}
}

// untilReady waits for /ready.
func (p *pod) untilReady() { p.t.Helper(); p.until("ready", p.isReady) }

// files are the identity files as seen by a reader that resolves ..data once.
type files struct {
	pair   tls.Certificate
	leaf   *x509.Certificate
	bundle []byte
}

// identity reads the identity files and checks that they match. The certificate may have
// expired.
func (p *pod) identity() (*files, error) {
	generation, err := os.Readlink(p.path("identity/..data"))
	if err != nil {
		return nil, err
	}
	read := func(name string) []byte {
		b, readErr := os.ReadFile(filepath.Join(p.path("identity"), generation, name))
		if readErr != nil {
			err = readErr
		}
		return b
	}
	key, chain, bundle := read("key.pem"), read("chain.pem"), read("bundle.pem")
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return nil, fmt.Errorf("there is no root in %q", bundle)
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{
		Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}, CurrentTime: pair.Leaf.NotBefore.Add(time.Second),
	}); err != nil {
		return nil, err
	}
	return &files{pair, pair.Leaf, bundle}, nil
}

// mustIdentity is like identity but fails the test on an error.
func (p *pod) mustIdentity() *files {
	p.t.Helper()
	f, err := p.identity()
	if err != nil {
		p.t.Fatal(err)
	}
	return f
}

// untilEnd waits until the certificate in the files has expired.
func (p *pod) untilEnd() {
	p.t.Helper()
	p.until("the certificate's end", func() bool { return time.Now().After(p.mustIdentity().leaf.NotAfter) })
}

// logBuffer is a buffer that is safe for use by several goroutines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
