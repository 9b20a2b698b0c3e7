package repo

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// pipyProgram returns where Pipy is: $PIPY, or in PATH.
func pipyProgram(t *testing.T) string {
	t.Helper()
	program := os.Getenv("PIPY")
	if program == "" {
		program = "pipy"
	}
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("NOT TESTED with a real Pipy: %v; build it from source and set PIPY to it", err)
	}
	return path
}

// log is what a program prints.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// startPipy runs Pipy from the repository with a certificate, as a user does by hand.
func (h *harness) startPipy(t *testing.T, program, uid string, arguments ...string) *log {
	t.Helper()
	dir := t.TempDir()
	certificate := h.ca.workload(t, proxyOf(uid), time.Hour)
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"key.pem":        pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		"chain.pem":      pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}),
		"repository.pem": h.RepositoryRoot(),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	output := new(log)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	command := exec.CommandContext(ctx, program, append([]string{
		"--tls-cert=" + filepath.Join(dir, "chain.pem"), "--tls-key=" + filepath.Join(dir, "key.pem"),
		"--tls-trusted=" + filepath.Join(dir, "repository.pem"), h.url(uid),
	}, arguments...)...)
	command.Stdout, command.Stderr, command.Dir = output, output, dir
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = command.Wait()
		if t.Failed() {
			t.Logf("Pipy said:\n%s", output)
		}
	})
	return output
}

// TestStockPipy starts a Pipy by hand: it runs the program of the repository, and runs
// another one soon after a file has changed.
func TestStockPipy(t *testing.T) {
	t.Parallel()
	program := pipyProgram(t)
	c := newCore(t)
	port := freePort(t)
	script := func(answer string) []string {
		return []string{
			testMain, fmt.Sprintf("import { answer } from './answer.js'\n"+
				"pipy.listen('127.0.0.1:%d', $=>$.serveHTTP(() => new Message(answer + pipy.load('config/x.txt').toString())))\n", port),
			"answer.js", "export var answer = '" + answer + "'\n",
			"config/x.txt", " of x",
		}
	}
	first := c.set("a", script("one")...)
	h := c.serve(t)
	h.startPipy(t, program, "a", "--log-level=debug")

	eventually(t, "the program runs", func() bool { return get(port) == "one of x" })
	eventually(t, "Pipy says what it runs", func() bool { return c.told("acked "+mirror.Version(first)) == 1 })
	eventually(t, "Pipy has a WebSocket", func() bool { return h.sockets("a") == 1 })
	began := time.Now()
	second := c.set("a", script("two")...)
	eventually(t, "the changed program runs", func() bool { return get(port) == "two of x" })
	t.Logf("a change took %v", time.Since(began).Round(time.Millisecond))
	eventually(t, "Pipy says what it runs", func() bool { return c.told("acked "+mirror.Version(second)+" timed") == 1 })
	if n := c.told("connect shop/pod-a a"); n != 1 {
		t.Errorf("the proxy has connected %d times: %q", n, c.events)
	}
}

// sockets returns how many WebSockets the proxy has.
func (h *harness) sockets(uid string) int {
	for _, s := range h.server.each() {
		if s.peer.ProxyUID == uid {
			s.stock.mu.Lock()
			defer s.stock.mu.Unlock()
			return s.stock.sockets
		}
	}
	return 0
}

// get returns what the program on the port answers, or what went wrong.
func get(port int) string {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return string(body)
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// TestStockPipyRefuses gives a Pipy a program that can't be run: it goes on with the one
// that it has, and the registry is told whose fault that is.
func TestStockPipyRefuses(t *testing.T) {
	t.Parallel()
	program := pipyProgram(t)
	if testing.Short() {
		t.Skip("it waits for the status that Pipy reports every few seconds")
	}
	c := newCore(t)
	port := freePort(t)
	script := fmt.Sprintf("pipy.listen('127.0.0.1:%d', $=>$.serveHTTP(() => new Message('good')))\n", port)
	first := c.set("a", testMain, script)
	h := c.serve(t)
	h.startPipy(t, program, "a")
	eventually(t, "Pipy says what it runs", func() bool { return c.told("acked "+mirror.Version(first)) == 1 })
	second := c.set("a", testMain, script+"this is no script")
	eventually(t, "the registry is told", func() bool { return len(c.refusals()) == 1 })
	if refused := c.refusals()[0]; refused.Version != mirror.Version(second) || len(refused.Objects) != 1 || refused.Objects[0].Name != testMain {
		t.Errorf("the registry is told %+v", refused)
	}
	if got := get(port); got != "good" {
		t.Errorf("the program answers %q", got)
	}
	third := c.set("a", testMain, script+"// mended\n")
	eventually(t, "Pipy says what it runs", func() bool { return c.told("acked "+mirror.Version(third)+" timed") == 1 })
}

// TestStockPipyLosesTheController has a Pipy go on while there is no controller, and
// follow the next one.
func TestStockPipyLosesTheController(t *testing.T) {
	t.Parallel()
	program := pipyProgram(t)
	if testing.Short() {
		t.Skip("it waits for Pipy to look again, which it does every few seconds")
	}
	c := newCore(t)
	port := freePort(t)
	script := func(answer string) string {
		return fmt.Sprintf("pipy.listen('127.0.0.1:%d', $=>$.serveHTTP(() => new Message('%s')))\n", port, answer)
	}
	c.set("a", testMain, script("one"))
	h := c.serve(t)
	output := h.startPipy(t, program, "a")
	eventually(t, "the program runs", func() bool { return get(port) == "one" })
	h.end()
	next := newCore(t)
	next.ca = c.ca
	same := next.set("a", testMain, script("one"))
	if got := get(port); got != "one" {
		t.Errorf("without a controller the program answers %q", got)
	}
	other := next.serveAt(t, h.address)
	eventually(t, "Pipy has come back", func() bool { return other.sockets("a") == 1 })
	next.set("a", testMain, script("two"))
	eventually(t, "the next program runs", func() bool { return get(port) == "two" })
	if n := strings.Count(output.String(), "Codebase reloaded"); n != 1 {
		t.Errorf("Pipy has reloaded %d times, of which version %s was no reason", n, mirror.Version(same))
	}
}
