package agent

import "time"

// pace is every period that the agent keeps. Tests are in more of a hurry.
type pace struct {
	// poll is how often the mounted trust bundle is read.
	poll time.Duration
	// sign bounds one attempt to get a certificate; the service's own limit is 30 s.
	sign time.Duration
	// retryFirst is the pause after a first failure to get a certificate. Pauses
	// double up to retryMost, or to retryUrgent while there is no valid certificate.
	retryFirst, retryUrgent, retryMost time.Duration
	// reuse is within what time an identity that was found is replaced.
	reuse time.Duration
	// restartFirst is the pause before a proxy that ended is started again. Pauses
	// double up to restartMost, until a proxy has run for stable.
	restartFirst, restartMost, stable time.Duration
	// hopeless is for how long a proxy may crash again and again before the agent
	// says that it is not alive.
	hopeless time.Duration
	// admin bounds a question to the proxy.
	admin time.Duration
	// reload bounds a reload command. One that failed is tried again after reloadAgain,
	// then after pauses that double up to restartMost.
	reload, reloadAgain time.Duration
	// worker is how long a process may take to start another worker before it is told
	// again, and workers how often it is told.
	worker  time.Duration
	workers int
	// report is the least time between two reports about the proxy, and after which one
	// that failed is repeated; repeat is after what time one that holds on is.
	report, repeat time.Duration
	// kill is how long a proxy that was told to stop may take.
	kill time.Duration
	// watch is how often processes are looked for.
	watch time.Duration
	// settle is how long a proxy that was started may take to expect to be told of files.
	settle time.Duration
	// hasten is how long after a certificate that was asked for before its time another
	// may be.
	hasten time.Duration
	// hint is how long after the mounted trust bundle was heeded it may be again. Pauses
	// double up to hintMost while it stays another one than the signing service answers.
	hint, hintMost time.Duration
	// wait is how long the repository is asked to wait for a change.
	wait time.Duration
	// followFirst is the pause after a first failure to ask the repository. Pauses
	// double up to followMost.
	followFirst, followMost time.Duration
	// take is how long the proxy may take to take up live files before the repository is
	// asked for others, and trial how long after a reload the end of the proxy is the
	// fault of the files.
	take, trial time.Duration
	// check bounds the command that checks a version.
	check time.Duration
	// mercyFirst is after how long a version is tried again that the proxy could not be
	// told of. Pauses double up to mercyMost.
	mercyFirst, mercyMost time.Duration
	// keep is how often live files are written to the folder, where nobody waits for them.
	keep time.Duration
}

var usualPace = pace{
	poll:         2 * time.Second,
	sign:         35 * time.Second,
	retryFirst:   time.Second,
	retryUrgent:  15 * time.Second,
	retryMost:    2 * time.Minute,
	reuse:        5 * time.Second,
	restartFirst: 100 * time.Millisecond,
	restartMost:  30 * time.Second,
	stable:       30 * time.Second,
	hopeless:     5 * time.Minute,
	admin:        time.Second,
	reload:       30 * time.Second,
	reloadAgain:  time.Second,
	worker:       time.Second,
	workers:      8,
	report:       5 * time.Second,
	repeat:       time.Minute,
	kill:         5 * time.Second,
	watch:        200 * time.Millisecond,
	settle:       2 * time.Second,
	hasten:       5 * time.Minute,
	hint:         30 * time.Second,
	hintMost:     time.Hour,
	wait:         time.Minute,
	followFirst:  200 * time.Millisecond,
	followMost:   5 * time.Second,
	take:         2 * time.Second,
	trial:        5 * time.Second,
	check:        30 * time.Second,
	mercyFirst:   5 * time.Second,
	mercyMost:    5 * time.Minute,
	keep:         time.Second,
}
