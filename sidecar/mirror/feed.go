package mirror

import (
	"net/http"
	"slices"
	"sync"
	"time"
)

// maxFormer is how many former versions a Feed keeps, to send only the difference: those
// that clients have used last.
const maxFormer = 2

// Feed serves one set of files. The zero Feed has none yet and answers with 503. It is
// safe for use by many goroutines; its fields must be set before it is used.
type Feed struct {
	// Acked, if set, is called for each request that names a current or kept version as
	// the one in use, before the request waits.
	Acked func(version string)
	// Rejected, if set, is called with each Status about a current or kept version.
	Rejected func(Status)
	// Unwanted, if set, is called with the current version when a client waits that does not
	// want it: it has refused the version, or has not used it yet.
	Unwanted func(version string)
	// Sent, if set, is called after a Change was sent, with its version, the number of its
	// files, and its length.
	Sent func(version string, files, bytes int)

	mu sync.Mutex
	// set is nil before the first call of Set.
	set     *Set
	version string
	// used says that a client has the version, so that it should be kept.
	used bool
	// former are the kept versions, the most recently used last.
	former []former
	// changed is closed by the next Set; nil if no request waits for it.
	changed chan struct{}
}

// former is a former version.
type former struct {
	version string
	set     Set
}

// Set replaces the files and wakes the waiting requests, unless the files are the same.
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
		f.former = slices.Delete(f.former, 0, max(len(f.former)-maxFormer, 0))
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

// ServeHTTP serves the protocol at every path. When the context of a waiting request is
// done, the answer is 304, or 503 before the first Set, and the connection is closed.
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
		http.Error(w, "only GET, HEAD and POST are allowed", http.StatusMethodNotAllowed)
	}
}

// since returns the Change from the base version, or from no files if the base is unknown,
// to the current one. It returns false if there is no current version or it is unwanted;
// then the channel is closed when there is another.
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

// knows reports whether the version is the current or a kept one, and marks it as used.
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
	used := f.former[i]
	f.former = append(slices.Delete(f.former, i, i+1), used)
	return true
}

// find returns the index of a former version, or -1.
func (f *Feed) find(version string) int {
	return slices.IndexFunc(f.former, func(was former) bool { return was.version == version })
}

// changeOf returns the Change from one Set to another.
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

// awaited waits for a change and reports whether it came in time.
func awaited(r *http.Request, changed <-chan struct{}, until <-chan time.Time) bool {
	select {
	case <-changed:
		return true
	case <-until:
	case <-r.Context().Done():
	}
	return false
}
