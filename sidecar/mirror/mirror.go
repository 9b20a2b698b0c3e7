// Package mirror is the protocol by which a set of text files is kept equal in
// another place: from the controller's repository to the agent, and from the agent to
// the proxy beside it.
//
// Who has a version asks for the next one with
//
//	GET URL
//	Accept: application/vnd.outrigger.mirror+json
//	If-None-Match: "VERSION"
//	Prefer: wait=SECONDS
//
// and gets 200 and a Change as JSON as soon as there is another version, or 304 when
// the time is up (RFC 9110, RFC 7240). Without If-None-Match the Change holds all
// files. To ask with a version says that it is in use. If-None-Match may name others
// after it, which the client knows and does not want: it can't use them, or is about to.
// A Change is made to the first or to no files. That a version can't be used is told
// with
//
//	POST URL
//	Content-Type: application/vnd.outrigger.status+json
//
// and a Status, which is answered with 204. 503 means that nothing is known yet, and
// that it is worth asking again after Retry-After seconds.
//
// A version is a digest of the files' names and content, so it is the same on every
// replica and after every restart.
//
// Feed is the server's side, Client the other. They know neither who asks nor what is
// in a file: the server around a Feed decides who may ask.
package mirror

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Media types of the protocol.
const (
	ChangeType = "application/vnd.outrigger.mirror+json"
	StatusType = "application/vnd.outrigger.status+json"
)

// MaxWait is the longest that a server waits for a change.
const MaxWait = 5 * time.Minute

// File is a file of a Set. It is immutable.
type File struct {
	// Name is a relative path with slashes, without ".", ".." and elements that begin
	// with a dot.
	Name string `json:"name"`
	// Text is its whole content, UTF-8.
	Text string `json:"text"`

	digest mesh.Digest
}

// NewFile returns a file, or an error if the name is not a relative path or the text is
// not UTF-8.
func NewFile(name, text string) (*File, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("file %q is not UTF-8", name)
	}
	return &File{Name: name, Text: text, digest: mesh.DigestBytes([]byte(text))}, nil
}

// Digest returns a digest of the text.
func (f *File) Digest() mesh.Digest { return f.digest }

func checkName(name string) error {
	if name == "" || path.Clean(name) != name || path.IsAbs(name) || !utf8.ValidString(name) ||
		strings.HasPrefix(name, ".") || strings.Contains(name, "/.") || strings.ContainsAny(name, "\x00\r\n\\") {
		return fmt.Errorf("%q is not the name of a file: it must be a relative path whose elements do not begin with a dot", name)
	}
	return nil
}

// Set is files by their names.
type Set = mesh.Table[*File]

// NewSet returns a Set of the files. Of several of one name the last counts.
func NewSet(files ...*File) Set {
	changes := make([]mesh.Change[*File], len(files))
	for i, f := range files {
		changes[i] = mesh.Change[*File]{Name: f.Name, Value: f}
	}
	return Set{}.With(changes...)
}

// Version returns what the Set is called. It is never empty.
func Version(s Set) string { return s.Digest().String() }

// Change is what makes one Set of another.
type Change struct {
	// Version is that of the Set that comes out.
	Version string `json:"version"`
	// Base is the version that the change is made to; empty means that of no files.
	Base string `json:"base,omitempty"`
	// Files are those that are new or changed, and Gone the names of those that are
	// not there any more, both sorted by name.
	Files []*File  `json:"files,omitempty"`
	Gone  []string `json:"gone,omitempty"`
}

// Status says what became of a version.
type Status struct {
	// Version is the one that could not be used.
	Version string `json:"version"`
	// Error says why, in the proxy's own words.
	Error string `json:"error"`
}

// ErrBase says that a Change is made to another version than the one that is there.
// Asking without If-None-Match gives one that fits.
var ErrBase = errors.New("the change is made to another version")

// Apply returns the Set that the change makes of another. It returns ErrBase, wrapped,
// if that is not what the change was made to, and an error if a file is none or what
// comes out is not the Version: then nothing must be used of it.
func (c Change) Apply(to Set) (Set, error) {
	switch {
	case c.Base == "":
		to = Set{}
	case c.Base != Version(to):
		return Set{}, fmt.Errorf("%w: %s, not %s", ErrBase, c.Base, Version(to))
	}
	changes := make([]mesh.Change[*File], 0, len(c.Files)+len(c.Gone))
	for _, f := range c.Files {
		if f == nil {
			return Set{}, errors.New("the change holds a file that is null")
		}
		file, err := NewFile(f.Name, f.Text)
		if err != nil {
			return Set{}, err
		}
		changes = append(changes, mesh.Change[*File]{Name: file.Name, Value: file})
	}
	for _, name := range c.Gone {
		changes = append(changes, mesh.Change[*File]{Name: name, Delete: true})
	}
	next := to.With(changes...)
	if got := Version(next); got != c.Version {
		return Set{}, fmt.Errorf("the change makes version %s, not %s as it says", got, c.Version)
	}
	return next, nil
}
