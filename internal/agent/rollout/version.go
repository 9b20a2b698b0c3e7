package rollout

import (
	"strings"

	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// version is a version of the repository's files.
type version struct {
	name string
	set  mirror.Set
}

// String returns the version's name, or "" for nil.
func (v *version) String() string {
	if v == nil {
		return ""
	}
	return v.name
}

// files returns the version's files, none for nil.
func (v *version) files() mirror.Set {
	if v == nil {
		return mirror.Set{}
	}
	return v.set
}

// livePrefix begins the names of live files; if it is empty, there are none.
type livePrefix string

// matches reports whether a file is live.
func (p livePrefix) matches(name string) bool { return p != "" && strings.HasPrefix(name, string(p)) }

// differ reports whether two versions differ in live files and whether they differ in
// others. A nil version has no files.
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
