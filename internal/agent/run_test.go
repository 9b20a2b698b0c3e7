package agent

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

func TestRun(t *testing.T) {
	t.Parallel()
	p := newPod(t, "-gate", "${GATE}")
	p.env["GATE"] = p.path("gate")
	p.spec.Files = []agentspec.File{{Path: p.path("run/deep/proxy.yaml"), Content: "id: ${POD_UID}\nkeep: $x ${ $1\n"}}
	p.serve()
	p.start()
	p.until("started", func() bool { return strings.HasPrefix(p.read("journal"), "start ") })

	if got, want := p.read("run/deep/proxy.yaml"), "id: "+podUID+"\nkeep: $x ${ $1\n"; got != want {
		t.Errorf("the proxy's file holds %q, want %q", got, want)
	}
	if status, text := p.ask("GET", "/ready"); status != 503 || !strings.Contains(text, "the proxy is not ready") {
		t.Errorf("/ready before the proxy has its configuration: %d %s", status, text)
	}
	p.write("gate", "")
	p.untilReady()
	if err := os.Remove(p.path("gate")); err != nil {
		t.Fatal(err)
	}
	if !p.isReady() {
		t.Error("a proxy that was ready once is not ready any more")
	}
	if status, text := p.ask("GET", "/alive"); status != 200 {
		t.Errorf("/alive: %d %s", status, text)
	}
	p.signal(unix.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("the agent ended with %d", code)
	}
	if !strings.HasSuffix(p.read("journal"), "SIGTERM\n") {
		t.Error("the proxy did not get SIGTERM")
	}
}
