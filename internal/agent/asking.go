package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// asking is the state of the follower's requests to the repository, of which there is
// one at a time.
type asking struct {
	answers chan answered
	// cancel ends the request that is being made; nil if there is none.
	cancel context.CancelFunc
	// next is when to ask again.
	next     time.Time
	failures int
	// hasty counts answers of nothing that came much sooner than was asked for.
	hasty int
	// told are the kinds of failures that were logged since the last success.
	told map[string]bool
}

// answered is what became of a request.
type answered struct {
	// have is the version that it said is in use, and reported how many reports were made.
	have     *version
	reported int
	change   *mirror.Change
	took     time.Duration
	err      error
}

// Kinds of failures to follow the repository.
const (
	failureFiles      = "files"
	failureRepository = "repository"
	failureStranger   = "repository unverified"
	failureAnswer     = "repository answer"
)

// askIfDue asks the repository, by a goroutine of its own, for what comes after the
// version in use.
func (f *follower) askIfDue(ctx context.Context) {
	if f.ask.cancel != nil || now().Before(f.ask.next) || f.taking != nil && now().Before(f.takeBy) {
		return
	}
	ctx, f.ask.cancel = context.WithCancel(ctx)
	have, others, reports := f.good, f.others(), slices.Clone(f.reports)
	client := f.client
	go func() {
		a := answered{have: have}
		for _, r := range reports {
			a.err = client.Report(ctx, r)
			if answer := (*mirror.Error)(nil); errors.As(a.err, &answer) && answer.Code != http.StatusServiceUnavailable {
				// It does not want to know, and may have files all the same.
				a.err = nil
			}
			if a.err != nil {
				break
			}
			a.reported++
		}
		if a.err == nil {
			began := time.Now()
			name := ""
			if have != nil {
				name = have.name
			}
			a.change, a.err = client.Poll(ctx, name, others...)
			a.took = time.Since(began)
		}
		f.ask.answers <- a
	}()
}

// askAgain has the repository asked again at once, with what is known by now.
func (f *follower) askAgain() {
	f.ask.next = now()
	if f.ask.cancel != nil {
		f.ask.cancel()
	}
}

// answered takes an answer of the repository.
func (f *follower) answered(ctx context.Context, a answered) {
	f.ask.cancel()
	f.ask.cancel = nil
	f.reports = f.reports[min(a.reported, len(f.reports)):]
	switch {
	case errors.Is(a.err, context.Canceled):
		return
	case a.err != nil:
		f.failRequest(a.err)
		return
	}
	f.ask.next = now()
	if a.change == nil {
		f.succeeded()
		f.rest(a.took)
		return
	}
	f.ask.hasty = 0
	v, err := f.versionOf(a)
	if err == nil && (slices.Contains(f.others(), v.name) || f.good != nil && f.good.name == v.name) {
		err = fmt.Errorf("the repository sends version %s again, which is not wanted", v.name)
	}
	if err != nil {
		f.fail(failureAnswer, err)
		return
	}
	if err := f.place(ctx, v); err != nil {
		if !f.ask.told[failureFiles] {
			f.report(v, err)
		}
		f.fail(failureFiles, err)
		return
	}
	f.succeeded()
	if a.change.Base == "" {
		f.room(v.set)
	}
}

// succeeded notes that the repository is followed.
func (f *follower) succeeded() {
	if f.ask.failures > 0 {
		f.log.Info("the repository is followed again", "attempts", f.ask.failures+1)
	}
	f.ask.failures = 0
	clear(f.ask.told)
}

// rest keeps a repository that does not wait from being asked all the time.
func (f *follower) rest(took time.Duration) {
	if took > min(f.pace.wait/2, time.Second) {
		f.ask.hasty = 0
		return
	}
	if f.ask.hasty++; f.ask.hasty > 2 {
		f.ask.next = now().Add(f.pace.followMost/2 + jitter(f.pace.followMost/2))
	}
}

// versionOf returns the version that an answer makes.
func (f *follower) versionOf(a answered) (*version, error) {
	var base mirror.Set
	if a.have != nil {
		base = a.have.set
	}
	set, err := a.change.Apply(base)
	if err != nil {
		return nil, fmt.Errorf("the repository's answer: %w", err)
	}
	return &version{name: a.change.Version, set: set}, nil
}

// room makes room for the files in the limit of memory, which is for an agent without.
func (f *follower) room(set mirror.Set) {
	size := int64(0)
	for _, file := range set.All() {
		size += int64(len(file.Text))
	}
	debug.SetMemoryLimit(memoryLimit + 4*size)
	if size > muchGarbage {
		debug.FreeOSMemory()
	}
}

// failRequest notes a request that came to nothing.
func (f *follower) failRequest(err error) {
	kind := failureRepository
	var answer *mirror.Error
	switch {
	case isStranger(err):
		kind = failureStranger
		f.hasten()
	case errors.As(err, &answer):
		kind = fmt.Sprintf("%s %d", failureRepository, answer.Code)
	}
	f.fail(kind, err)
	if answer != nil && answer.RetryAfter > 0 {
		pause := min(answer.RetryAfter, f.pace.followMost)
		f.ask.next = now().Add(pause + jitter(pause/2))
	}
}

// fail notes a failure and says when to try again.
func (f *follower) fail(kind string, err error) {
	f.metrics.followFailures.Add(1)
	f.tellOnce(kind, err)
	pause := f.pace.followFirst << min(f.ask.failures, 20)
	if pause <= 0 || pause > f.pace.followMost {
		pause = f.pace.followMost
	}
	f.ask.failures++
	f.ask.next = now().Add(pause/2 + jitter(pause/2))
}

// tellOnce logs the first failure of each kind, and the others where details are wanted.
func (f *follower) tellOnce(kind string, err error) {
	level := slog.LevelDebug
	if !f.ask.told[kind] {
		level = slog.LevelWarn
	}
	f.ask.told[kind] = true
	f.log.Log(context.Background(), level, "the driver's files cannot be followed; the last good ones stay", "kind", kind, "error", err.Error())
}
