package agent

import (
	"math/rand/v2"
	"time"
)

// backoff is the pause between failed attempts: first after the first failure, doubled
// after each further one up to most.
type backoff struct {
	first, most time.Duration
	failures    int // since the last success
}

// next counts a failure and returns the pause after it.
func (b *backoff) next() time.Duration {
	pause := b.first << min(b.failures, 30)
	b.failures++
	if pause <= 0 || pause > b.most {
		return b.most
	}
	return pause
}

// reset is called after a success.
func (b *backoff) reset() { b.failures = 0 }

// spread returns a random duration in the upper half of a pause, so that agents that lost
// the controller at the same time do not return to it at the same time.
func spread(pause time.Duration) time.Duration { return pause/2 + jitter(pause/2) }

// jitter returns a random duration below d.
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}

// timings are the agent's intervals and timeouts. Tests use shorter ones.
type timings struct {
	poll time.Duration // how often the mounted trust bundle is read
	sign time.Duration // timeout of one request for a certificate; the service's own limit is 30 s
	// retry is the backoff of failed requests for a certificate. While there is no valid
	// certificate, its pauses are at most retryUrgent.
	retry        backoff
	retryUrgent  time.Duration
	reuse        time.Duration // how soon a reused identity is replaced
	restart      backoff       // of an exited proxy, until one has run for stable
	stable       time.Duration
	hopeless     time.Duration // how long a proxy may keep crashing before the agent reports that it is not alive
	admin        time.Duration // timeout of a request to the proxy
	reload       time.Duration // timeout of a reload command
	reloadRetry  backoff       // of failed reloads
	worker       time.Duration // how long a process may take to start a worker before the signal is repeated
	workers      int           // how often that signal is sent
	report       time.Duration // minimum time between reports about the proxy
	repeat       time.Duration // after which a report that still applies is repeated
	stop         time.Duration // how long a proxy may take to stop after SIGTERM
	hook         time.Duration // how long preStop hooks may take to begin after SIGTERM
	watch        time.Duration // how often --exit-with looks for processes
	settle       time.Duration // how long a started proxy may take until it can reload
	earlyRenewal time.Duration // minimum time between early renewals
	hint         backoff       // of requests caused by a changed trust bundle file
	wait         time.Duration // how long the repository is asked to wait for a change
	follow       backoff       // of requests to the repository
	ack          time.Duration // how long the proxy may take to acknowledge live files before the next version is requested
	probation    time.Duration // how long after a reload an exit of the proxy rolls the files back
	check        time.Duration // timeout of the command that checks a version
	quarantine   backoff       // before a refused version is tried again
	store        time.Duration // minimum time between writes of live files to the folder
	spans        time.Duration // how long spans wait for others, to be sent together
	collect      time.Duration // timeout of sending them
	unknown      time.Duration // how long a connection to an unknown destination may wait until the proxy knows it
	outside      time.Duration // how long an address counts as outside the mesh without another question
	asks         backoff       // of questions about an address
	known        backoff       // of handing a connection to a proxy that does not know its destination yet
	silence      time.Duration // how soon a proxy hands such a connection back
	succession   time.Duration // how long a new version of the proxy may take to get ready
	steady       time.Duration // for how long its listening sockets must not have changed by then
	accepted     time.Duration // how long the former process may take to accept the connections that it was given
}

var defaultTimings = timings{
	poll:         2 * time.Second,
	sign:         35 * time.Second,
	retry:        backoff{first: time.Second, most: 2 * time.Minute},
	retryUrgent:  15 * time.Second,
	reuse:        5 * time.Second,
	restart:      backoff{first: 100 * time.Millisecond, most: 30 * time.Second},
	stable:       30 * time.Second,
	hopeless:     5 * time.Minute,
	admin:        time.Second,
	reload:       30 * time.Second,
	reloadRetry:  backoff{first: time.Second, most: 30 * time.Second},
	worker:       time.Second,
	workers:      8,
	report:       5 * time.Second,
	repeat:       time.Minute,
	stop:         5 * time.Second,
	hook:         time.Second,
	watch:        200 * time.Millisecond,
	settle:       2 * time.Second,
	earlyRenewal: 5 * time.Minute,
	hint:         backoff{first: 30 * time.Second, most: time.Hour},
	wait:         time.Minute,
	follow:       backoff{first: 200 * time.Millisecond, most: 5 * time.Second},
	ack:          2 * time.Second,
	probation:    5 * time.Second,
	check:        30 * time.Second,
	quarantine:   backoff{first: 5 * time.Second, most: 5 * time.Minute},
	store:        time.Second,
	spans:        time.Second,
	collect:      5 * time.Second,
	unknown:      10 * time.Second,
	outside:      5 * time.Second,
	asks:         backoff{first: 100 * time.Millisecond, most: 2 * time.Second},
	known:        backoff{first: 5 * time.Millisecond, most: 50 * time.Millisecond},
	silence:      10 * time.Millisecond,
	succession:   time.Minute,
	steady:       500 * time.Millisecond,
	accepted:     2 * time.Second,
}
