package mirror

import (
	"net/http"
	"slices"
	"sync"
	"time"
)

// remembered is how many former versions a Feed knows, to send what changed since: those
// that somebody has asked with last.
const remembered = 2

// Feed serves one set of files. The zero Feed has none yet and answers with 503. It is
// safe for use by many goroutines; its fields are set before it is used.
type Feed struct {
	// Acked, if set, is called with the version that a request says is in use, with
	// each request anew and before it waits. It is a version that the Feed has or has had
	// lately.
	Acked func(version string)
	// Rejected, if set, is called with each Status about a version that the Feed has or
	// has had lately.
	Rejected func(Status)
	// Sent, if set, is called after a Change was sent: to which version, of how many
	// files, and how long it was in bytes.
	Sent func(version string, files, bytes int)

	mu sync.Mutex
	// set is nil before the first Set.
	set     *Set
	version string
	// used says that somebody has the version, so that it is worth remembering.
	used bool
	// former are the versions that there were, those that were asked with last at the end.
	former []former
	// changed is closed at the next Set; nil if nobody waits for it.
	changed chan struct{}
}

// former is a version that there was.
type former struct {
	version string
	set     Set
}

// Set has the Feed serve the files from now on. It wakes those who wait for a change,
// unless these are the files that it has.
func (f *Feed) Set(set Set) {
	version := Version(set)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.set != nil && f.version == version {
		return
	}
	f.former = slices.DeleteFunc(f.former, func(was former) bool { return was.version == version })
	if f.set != nil && f.used {
		f.former = append(f.former, former{f.version, *f.set})
		f.former = slices.Delete(f.former, 0, max(len(f.former)-remembered, 0))
	}
	f.set, f.version, f.used = &set, version, false
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// Current returns the files and their version, or false before the first Set.
func (f *Feed) Current() (Set, string, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.set == nil {
		return Set{}, "", false
	}
	return *f.set, f.version, true
}

// ServeHTTP serves the protocol at whatever path it is asked. A request that waits ends
// with 304, or 503 before the first Set, when its context does, and the connection with
// it.
func (f *Feed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	switch r.Method {
	case http.MethodGet:
		f.get(w, r)
	case http.MethodHead:
		f.head(w, r)
	case http.MethodPost:
		f.post(w, r)
	default:
		w.Header().Set("Allow", "GET, HEAD, POST")
		http.Error(w, "only GET, HEAD and POST are answered", http.StatusMethodNotAllowed)
	}
}

// since returns what makes the current version of another; of one that is not known, of
// no files. It returns false if there is no current version or it is one of the
// unwanted; then a value comes of the channel as soon as there is another.
func (f *Feed) since(base string, unwanted []string) (Change, bool, <-chan struct{}) {
	f.mu.Lock()
	if f.set == nil || slices.Contains(unwanted, f.version) {
		defer f.mu.Unlock()
		if f.changed == nil {
			f.changed = make(chan struct{})
		}
		return Change{}, false, f.changed
	}
	f.used = true
	set, version := *f.set, f.version
	var was Set
	if i := f.find(base); i >= 0 {
		was = f.former[i].set
	} else {
		base = ""
	}
	f.mu.Unlock()
	return changeOf(version, set, base, was), true, nil
}

// knows reports whether the version is or was lately that of the files, and notes that
// it is used.
func (f *Feed) knows(version string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.set != nil && f.version == version {
		f.used = true
		return true
	}
	i := f.find(version)
	if i < 0 {
		return false
	}
	asked := f.former[i]
	f.former = append(slices.Delete(f.former, i, i+1), asked)
	return true
}

// find returns where a former version is, or -1.
func (f *Feed) find(version string) int {
	return slices.IndexFunc(f.former, func(was former) bool { return was.version == version })
}

// changeOf returns what makes the set of the other.
func changeOf(version string, set Set, base string, was Set) Change {
	change := Change{Version: version, Base: base}
	for c := range set.Diff(was) {
		if c.Delete {
			change.Gone = append(change.Gone, c.Name)
		} else {
			change.Files = append(change.Files, c.Value)
		}
	}
	slices.Sort(change.Gone)
	slices.SortFunc(change.Files, compareFiles)
	return change
}

// awaited waits until something happens, and reports whether it is the change.
func awaited(r *http.Request, changed <-chan struct{}, until <-chan time.Time) bool {
	select {
	case <-changed:
		return true
	case <-until:
	case <-r.Context().Done():
	}
	return false
}
