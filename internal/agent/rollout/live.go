package rollout

import (
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/agent/socket"
	"github.com/outrigger-mesh/outrigger/internal/bell"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// changeOfFile is a change of one file of a set.
type changeOfFile = mesh.Change[*mirror.File]

// IdentityName is the live file whose content changes with the identity files.
const IdentityName = "identity"

// maxPolls limits the requests that wait for a change at a time. Further ones are answered
// at once, so other processes of the pod cannot block the proxy's requests.
const maxPolls = 32

// largeGarbage is the number of bytes from which freed memory is returned to the system,
// since it is not needed again for hours.
const largeGarbage = 256 << 10

// live serves live files to the proxy in this pod, which polls them. Its methods are safe
// for use by many goroutines.
type live struct {
	prefix livePrefix
	feed   mirror.Feed
	polls  chan struct{}
	wake   bell.Bell // rings when takeVerdict has a result

	mu sync.Mutex
	// from is the version whose live files are served; files is what is served.
	from, files mirror.Set
	// served are the versions of files since serve; acknowledged and rejection are the
	// proxy's verdict on them since the last takeVerdict. awaiting is set until an
	// acknowledgement is no longer awaited.
	served       []string
	awaiting     bool
	acknowledged bool
	rejection    *mirror.Status
}

func newLive(prefix string) *live {
	l := &live{prefix: livePrefix(prefix), polls: make(chan struct{}, maxPolls), wake: bell.New()}
	l.feed.Acked = func(version string) { l.record(version, nil) }
	l.feed.Rejected = func(status mirror.Status) { l.record(status.Version, &status) }
	l.feed.Sent = func(_ string, _, bytes int) {
		if bytes > largeGarbage {
			time.AfterFunc(time.Second, debug.FreeOSMemory)
		}
	}
	return l
}

// serve serves the live files of a version and the digest of the identity files. Verdicts
// on earlier versions are ignored from now on.
func (l *live) serve(set mirror.Set, identity string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var changes []changeOfFile
	for change := range set.Diff(l.from) {
		if l.prefix.matches(change.Name) {
			changes = append(changes, change)
		}
	}
	l.from, l.served, l.awaiting, l.acknowledged, l.rejection = set, nil, true, false, nil
	return l.change(identity, changes)
}

// setIdentity serves a new digest of the identity files.
func (l *live) setIdentity(identity string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.change(identity, nil)
}

// change changes the served files. The caller holds mu.
func (l *live) change(identity string, changes []changeOfFile) error {
	file, err := mirror.NewFile(IdentityName, identity+"\n")
	if err != nil {
		return err
	}
	l.files = l.files.With(append(changes, changeOfFile{Name: IdentityName, Value: file})...)
	// The version must be recorded before a client can get it. Only the latest are kept,
	// because renewals never end.
	l.served = append(l.served[max(len(l.served)-3, 0):], mirror.Version(l.files))
	l.feed.Set(l.files)
	return nil
}

// takeVerdict returns the proxy's verdict on the served files since the last call, if any.
func (l *live) takeVerdict() (acknowledged bool, rejection *mirror.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	acknowledged, rejection = l.acknowledged, l.rejection
	l.acknowledged, l.rejection = false, nil
	return acknowledged, rejection
}

// record records the proxy's verdict on a version that is served: the rejection, or if
// that is nil an awaited acknowledgement.
func (l *live) record(version string, rejection *mirror.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !slices.Contains(l.served, version), rejection == nil && (!l.awaiting || l.acknowledged):
		return
	case rejection == nil:
		l.acknowledged = true
	default:
		l.rejection = rejection
	}
	l.wake.Ring()
}

// awaits reports whether an acknowledgement of the version is awaited.
func (l *live) awaits(version string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.awaiting && slices.Contains(l.served, version)
}

// stopAwaiting ends the wait for an acknowledgement.
func (l *live) stopAwaiting() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.awaiting = false
}

// ServeHTTP answers the pod's own processes. Any of them may read; only those with the
// agent's user ID, which is also the proxy's, may acknowledge and reject.
func (l *live) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !socket.IsLocal(r.RemoteAddr) {
		kit.Reply(w, http.StatusForbidden, socket.LocalOnly)
		return
	}
	if r.Method == http.MethodPost && !socket.IsOwnUser(r) {
		kit.Reply(w, http.StatusForbidden, "only the proxy may report on its files")
		return
	}
	if versions, err := mirror.Versions(r); err == nil && len(versions) > 0 && r.Method == http.MethodGet && l.awaits(versions[0]) && !socket.IsOwnUser(r) {
		// Answer it like any other request, but without acknowledging the version.
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
