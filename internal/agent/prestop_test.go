package agent

import (
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"golang.org/x/sys/unix"
)

// TestPreStopHookOutlivesSIGTERM stops an agent in an ordinary container, which the kubelet does
// while it waits for the app's preStop hook. The app may need its proxy for that.
func TestPreStopHookOutlivesSIGTERM(t *testing.T) {
	var called atomic.Bool
	release := make(chan struct{})
	app := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called.Store(true); <-release }))
	defer app.Close()
	p := newPod(t)
	p.env[agentspec.EnvPodIP] = "127.0.0.1"
	p.spec.ReadyURL, p.spec.Command = "", []string{"sleep", "600"}
	p.spec.Probes = append(p.spec.Probes, agentspec.Probe{
		Path: "/app-lifecycle/app/preStop", Kind: agentspec.HTTP, Hook: agentspec.PreStop,
		Port: int32(app.Listener.Addr().(*net.TCPAddr).Port),
	})
	p.serve()
	p.start()
	p.untilReady()
	answer := make(chan int, 1)
	go func() { status, _ := p.ask("GET", "/app-lifecycle/app/preStop"); answer <- status }()
	p.until("called", called.Load)
	p.signal(unix.SIGTERM)
	time.Sleep(1500 * time.Millisecond)
	if status, text := p.ask("GET", "/alive"); status != 200 {
		t.Errorf("while the hook runs, the agent answers %d %s", status, text)
	}
	close(release)
	if status := <-answer; status != 200 {
		t.Errorf("the hook ends with %d", status)
	}
	if code := p.exit(); code != 0 {
		t.Errorf("the agent ends with %d", code)
	}
}
