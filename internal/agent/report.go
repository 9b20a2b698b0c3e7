package agent

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
)

// hopelessStarts is how many ends in a row, none of them of a proxy that was stable, make
// a report.
const hopelessStarts = 3

// reporter reports to the controller that the proxy does not stay up, and that it does
// again. While the controller is away it goes on trying. Its methods may be called from
// many goroutines.
type reporter struct {
	send func(context.Context, *identityv1.ReportRequest) error
	pace pace
	log  *slog.Logger
	wake bell // rings when there is something to report

	mu sync.Mutex
	// starts are those since the proxy was stable the last time, and now is what the
	// controller is to know; nil if nothing was ever wrong.
	starts uint32
	now    *identityv1.ReportRequest
}

func newReporter(send func(context.Context, *identityv1.ReportRequest) error, pace pace, log *slog.Logger) *reporter {
	return &reporter{send: send, pace: pace, log: log, wake: newBell()}
}

// ended notes that a proxy has ended that should not, or could not be started, which no
// other try will change.
func (r *reporter) ended(how, lastWords string, started bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starts++
	if r.starts < hopelessStarts && started {
		return
	}
	r.now = &identityv1.ReportRequest{Failing: true, How: inOneLine(how), LastWords: lastWords, Starts: r.starts}
	r.wake.ring()
}

// stable notes that a proxy has stayed up.
func (r *reporter) stable() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starts = 0
	if r.now.GetFailing() {
		r.now = &identityv1.ReportRequest{}
		r.wake.ring()
	}
}

// run reports until ctx ends: news at once, though not more often than report, and
// what goes on being wrong each time that repeat is over.
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
		now := r.now
		r.mu.Unlock()
		err := r.send(ctx, now)
		switch {
		case err != nil:
			r.log.Debug("the state of the proxy was not reported to the controller", "error", err)
			wait = r.pace.report
		case now.GetFailing():
			wait = r.pace.repeat
		default:
			wait = -1
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(r.pace.report):
		}
	}
}

// reportWith returns how reports are sent, by the trust bundle that is in the files.
func (s *signer) reportWith(store *store) func(context.Context, *identityv1.ReportRequest) error {
	return func(ctx context.Context, report *identityv1.ReportRequest) error {
		m, err := store.read()
		if err != nil {
			return err
		}
		roots, err := parseRoots(m.bundle)
		if err != nil {
			return fmt.Errorf("the trust bundle: %w", err)
		}
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		return s.call(ctx, roots.Pool(), func(ctx context.Context, client identityv1.IdentityClient) error {
			_, err := client.Report(ctx, report)
			return err
		})
	}
}
