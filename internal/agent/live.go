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
	// prefix is how the names of live files begin; there are none if it is empty.
	prefix string
	feed   mirror.Feed
	polls  chan struct{}
	// wake holds a value when the proxy has said something new.
	wake chan struct{}

	mu sync.Mutex
	// from is the version whose live part is served, and files what is served.
	from, files mirror.Set
	// served are the versions of files since serve, and said is what the proxy has said
	// of them since it was last asked for. Open says that it is not known yet whether it
	// uses them.
	served []string
	open   bool
	said   said
}

// said is what a proxy says about the files that it is served.
type said struct {
	acked    bool
	rejected *mirror.Status
}

func newLive(prefix string) *live {
	l := &live{prefix: prefix, polls: make(chan struct{}, maxPolls), wake: make(chan struct{}, 1)}
	l.feed.Acked, l.feed.Rejected = l.acked, l.rejected
	l.feed.Sent = func(_ string, _, bytes int) {
		if bytes > muchGarbage {
			time.AfterFunc(time.Second, debug.FreeOSMemory)
		}
	}
	return l
}

// is reports whether a file is one of the live ones.
func (l *live) is(name string) bool { return l.prefix != "" && strings.HasPrefix(name, l.prefix) }

// differ reports whether two sets differ in live files, and whether in others.
func (l *live) differ(one, other mirror.Set) (live, others bool) {
	for change := range one.Diff(other) {
		if l.is(change.Name) {
			live = true
		} else {
			others = true
		}
	}
	return live, others
}

// serve has the live files of a version served, with a mark of the identity files. What
// the proxy says of others is nothing new from then on.
func (l *live) serve(set mirror.Set, mark string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var changes []changeOfFile
	for change := range set.Diff(l.from) {
		if l.is(change.Name) {
			changes = append(changes, change)
		}
	}
	l.from, l.served, l.open, l.said = set, nil, true, said{}
	return l.change(mark, changes)
}

// mark tells that the identity files have changed.
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

// take returns what the proxy has said about what is served since the last call.
func (l *live) take() said {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.said
	l.said = said{}
	return s
}

func (l *live) acked(version string) {
	l.hear(version, func() bool {
		news := l.open && !l.said.acked
		l.said.acked = l.open
		return news
	})
}

func (l *live) rejected(status mirror.Status) {
	l.hear(status.Version, func() bool {
		l.said.rejected = &status
		return true
	})
}

// hear notes something about a version that is served, if that is news.
func (l *live) hear(version string, note func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(l.served, version) || !note() {
		return
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// isOpen reports whether it would be news that the version is in use.
func (l *live) isOpen(version string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open && slices.Contains(l.served, version)
}

// settle says that it is known what the proxy makes of what is served.
func (l *live) settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = false
}

// ServeHTTP answers the pod's own processes. All of them may read; what becomes of a
// version is for those to say that run as the user of the agent, and of the proxy.
func (l *live) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !isLocal(r.RemoteAddr) {
		reply(w, http.StatusForbidden, "only the pod's own containers may, over 127.0.0.1 or ::1")
		return
	}
	if r.Method == http.MethodPost && !isOwnUser(r) {
		reply(w, http.StatusForbidden, "only the proxy may say what becomes of its files")
		return
	}
	if versions, err := mirror.Versions(r); err == nil && len(versions) > 0 && r.Method == http.MethodGet && l.isOpen(versions[0]) && !isOwnUser(r) {
		// It is answered as anybody else, but the version does not come into use by it.
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
