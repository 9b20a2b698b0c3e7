package probe

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// hook calls a lifecycle hook of the app as the kubelet would. It has no timeout and accepts
// every status, so an error means that there was no answer.
func (p *prober) hook(ctx context.Context, probe agentspec.Probe, header http.Header) (int, error) {
	response, err := p.get(ctx, probe, header)
	if errors.Is(err, http.ErrSchemeMismatch) {
		// The kubelet sends it again without TLS, and without what must not be sent in
		// plaintext.
		probe.Scheme = "HTTP"
		probe.Headers = slices.DeleteFunc(slices.Clone(probe.Headers), func(h agentspec.Header) bool {
			return strings.EqualFold(h.Name, "Authorization")
		})
		response, err = p.get(ctx, probe, header)
	}
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	// The kubelet ignores errors of the body.
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxProbeBody))
	// A status below 200 cannot be passed on.
	return max(response.StatusCode, http.StatusOK), nil
}

// hooks knows which preStop hooks of the app have not been called yet, and which run. The
// kubelet calls them while it stops an ordinary sidecar container, and they need this agent.
type hooks struct {
	mu      sync.Mutex
	due     map[string]bool // by path
	running int
	late    time.Time     // until when those that are due are waited for
	changed chan struct{} // closed at the next change
}

func newHooks(probes []agentspec.Probe) *hooks {
	h := &hooks{due: make(map[string]bool), changed: make(chan struct{})}
	for _, p := range probes {
		if p.Hook == agentspec.PreStop {
			h.due[p.Path] = true
		}
	}
	return h
}

func (h *hooks) begin(path string) {
	h.change(func() { delete(h.due, path); h.running++ })
}

func (h *hooks) end() {
	h.change(func() { h.running-- })
}

func (h *hooks) change(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	close(h.changed)
	h.changed = make(chan struct{})
}

// finish waits until no hook runs. Those that have not been called may begin until some time
// after the first call of finish. A closed force ends the wait.
func (h *hooks) finish(arrival time.Duration, force <-chan struct{}) {
	for {
		h.mu.Lock()
		if h.late.IsZero() {
			h.late = time.Now().Add(arrival)
		}
		running, due, left, changed := h.running, len(h.due), time.Until(h.late), h.changed
		h.mu.Unlock()
		var late <-chan time.Time
		if running == 0 {
			if due == 0 || left <= 0 {
				return
			}
			late = time.After(left)
		}
		select {
		case <-changed:
		case <-late:
		case <-force:
			return
		}
	}
}
