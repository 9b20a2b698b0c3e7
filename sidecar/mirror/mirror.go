// Package mirror is the protocol that copies a set of text files to another place and
// keeps the copy up to date: from the controller's repository to the agent, and from the
// agent to the proxy beside it.
//
// A client asks for the next version with
//
//	GET URL
//	Accept: application/vnd.outrigger.mirror+json
//	If-None-Match: "VERSION"
//	Prefer: wait=SECONDS
//
// and gets 200 and a Change as JSON as soon as there is another version, or 304 after the
// wait (RFC 9110, RFC 7240). The first version of If-None-Match is the one in use. Others
// may follow that the client does not want: it can't use them, or is applying them. A
// Change is relative to the first version or to no files; without If-None-Match it contains
// all files. The client reports a version that it can't use with
//
//	POST URL
//	Content-Type: application/vnd.outrigger.status+json
//
// and a Status, which is answered with 204. 503 means that there are no files yet, and that
// the client should retry after Retry-After seconds.
//
// A version is a digest of the files' names and content, so it is the same on every
// replica and after every restart.
//
// Feed implements the server and Client the client. Neither interprets the files, and the
// server around a Feed must authenticate clients. The package imports only package mesh of
// this module, since the agent uses it too.
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

// MaxWait bounds how long a server waits for a change.
const MaxWait = 5 * time.Minute

// File is a file of a Set. It is immutable.
type File struct {
	// Name is a relative path with slashes, without ".", ".." and elements that begin
	// with a dot.
	Name string `json:"name"`
	// Text is the content, in UTF-8.
	Text string `json:"text"`
	// Private says that only the user of the copy may read it: it has a private key.
	Private bool `json:"private,omitempty"`

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

// NewPrivateFile is NewFile for a file that only the user of the copy may read.
func NewPrivateFile(name, text string) (*File, error) {
	f, err := NewFile(name, text)
	if err == nil {
		f.Private = true
	}
	return f, err
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

// Set is a set of files by name.
type Set = mesh.Table[*File]

// NewSet returns a Set of the files. Of several files with one name it has the last.
func NewSet(files ...*File) Set {
	changes := make([]mesh.Change[*File], len(files))
	for i, f := range files {
		changes[i] = mesh.Change[*File]{Name: f.Name, Value: f}
	}
	return Set{}.With(changes...)
}

// Version returns the version of the Set. It is never empty.
func Version(s Set) string { return s.Digest().String() }

// Change is the difference between two Sets.
type Change struct {
	// Version is the version of the resulting Set.
	Version string `json:"version"`
	// Base is the version that the change applies to; empty means no files.
	Base string `json:"base,omitempty"`
	// Files are the new and changed files, and Gone the names of the removed ones, both
	// sorted by name.
	Files []*File  `json:"files,omitempty"`
	Gone  []string `json:"gone,omitempty"`
}

// Status reports that a version can't be used.
type Status struct {
	// Version is the version that can't be used.
	Version string `json:"version"`
	// Error is the reason, in the proxy's words.
	Error string `json:"error"`
}

// ErrBase is returned if a Change does not apply to the version at hand. A request
// without If-None-Match returns one that does.
var ErrBase = errors.New("the change applies to another version")

// Apply returns the Set that results from applying the change. It returns ErrBase,
// wrapped, if the change applies to another version, and an error if a file is invalid or
// the result does not have the Version: then no part of it may be used.
func (c Change) Apply(set Set) (Set, error) {
	switch {
	case c.Base == "":
		set = Set{}
	case c.Base != Version(set):
		return Set{}, fmt.Errorf("%w: %s, not %s", ErrBase, c.Base, Version(set))
	}
	changes := make([]mesh.Change[*File], 0, len(c.Files)+len(c.Gone))
	for _, f := range c.Files {
		if f == nil {
			return Set{}, errors.New("a file of the change is null")
		}
		file, err := NewFile(f.Name, f.Text)
		if err != nil {
			return Set{}, err
		}
		file.Private = f.Private
		changes = append(changes, mesh.Change[*File]{Name: file.Name, Value: file})
	}
	for _, name := range c.Gone {
		changes = append(changes, mesh.Change[*File]{Name: name, Delete: true})
	}
	next := set.With(changes...)
	if got := Version(next); got != c.Version {
		return Set{}, fmt.Errorf("the change results in version %s, not in %s", got, c.Version)
	}
	return next, nil
}
