package rollout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/agent/identity"
	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// poller sends the follower's requests to the repository, one at a time. It belongs to the
// follower's goroutine.
type poller struct {
	client  *mirror.Client
	timings kit.Timings
	log     *slog.Logger
	metrics *kit.Metrics
	// renewIdentity brings the next renewal of the identity files forward.
	renewIdentity func()

	answers chan pollResult
	cancel  context.CancelFunc // cancels the request in flight; nil if there is none
	next    time.Time          // when to ask for the next version; zero while none is wanted
	reports []mirror.Status    // refusals not yet sent to the repository
	backoff kit.Backoff
	early   int        // consecutive empty answers that came long before the requested wait
	logged  kit.Logged // failures since the last success
}

// pollResult is the result of a request.
type pollResult struct {
	good     *version // the version in use that the request named
	reported int      // number of reports delivered before it
	change   *mirror.Change
	took     time.Duration
	err      error
}

// Kinds of failures.
const (
	failureFiles      = "files"
	failureRepository = "repository"
	failureUnverified = "repository unverified"
	failureAnswer     = "repository answer"
)

func newPoller(client *mirror.Client, renewIdentity func(), timings kit.Timings, log *slog.Logger, metrics *kit.Metrics) *poller {
	return &poller{
		client: client, timings: timings, log: log, metrics: metrics, renewIdentity: renewIdentity, answers: make(chan pollResult, 1), next: kit.Now(),
		backoff: timings.Follow, logged: make(kit.Logged),
	}
}

// due returns when the next request is due, or zero if none is.
func (p *poller) due() time.Time {
	if p.cancel != nil {
		return time.Time{}
	}
	return p.next
}

// pollIfDue starts a request for the version after the good one, if a request is due. It
// runs in a separate goroutine.
func (p *poller) pollIfDue(ctx context.Context, s rollout) {
	if due := p.due(); due.IsZero() || kit.Now().Before(due) {
		return
	}
	ctx, p.cancel = context.WithCancel(ctx)
	good, others, reports := s.good, s.others(), slices.Clone(p.reports)
	go func() {
		a := pollResult{good: good}
		for _, r := range reports {
			a.err = p.client.Report(ctx, r)
			if refused := (*mirror.Error)(nil); errors.As(a.err, &refused) && refused.Code != http.StatusServiceUnavailable {
				// A repository that refuses reports may still have files.
				a.err = nil
			}
			if a.err != nil {
				break
			}
			a.reported++
		}
		if a.err == nil {
			began := time.Now()
			a.change, a.err = p.client.Poll(ctx, good.String(), others...)
			a.took = time.Since(began)
		}
		p.answers <- a
	}()
}

// poll schedules a request for now, with the current state, and cancels the one in flight.
func (p *poller) poll() {
	p.next = kit.Now()
	if p.cancel != nil {
		p.cancel()
	}
}

// retry schedules another request for a version that could not be written or checked. The
// first such failure is reported to the repository.
func (p *poller) retry(v *version, err error) {
	if !p.logged[failureFiles] {
		p.report(v, err)
	}
	p.fail(failureFiles, err)
}

// report queues a report to the repository of why a version cannot be used.
func (p *poller) report(v *version, err error) {
	p.reports = append(p.reports[max(len(p.reports)-maxRefused+1, 0):], mirror.Status{Version: v.name, Error: err.Error()})
}

// accept processes an answer and returns the version in it, or nil. After a version, no
// request is due until poll or retry is called.
func (p *poller) accept(a pollResult, s rollout) *version {
	p.cancel()
	p.cancel = nil
	p.reports = p.reports[min(a.reported, len(p.reports)):]
	switch {
	case errors.Is(a.err, context.Canceled):
		return nil
	case a.err != nil:
		p.failRequest(a.err)
		return nil
	}
	p.next = kit.Now()
	if a.change == nil {
		p.succeeded()
		p.throttle(a.took)
		return nil
	}
	p.early = 0
	name := a.change.Version
	set, err := a.change.Apply(a.good.files())
	switch {
	case err != nil:
		err = fmt.Errorf("the repository's answer: %w", err)
	case slices.Contains(append(s.others(), s.good.String()), name):
		err = fmt.Errorf("the repository sends version %s again, which was not requested", name)
	}
	if err != nil {
		p.fail(failureAnswer, err)
		return nil
	}
	p.next = time.Time{}
	return &version{name, set}
}

// succeeded resets the backoff after a usable answer.
func (p *poller) succeeded() {
	if p.backoff.Failures > 0 {
		p.log.Info("following the repository again", "attempts", p.backoff.Failures+1)
	}
	p.backoff.Reset()
	clear(p.logged)
}

// throttle slows requests down if the repository does not wait for changes.
func (p *poller) throttle(took time.Duration) {
	if took > min(p.timings.Wait/2, time.Second) {
		p.early = 0
		return
	}
	if p.early++; p.early > 2 {
		p.next = kit.Now().Add(kit.Spread(p.timings.Follow.Most))
	}
}

// raiseMemoryLimit adds the size of the files to the memory limit if the answer held all of
// them.
func (p *poller) raiseMemoryLimit(a pollResult) {
	if a.change.Base != "" {
		return
	}
	size := int64(0)
	for _, file := range a.change.Files {
		size += int64(len(file.Text))
	}
	debug.SetMemoryLimit(kit.MemoryLimit + 4*size)
	if size > largeGarbage {
		debug.FreeOSMemory()
	}
}

// failRequest handles a failed request.
func (p *poller) failRequest(err error) {
	kind := failureRepository
	var refused *mirror.Error
	switch {
	case identity.IsUnverified(err):
		kind = failureUnverified
		p.renewIdentity()
	case errors.As(err, &refused):
		kind = fmt.Sprintf("%s %d", failureRepository, refused.Code)
	}
	p.fail(kind, err)
	if refused != nil && refused.RetryAfter > 0 {
		pause := min(refused.RetryAfter, p.timings.Follow.Most)
		p.next = kit.Now().Add(pause + kit.Jitter(pause/2))
	}
}

// fail logs and counts a failure and schedules the next request.
func (p *poller) fail(kind string, err error) {
	p.metrics.FollowFailures.Add(1)
	p.logFailure(kind, err)
	p.next = kit.Now().Add(kit.Spread(p.backoff.Next()))
}

func (p *poller) logFailure(kind string, err error) {
	p.log.Log(context.Background(), p.logged.Level(kind, slog.LevelWarn), "cannot follow the driver's files; keeping the last good version", "kind", kind, "error", err.Error())
}
