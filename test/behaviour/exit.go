package behaviour

import (
	"strings"
	"testing"
)

// exitLine is what an agent logs when a process of its proxy has exited by itself.
const exitLine = "the proxy exited; restarting it"

// exits returns how often each sidecar's proxy has exited by itself.
func (l *logs) exits() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := map[string]int{}
	for name, text := range l.text {
		if count := strings.Count(text.String(), exitLine); count > 0 {
			n[name] = count
		}
	}
	return n
}

// mayExit says that the row itself ends processes of proxies.
func (w *testMesh) mayExit() { w.exitsExpected = true }

// checkExits fails the test if a proxy has exited since the last call, unless the row has
// called mayExit. An agent may log it a moment late, and then the next row fails.
func (w *testMesh) checkExits(t *testing.T) {
	t.Helper()
	for name, n := range w.logs.exits() {
		if n > w.exited[name] && !w.exitsExpected {
			t.Errorf("the proxy of %s has exited by itself %d times", name, n-w.exited[name])
		}
		w.exited[name] = n
	}
	w.exitsExpected = false
}
