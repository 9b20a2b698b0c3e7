package agent

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// TestWithoutProxy runs the agent for an application that uses the identity itself.
func TestWithoutProxy(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	p.spec = agentspec.Spec{ShareIdentity: true, Drain: &agentspec.Drain{Seconds: 60}}
	p.start()
	p.until("asked", func() bool { status, _ := p.ask("GET", "/ready"); return status != 0 })
	if status, text := p.ask("GET", "/ready"); status != 503 || !strings.Contains(text, "no certificate yet") {
		t.Errorf("/ready before there is a certificate: %d %s", status, text)
	}
	p.serve()
	p.untilReady()
	p.mustIdentity()
	if status, text := p.ask("GET", "/alive"); status != 200 {
		t.Errorf("/alive: %d %s", status, text)
	}
	for name, mode := range map[string]os.FileMode{
		"": 0o750, "..data": 0o750, "key.pem": 0o640, "chain.pem": 0o644, "bundle.pem": 0o644, "identity.pem": 0o640,
	} {
		info, err := os.Stat(p.path("identity/" + name))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%q has the mode %v, %v, want %v", name, info, err, mode)
		}
	}
	p.signal(unix.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("the agent ended with %d", code)
	}
}
