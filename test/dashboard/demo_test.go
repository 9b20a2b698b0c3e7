package dashboard_test

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/outrigger-mesh/outrigger/test/compile"
)

// buildDemo compiles the demo's programs, and returns their folder.
func buildDemo(t *testing.T) string {
	t.Helper()
	root := filepath.Join("..", "..")
	bin := t.TempDir()
	if err := compile.Build(t.Context(), compile.Options{
		Folder: root, Packages: []string{"./cmd/outrigger-lab", "./cmd/outrigger-agent", "./samples/bookstore"}, Output: bin + "/",
		// The agent runs in images without a C library.
		Env: []string{"CGO_ENABLED=0"},
	}); err != nil {
		t.Fatal(err)
	}
	return bin
}

// startDemo runs 'outrigger-lab demo' with sidecars of the class until the test ends, and returns
// the addresses of its dashboard and its debug pages, or "" if a proxy of the class is missing. The test is skipped
// if this machine cannot have the pods.
func startDemo(t *testing.T, bin, class string) (dashboard, debug string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "outrigger-lab"), "demo", "--class", class, "--debug-listen", "127.0.0.1:0")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var lines []string
	dashboards, debugs := make(chan string, 1), make(chan string, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		scanner := bufio.NewScanner(out)
		for scanner.Scan() {
			lines = append(lines, scanner.Text())
			if _, address, ok := strings.Cut(scanner.Text(), "The dashboard is at "); ok {
				dashboards <- address
			}
			if _, address, ok := strings.Cut(scanner.Text(), "outrigger tap -A --debug-address "); ok {
				debugs <- address
			}
		}
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		if t.Failed() {
			t.Logf("the demo's output:\n%s\n%s", strings.Join(lines, "\n"), problems.String())
		}
	})
	select {
	case debug = <-debugs:
		// It comes last.
		return <-dashboards, debug
	case <-ended:
		switch {
		case strings.Contains(problems.String(), "cannot run here"):
			t.Skip("SKIPPED: " + problems.String())
		case !strings.Contains(problems.String(), "sidecar class"):
			t.Fatal("the demo has ended")
		}
	}
	return "", ""
}

// outrigger runs a command with the debug pages of the demo, and returns its output and exit
// code.
func outrigger(t *testing.T, bin, debug string, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "outrigger-lab"), append(args, "--debug-address", debug)...)
	out, err := cmd.Output()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// TestDemo looks at the bookstore while its split moves, with three classes of sidecars if
// their proxies are on this machine.
func TestDemo(t *testing.T) {
	b := newBrowser(t)
	bin := buildDemo(t)
	classes := map[string]string{"envoy": "bookbuyer/bookbuyer", "haproxy": "bookwarehouse/bookwarehouse", "pipy": "bookthief/bookthief"}
	address, debug := startDemo(t, bin, "mixed")
	if address == "" {
		t.Log("SKIPPED: a mesh with three classes of sidecars, of which one has no proxy here; there is only Envoy")
		classes = map[string]string{"envoy": "bookbuyer/bookbuyer"}
		address, debug = startDemo(t, bin, "envoy")
	}
	if address == "" {
		t.Skip("SKIPPED: there is no Envoy")
	}
	b.open(address)

	const v1, v2 = "s:bookstore/bookstore-v1", "s:bookstore/bookstore-v2"
	b.line("call", "w:bookbuyer/bookbuyer", v1, "🔒", time.Minute)
	b.line("call", "w:bookbuyer/bookbuyer", v2, "🔒", time.Minute)
	b.line("call", "w:bookstore/bookstore-v1", "s:bookwarehouse/bookwarehouse", "🔒", time.Minute)
	refused := b.line("refused", "w:bookthief/bookthief", "r:bookthief/bookthief", "refused", time.Minute)
	b.choose(refused.ID)
	b.sees(".details", "TrafficTarget")
	b.shoot("dashboard-graph.png")
	b.do(chromedp.KeyEvent(kb.Escape))

	if out, code := outrigger(t, bin, debug, "tap", "-n", "bookthief", "--refused", "--max", "1"); code != 0 || !strings.Contains(out, "bookthief/bookthief-0 -> nobody") {
		t.Errorf("tap ends with %d and shows %q", code, out)
	}
	if out, code := outrigger(t, bin, debug, "why", "bookthief/bookthief-0"); code != 3 || !strings.Contains(out, "The sidecar of bookthief/bookthief-0 has refused it") {
		t.Errorf("why ends with %d and says %q", code, out)
	}

	// The demo moves the split to 50:50 and then to v2 alone.
	b.line("split", "s:bookstore/bookstore", v2, "50 %", 2*time.Minute)
	b.do(chromedp.KeyEvent("3"))
	b.sees(".splitcard", "bookstore-v1 50 %")
	b.shoot("dashboard-split.png")
	b.do(chromedp.KeyEvent("1"))
	b.line("split", "s:bookstore/bookstore", v2, "100 %", 2*time.Minute)

	for class, workload := range classes {
		found := eval[string](b, fmt.Sprintf("document.querySelector('.graph')._cyreg.cy.getElementById(%q).classes().join(' ')", "w:"+workload))
		if !strings.Contains(found, "class-"+class) {
			t.Errorf("%s has %q, want the class %s", workload, found, class)
		}
	}
	server, _, _ := strings.Cut(address, "/?")
	b.check(server)
}
