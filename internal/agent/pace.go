package agent

import (
	"math/rand/v2"
	"time"
)

// backoff is the pause between attempts that fail: first after the first failure, doubled
// with each further one up to most. The zero number of failures is that of a success.
type backoff struct {
	first, most time.Duration
	failures    int
}

// next counts a failure and returns the pause that follows it.
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

// spread returns a random duration in the upper half of a pause. Agents that lost the
// controller at the same moment return to it at different ones.
func spread(pause time.Duration) time.Duration { return pause/2 + jitter(pause/2) }

// jitter returns a random duration below d.
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}

// pace is every period that the agent keeps. Tests are in more of a hurry.
type pace struct {
	poll time.Duration // how often the mounted trust bundle is read
	sign time.Duration // bounds one attempt to get a certificate; the service's own limit is 30 s
	// retry follows an attempt that brought no certificate. While there is no valid one its
	// pauses are at most retryUrgent.
	retry       backoff
	retryUrgent time.Duration
	reuse       time.Duration // within which an identity that was found is replaced
	restart     backoff       // of a proxy that ended, until one has run for stable
	stable      time.Duration
	hopeless    time.Duration // how long a proxy may keep crashing before the agent reports that it is not alive
	admin       time.Duration // bounds a request to the proxy
	reload      time.Duration // bounds a reload command
	reloadAgain backoff       // of a reload that failed
	worker      time.Duration // how long a process may take to start a worker before the signal is repeated
	workers     int           // how often that signal is sent
	report      time.Duration // the least time between reports about the proxy
	repeat      time.Duration // after which a report that still holds is repeated
	kill        time.Duration // how long a proxy may take to stop after SIGTERM
	watch       time.Duration // how often processes are looked for
	settle      time.Duration // how long a proxy that was started may take until it can reload
	hasten      time.Duration // between certificates that are asked for before their time
	hint        backoff       // of requests that a changed trust bundle file causes
	wait        time.Duration // how long the repository is asked to wait for a change
	follow      backoff       // of requests to the repository
	take        time.Duration // how long the proxy may take to acknowledge live files before others are asked for
	probation   time.Duration // after a reload, how long the end of the proxy rolls the files back
	check       time.Duration // bounds the command that checks a version
	quarantine  backoff       // before a refused version is tried again
	keep        time.Duration // how often live files are written to the folder
}

var usualPace = pace{
	poll:        2 * time.Second,
	sign:        35 * time.Second,
	retry:       backoff{first: time.Second, most: 2 * time.Minute},
	retryUrgent: 15 * time.Second,
	reuse:       5 * time.Second,
	restart:     backoff{first: 100 * time.Millisecond, most: 30 * time.Second},
	stable:      30 * time.Second,
	hopeless:    5 * time.Minute,
	admin:       time.Second,
	reload:      30 * time.Second,
	reloadAgain: backoff{first: time.Second, most: 30 * time.Second},
	worker:      time.Second,
	workers:     8,
	report:      5 * time.Second,
	repeat:      time.Minute,
	kill:        5 * time.Second,
	watch:       200 * time.Millisecond,
	settle:      2 * time.Second,
	hasten:      5 * time.Minute,
	hint:        backoff{first: 30 * time.Second, most: time.Hour},
	wait:        time.Minute,
	follow:      backoff{first: 200 * time.Millisecond, most: 5 * time.Second},
	take:        2 * time.Second,
	probation:   5 * time.Second,
	check:       30 * time.Second,
	quarantine:  backoff{first: 5 * time.Second, most: 5 * time.Minute},
	keep:        time.Second,
}
