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

// poller makes the follower's requests to the repository, one at a time. It belongs to
// the follower's goroutine.
type poller struct {
	client  *mirror.Client
	pace    pace
	log     *slog.Logger
	metrics *metrics
	hasten  func() // has the identity files renewed soon

	answers chan pollResult
	cancel  context.CancelFunc // ends the request that is being made; nil if there is none
	next    time.Time          // when to ask for the next version; zero while none is wanted
	reports []mirror.Status    // refusals that the repository does not know of yet
	backoff backoff
	hasty   int             // empty answers in a row that came much sooner than was asked for
	logged  map[string]bool // kinds of failures that were logged since the last success
}

// pollResult is what came of a request.
type pollResult struct {
	good     *version // named by the request as the one in use
	reported int      // how many reports were delivered before it
	change   *mirror.Change
	took     time.Duration
	err      error
}

// Kinds of failures to follow the repository.
const (
	failureFiles      = "files"
	failureRepository = "repository"
	failureUnverified = "repository unverified"
	failureAnswer     = "repository answer"
)

func newPoller(client *mirror.Client, pace pace, log *slog.Logger, metrics *metrics) *poller {
	return &poller{
		client: client, pace: pace, log: log, metrics: metrics, hasten: func() {}, answers: make(chan pollResult, 1), next: now(),
		backoff: pace.follow, logged: make(map[string]bool),
	}
}

// due returns when the next request is due, zero if none is.
func (p *poller) due() time.Time {
	if p.cancel != nil {
		return time.Time{}
	}
	return p.next
}

// pollIfDue makes a request, in a goroutine of its own, for what comes after the good
// version.
func (p *poller) pollIfDue(ctx context.Context, s rollout) {
	if due := p.due(); due.IsZero() || now().Before(due) {
		return
	}
	ctx, p.cancel = context.WithCancel(ctx)
	good, others, reports := s.good, s.others(), slices.Clone(p.reports)
	go func() {
		a := pollResult{good: good}
		for _, r := range reports {
			a.err = p.client.Report(ctx, r)
			if refused := (*mirror.Error)(nil); errors.As(a.err, &refused) && refused.Code != http.StatusServiceUnavailable {
				// It takes no reports, and may have files all the same.
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

// poll has the repository asked at once, with what is known by now. It ends the request
// that is being made.
func (p *poller) poll() {
	p.next = now()
	if p.cancel != nil {
		p.cancel()
	}
}

// retry has the repository asked again for a version that could not be written or
// checked. The repository gets a report the first time.
func (p *poller) retry(v *version, err error) {
	if !p.logged[failureFiles] {
		p.report(v, err)
	}
	p.fail(failureFiles, err)
}

// report has the repository learn why a version cannot be used.
func (p *poller) report(v *version, err error) {
	p.reports = append(p.reports[max(len(p.reports)-maxRefused+1, 0):], mirror.Status{Version: v.name, Error: err.Error()})
}

// accept takes an answer and returns the version in it, nil if there is none. No other
// is wanted then until poll or retry is called.
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
	p.next = now()
	if a.change == nil {
		p.succeeded()
		p.rest(a.took)
		return nil
	}
	p.hasty = 0
	name := a.change.Version
	set, err := a.change.Apply(a.good.files())
	switch {
	case err != nil:
		err = fmt.Errorf("the repository's answer: %w", err)
	case slices.Contains(append(s.others(), s.good.String()), name):
		err = fmt.Errorf("the repository sends version %s again, which is not wanted", name)
	}
	if err != nil {
		p.fail(failureAnswer, err)
		return nil
	}
	p.next = time.Time{}
	return &version{name, set}
}

// succeeded notes that an answer could be used.
func (p *poller) succeeded() {
	if p.backoff.failures > 0 {
		p.log.Info("the repository is followed again", "attempts", p.backoff.failures+1)
	}
	p.backoff.reset()
	clear(p.logged)
}

// rest keeps a repository that does not wait for changes from being asked all the time.
func (p *poller) rest(took time.Duration) {
	if took > min(p.pace.wait/2, time.Second) {
		p.hasty = 0
		return
	}
	if p.hasty++; p.hasty > 2 {
		p.next = now().Add(spread(p.pace.follow.most))
	}
}

// makeRoom adds the files of an answer that held all of them to the limit of memory.
func (p *poller) makeRoom(a pollResult) {
	if a.change.Base != "" {
		return
	}
	size := int64(0)
	for _, file := range a.change.Files {
		size += int64(len(file.Text))
	}
	debug.SetMemoryLimit(memoryLimit + 4*size)
	if size > muchGarbage {
		debug.FreeOSMemory()
	}
}

// failRequest notes a request that failed.
func (p *poller) failRequest(err error) {
	kind := failureRepository
	var refused *mirror.Error
	switch {
	case isStranger(err):
		kind = failureUnverified
		p.hasten()
	case errors.As(err, &refused):
		kind = fmt.Sprintf("%s %d", failureRepository, refused.Code)
	}
	p.fail(kind, err)
	if refused != nil && refused.RetryAfter > 0 {
		pause := min(refused.RetryAfter, p.pace.follow.most)
		p.next = now().Add(pause + jitter(pause/2))
	}
}

// fail notes a failure and schedules the next request.
func (p *poller) fail(kind string, err error) {
	p.metrics.followFailures.Add(1)
	p.logFailure(kind, err)
	p.next = now().Add(spread(p.backoff.next()))
}

// logFailure logs the first failure of each kind as a warning, and the others for
// debugging.
func (p *poller) logFailure(kind string, err error) {
	level := slog.LevelDebug
	if !p.logged[kind] {
		level = slog.LevelWarn
	}
	p.logged[kind] = true
	p.log.Log(context.Background(), level, "the driver's files cannot be followed; the last good version stays", "kind", kind, "error", err.Error())
}
