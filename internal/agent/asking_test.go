package agent

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// newAsker returns a follower that asks nobody.
func newAsker() *follower {
	return &follower{pace: usualPace, log: discard, metrics: new(metrics), hasten: func() {}, ask: asking{told: make(map[string]bool)}}
}

func TestPausesOfAsking(t *testing.T) {
	f := newAsker()
	pause := func() time.Duration { return time.Until(f.ask.next) }
	for i, most := range []time.Duration{200, 400, 800, 1600, 3200, 5000, 5000} {
		most *= time.Millisecond
		f.failRequest(errors.New("nobody is there"))
		if got := pause(); got > most || got < most/2-100*time.Millisecond {
			t.Errorf("the pause after failure %d is %v, want one up to %v", i+1, got, most)
		}
	}
	f.succeeded()
	f.failRequest(errors.New("nobody is there"))
	if got := pause(); got > 200*time.Millisecond {
		t.Errorf("the pause after a success and a failure is %v", got)
	}
	for after, least := range map[time.Duration]time.Duration{time.Second: time.Second, time.Hour: 5 * time.Second} {
		f.failRequest(fmt.Errorf("asking: %w", &mirror.Error{Code: 503, RetryAfter: after}))
		if got := pause(); got < least-100*time.Millisecond || got > least*3/2 {
			t.Errorf("the pause is %v where the repository wants %v", got, after)
		}
	}
}

// TestRepositoryThatDoesNotWait is not asked all the time.
func TestRepositoryThatDoesNotWait(t *testing.T) {
	f := newAsker()
	for i := range 10 {
		f.ask.cancel = func() {}
		f.answered(context.Background(), answered{took: time.Millisecond})
		if soon := time.Until(f.ask.next) < time.Second; soon != (i < 2) {
			t.Errorf("after answer %d it is asked after %v", i+1, time.Until(f.ask.next))
		}
	}
	f.ask.cancel = func() {}
	f.answered(context.Background(), answered{took: time.Minute})
	if pause := time.Until(f.ask.next); pause > 0 {
		t.Errorf("after an answer that took its time it is asked after %v", pause)
	}
}

// TestAnswersThatAreNone leave everything as it is.
func TestAnswersThatAreNone(t *testing.T) {
	good := setOf(t, "a", "1")
	next := setOf(t, "a", "2")
	file, _ := next.Get("a")
	for name, change := range map[string]mirror.Change{
		"made to another":     {Version: mirror.Version(next), Base: mirror.Version(next), Files: []*mirror.File{file}},
		"not what it says":    {Version: mirror.Version(good), Base: mirror.Version(good), Files: []*mirror.File{file}},
		"a file of no name":   {Version: mirror.Version(next), Files: []*mirror.File{{Text: "2"}}},
		"outside":             {Version: mirror.Version(next), Files: []*mirror.File{{Name: "../a", Text: "2"}}},
		"null":                {Version: mirror.Version(next), Files: []*mirror.File{nil}},
		"what is there":       {Version: mirror.Version(good), Base: mirror.Version(good)},
		"what is not wanted":  {Version: mirror.Version(next), Base: mirror.Version(good), Files: []*mirror.File{file}},
		"what is not wanted2": {Version: mirror.Version(next), Files: []*mirror.File{file}},
	} {
		f := newAsker()
		f.good = &version{name: mirror.Version(good), set: good}
		f.refused = []string{mirror.Version(next)}
		f.ask.cancel = func() {}
		f.answered(context.Background(), answered{have: f.good, change: &change})
		if f.good.name != mirror.Version(good) || f.taking != nil || f.ask.failures != 1 || len(f.reports) != 0 {
			t.Errorf("%s: %+v", name, f)
		}
	}
}
