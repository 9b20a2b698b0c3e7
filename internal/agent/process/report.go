package process

import (
	"context"
	"log/slog"
	"sync"
	"time"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/bell"
)

// hopelessStarts is the number of consecutive starts without a stable proxy that causes a
// report.
const hopelessStarts = 3

// reporter reports to the controller that the proxy does not stay up, and later that it
// does again. It retries while the controller is unavailable. Its methods are safe for use
// by many goroutines.
type reporter struct {
	send    func(context.Context, *identityv1.ReportRequest) error
	timings kit.Timings
	log     *slog.Logger
	wake    bell.Bell // rings when there is something to report

	mu sync.Mutex
	// starts counts the starts since the proxy was last stable.
	starts uint32
	// report is the report to send; nil before the first problem.
	report *identityv1.ReportRequest
}

func newReporter(send func(context.Context, *identityv1.ReportRequest) error, timings kit.Timings, log *slog.Logger) *reporter {
	return &reporter{send: send, timings: timings, log: log, wake: bell.New()}
}

// ended records that the proxy exited unexpectedly or, if started is false, that it could
// not be started. The latter is reported at once, since retries will fail too.
func (r *reporter) ended(how, lastWords string, started bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starts++
	if r.starts < hopelessStarts && started {
		return
	}
	r.report = &identityv1.ReportRequest{Failing: true, How: kit.OneLine(how), LastWords: lastWords, Starts: r.starts}
	r.wake.Ring()
}

// stable records that the proxy has stayed up.
func (r *reporter) stable() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starts = 0
	if r.report.GetFailing() {
		r.report = &identityv1.ReportRequest{}
		r.wake.Ring()
	}
}

// run sends reports until ctx ends: new ones at once, but at most one per kit.Timings.Report,
// and a lasting problem every kit.Timings.Repeat.
func (r *reporter) run(ctx context.Context) {
	wait := time.Duration(-1)
	for {
		var again <-chan time.Time
		if wait >= 0 {
			again = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-again:
		}
		r.mu.Lock()
		report := r.report
		r.mu.Unlock()
		err := r.send(ctx, report)
		switch {
		case err != nil:
			r.log.Debug("cannot report the proxy's state to the controller", "error", err)
			wait = r.timings.Report
		case report.GetFailing():
			wait = r.timings.Repeat
		default:
			wait = -1
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(r.timings.Report):
		}
	}
}
