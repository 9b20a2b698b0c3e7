package agent

import (
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// changeOfFile is a change of one file of a set.
type changeOfFile = mesh.Change[*mirror.File]

// identityName is the file among the live ones that says that the identity files have
// changed.
const identityName = "identity"

// maxPolls is how many requests may wait for a change at a time. Others are answered at
// once: a neighbour of the proxy can't keep it from asking.
const maxPolls = 32

// muchGarbage is how much is worth giving back to the system, since there is no use for
// it until hours later.
const muchGarbage = 256 << 10

// live serves files to the proxy beside, which follows them by itself. Its methods may
// be called from many goroutines.
type live struct {
	prefix livePrefix
	feed   mirror.Feed
	polls  chan struct{}
	wake   bell // rings when take returns something

	mu sync.Mutex
	// from is the version whose live part is served, and files what is served.
	from, files mirror.Set
	// served are the versions of files since serve; acknowledged and rejection are the
	// proxy's verdict on them since the last take. Open means that an acknowledgement is
	// still awaited.
	served       []string
	open         bool
	acknowledged bool
	rejection    *mirror.Status
}

// livePrefix is how the names of live files begin; there are none if it is empty.
type livePrefix string

// matches reports whether a file is a live one.
func (p livePrefix) matches(name string) bool { return p != "" && strings.HasPrefix(name, string(p)) }

// differ reports whether two versions differ in live files, and whether in others. Nil is
// a version without files.
func (p livePrefix) differ(one, other *version) (live, others bool) {
	for change := range one.files().Diff(other.files()) {
		if p.matches(change.Name) {
			live = true
		} else {
			others = true
		}
	}
	return live, others
}

func newLive(prefix string) *live {
	l := &live{prefix: livePrefix(prefix), polls: make(chan struct{}, maxPolls), wake: newBell()}
	l.feed.Acked = func(version string) { l.note(version, nil) }
	l.feed.Rejected = func(status mirror.Status) { l.note(status.Version, &status) }
	l.feed.Sent = func(_ string, _, bytes int) {
		if bytes > muchGarbage {
			time.AfterFunc(time.Second, debug.FreeOSMemory)
		}
	}
	return l
}

// serve serves the live files of a version, with a mark of the identity files. Verdicts
// on other versions are ignored from then on.
func (l *live) serve(set mirror.Set, mark string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var changes []changeOfFile
	for change := range set.Diff(l.from) {
		if l.prefix.matches(change.Name) {
			changes = append(changes, change)
		}
	}
	l.from, l.served, l.open, l.acknowledged, l.rejection = set, nil, true, false, nil
	return l.change(mark, changes)
}

// mark changes the file that shows that the identity files have changed.
func (l *live) mark(mark string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.change(mark, nil)
}

// change changes what is served. It is called with mu held.
func (l *live) change(mark string, changes []changeOfFile) error {
	identity, err := mirror.NewFile(identityName, mark+"\n")
	if err != nil {
		return err
	}
	l.files = l.files.With(append(changes, changeOfFile{Name: identityName, Value: identity})...)
	// It must be known before anybody can have it. Renewals are few, but for ever.
	l.served = append(l.served[max(len(l.served)-3, 0):], mirror.Version(l.files))
	l.feed.Set(l.files)
	return nil
}

// take returns the proxy's verdict on what is served, if it came since the last call.
func (l *live) take() (acknowledged bool, rejection *mirror.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	acknowledged, rejection = l.acknowledged, l.rejection
	l.acknowledged, l.rejection = false, nil
	return acknowledged, rejection
}

// note notes the proxy's verdict on a version, if that is served: a rejection, or without
// one an acknowledgement, if that is awaited.
func (l *live) note(version string, rejection *mirror.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !slices.Contains(l.served, version), rejection == nil && (!l.open || l.acknowledged):
		return
	case rejection == nil:
		l.acknowledged = true
	default:
		l.rejection = rejection
	}
	l.wake.ring()
}

// isOpen reports whether an acknowledgement of the version is awaited.
func (l *live) isOpen(version string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open && slices.Contains(l.served, version)
}

// settle ends the wait for an acknowledgement.
func (l *live) settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = false
}

// ServeHTTP answers the pod's own processes. All of them may read; only those that run
// as the user of the agent, who is the proxy's, may acknowledge and reject.
func (l *live) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !isLocal(r.RemoteAddr) {
		reply(w, http.StatusForbidden, "only the pod's own containers may, over 127.0.0.1 or ::1")
		return
	}
	if r.Method == http.MethodPost && !isOwnUser(r) {
		reply(w, http.StatusForbidden, "only the proxy may report on its files")
		return
	}
	if versions, err := mirror.Versions(r); err == nil && len(versions) > 0 && r.Method == http.MethodGet && l.isOpen(versions[0]) && !isOwnUser(r) {
		// It is answered like any other request, but does not acknowledge the version.
		r.Header["If-None-Match"] = append([]string{`"` + mirror.Version(mirror.Set{}) + `"`}, r.Header["If-None-Match"]...)
	}
	select {
	case l.polls <- struct{}{}:
		defer func() { <-l.polls }()
	default:
		r.Header.Del("Prefer")
	}
	l.feed.ServeHTTP(w, r)
}
