package rollout

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// newTestPoller returns a poller whose request has just been answered.
func newTestPoller() *poller {
	p := newPoller(nil, func() {}, kit.DefaultTimings, slog.New(slog.DiscardHandler), new(kit.Metrics))
	p.cancel = func() {}
	return p
}

func TestPollBackoff(t *testing.T) {
	p := newTestPoller()
	pause := func() time.Duration { return time.Until(p.next) }
	for i, most := range []time.Duration{200, 400, 800, 1600, 3200, 5000, 5000} {
		most *= time.Millisecond
		p.failRequest(errors.New("nobody is there"))
		if got := pause(); got > most || got < most/2-100*time.Millisecond {
			t.Errorf("the pause after failure %d is %v, want one up to %v", i+1, got, most)
		}
	}
	p.succeeded()
	p.failRequest(errors.New("nobody is there"))
	if got := pause(); got > 200*time.Millisecond {
		t.Errorf("the pause after a success and a failure is %v", got)
	}
	for after, least := range map[time.Duration]time.Duration{time.Second: time.Second, time.Hour: 5 * time.Second} {
		p.failRequest(fmt.Errorf("asking: %w", &mirror.Error{Code: 503, RetryAfter: after}))
		if got := pause(); got < least-100*time.Millisecond || got > least*3/2 {
			t.Errorf("the pause is %v where the repository wants %v", got, after)
		}
	}
}

// TestRepositoryThatDoesNotWait checks that requests are throttled.
func TestRepositoryThatDoesNotWait(t *testing.T) {
	p := newTestPoller()
	for i := range 10 {
		p.cancel = func() {}
		p.accept(pollResult{took: time.Millisecond}, rollout{})
		if soon := time.Until(p.next) < time.Second; soon != (i < 2) {
			t.Errorf("after answer %d it is asked after %v", i+1, time.Until(p.next))
		}
	}
	p.cancel = func() {}
	p.accept(pollResult{took: time.Minute}, rollout{})
	if pause := time.Until(p.next); pause > 0 {
		t.Errorf("after an answer that took its time it is asked after %v", pause)
	}
}

// TestUnusableAnswers tests answers without a usable version.
func TestUnusableAnswers(t *testing.T) {
	good := setOf(t, "a", "1")
	next := setOf(t, "a", "2")
	file, _ := next.Get("a")
	for name, change := range map[string]mirror.Change{
		"made to another":     {Version: mirror.Version(next), Base: mirror.Version(next), Files: []*mirror.File{file}},
		"another digest":      {Version: mirror.Version(good), Base: mirror.Version(good), Files: []*mirror.File{file}},
		"a file of no name":   {Version: mirror.Version(next), Files: []*mirror.File{{Text: "2"}}},
		"outside":             {Version: mirror.Version(next), Files: []*mirror.File{{Name: "../a", Text: "2"}}},
		"null":                {Version: mirror.Version(next), Files: []*mirror.File{nil}},
		"what is there":       {Version: mirror.Version(good), Base: mirror.Version(good)},
		"what is not wanted":  {Version: mirror.Version(next), Base: mirror.Version(good), Files: []*mirror.File{file}},
		"what is not wanted2": {Version: mirror.Version(next), Files: []*mirror.File{file}},
	} {
		p := newTestPoller()
		s := rollout{good: &version{name: mirror.Version(good), set: good}, refused: []refusedVersion{{name: mirror.Version(next)}}}
		v := p.accept(pollResult{good: s.good, change: &change}, s)
		if v != nil || p.backoff.Failures != 1 || len(p.reports) != 0 || p.next.IsZero() {
			t.Errorf("%s: %+v, %+v", name, v, p)
		}
	}
}
