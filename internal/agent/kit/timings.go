package kit

import (
	"math/rand/v2"
	"time"
)

// Backoff is the pause between failed attempts: first after the first failure, doubled
// after each further one up to most.
type Backoff struct {
	First, Most time.Duration
	Failures    int // since the last success
}

// Next counts a failure and returns the pause after it.
func (b *Backoff) Next() time.Duration {
	pause := b.First << min(b.Failures, 30)
	b.Failures++
	if pause <= 0 || pause > b.Most {
		return b.Most
	}
	return pause
}

// Reset is called after a success.
func (b *Backoff) Reset() { b.Failures = 0 }

// Spread returns a random duration in the upper half of a pause, so that agents that lost
// the controller at the same time do not return to it at the same time.
func Spread(pause time.Duration) time.Duration { return pause/2 + Jitter(pause/2) }

// Jitter returns a random duration below d.
func Jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}

// Timings are the agent's intervals and timeouts. Tests use shorter ones.
type Timings struct {
	Poll time.Duration // how often the mounted trust bundle is read
	Sign time.Duration // timeout of one request for a certificate; the service's own limit is 30 s
	// Retry is the backoff of failed requests for a certificate. While there is no valid
	// certificate, its pauses are at most retryUrgent.
	Retry        Backoff
	RetryUrgent  time.Duration
	Reuse        time.Duration // how soon a reused identity is replaced
	Restart      Backoff       // of an exited proxy, until one has run for stable
	Stable       time.Duration
	Hopeless     time.Duration // how long a proxy may keep crashing before the agent reports that it is not alive
	Admin        time.Duration // timeout of a request to the proxy
	Reload       time.Duration // timeout of a reload command, and of a new worker process
	ReloadRetry  Backoff       // of failed reloads
	Worker       time.Duration // how long a process may take to start a worker before the signal is repeated, the first time
	Report       time.Duration // minimum time between reports about the proxy
	Repeat       time.Duration // after which a report that still applies is repeated
	Stop         time.Duration // how long a proxy may take to stop after SIGTERM
	Hook         time.Duration // how long preStop hooks may take to begin after SIGTERM
	Watch        time.Duration // how often --exit-with looks for processes
	Settle       time.Duration // how long a started proxy may take until it can reload
	EarlyRenewal time.Duration // minimum time between early renewals
	Hint         Backoff       // of requests caused by a changed trust bundle file
	Wait         time.Duration // how long the repository is asked to wait for a change
	Follow       Backoff       // of requests to the repository
	Ack          time.Duration // how long the proxy may take to acknowledge live files before the next version is requested
	Probation    time.Duration // how long after a reload an exit of the proxy rolls the files back
	Check        time.Duration // timeout of the command that checks a version
	Quarantine   Backoff       // before a refused version is tried again
	Store        time.Duration // minimum time between writes of live files to the folder
	Spans        time.Duration // how long spans wait for others, to be sent together
	Collect      time.Duration // timeout of sending them
	Unknown      time.Duration // how long a connection to an unknown destination may wait until the proxy knows it
	Outside      time.Duration // how long an address counts as outside the mesh without another question
	Asks         Backoff       // of questions about an address
	Known        Backoff       // of handing a connection to a proxy that does not know its destination yet
	Silence      time.Duration // how soon a proxy hands such a connection back
	Succession   time.Duration // how long a new version of the proxy may take to get ready
	Steady       time.Duration // for how long its listening sockets must not have changed by then
	Accepted     time.Duration // how long the former process may take to accept the connections that it was given
}

// DefaultTimings are those of agents in pods.
var DefaultTimings = Timings{
	Poll:         2 * time.Second,
	Sign:         35 * time.Second,
	Retry:        Backoff{First: time.Second, Most: 2 * time.Minute},
	RetryUrgent:  15 * time.Second,
	Reuse:        5 * time.Second,
	Restart:      Backoff{First: 100 * time.Millisecond, Most: 30 * time.Second},
	Stable:       30 * time.Second,
	Hopeless:     5 * time.Minute,
	Admin:        time.Second,
	Reload:       30 * time.Second,
	ReloadRetry:  Backoff{First: time.Second, Most: 30 * time.Second},
	Worker:       time.Second,
	Report:       5 * time.Second,
	Repeat:       time.Minute,
	Stop:         5 * time.Second,
	Hook:         time.Second,
	Watch:        200 * time.Millisecond,
	Settle:       2 * time.Second,
	EarlyRenewal: 5 * time.Minute,
	Hint:         Backoff{First: 30 * time.Second, Most: time.Hour},
	Wait:         time.Minute,
	Follow:       Backoff{First: 200 * time.Millisecond, Most: 5 * time.Second},
	Ack:          2 * time.Second,
	Probation:    5 * time.Second,
	Check:        30 * time.Second,
	Quarantine:   Backoff{First: 5 * time.Second, Most: 5 * time.Minute},
	Store:        time.Second,
	Spans:        time.Second,
	Collect:      5 * time.Second,
	Unknown:      10 * time.Second,
	Outside:      5 * time.Second,
	Asks:         Backoff{First: 100 * time.Millisecond, Most: 2 * time.Second},
	Known:        Backoff{First: 5 * time.Millisecond, Most: 50 * time.Millisecond},
	Silence:      10 * time.Millisecond,
	Succession:   time.Minute,
	Steady:       500 * time.Millisecond,
	Accepted:     2 * time.Second,
}

// Now strips the monotonic reading, so deadlines count time that the machine was asleep.
func Now() time.Time { return time.Now().Round(0) }
