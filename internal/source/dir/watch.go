package dir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	// quiet is how long files must be unchanged before they are read again, to avoid
	// reading half written files. maxWait limits the delay.
	quiet   = 100 * time.Millisecond
	maxWait = time.Second
)

// Watch reads the manifests initially and after every change, until ctx ends. It calls
// apply with the facts that changed since the last call, sorted by object, deletions
// first. The first call comes once all paths exist and have been read, even if there are
// no facts. Paths are as for Load, except for standard input.
//
// Unreadable parts keep their former state: an invalid file keeps the objects that are no
// longer found in it, and a missing path keeps all of its objects. Watch calls report
// with all Problems of reading, possibly none, whenever they change.
//
// Both functions are called from the goroutine of Watch, apply first. Watch returns an
// error if files can't be watched.
func Watch(ctx context.Context, paths []string, opts Options, apply func(...fact.Fact), report func([]mesh.Problem)) error {
	if slices.Contains(paths, "-") {
		return errStdin
	}
	opts.Stdin = nil
	r := newReader(paths, opts)
	out := &output{apply: apply, report: report}
	for {
		// Watch before reading, so that no change is missed, and anew each time,
		// because links may have changed.
		r.find()
		events, err := r.watch()
		if err != nil {
			return err
		}
		objects, problems := r.read()
		facts, more := factsOf(objects, opts)
		problems = append(once(problems, facts), more...)
		for _, m := range r.missing {
			problems = append(problems, mesh.Problem{Object: fileRef(m.path), Reason: ReasonUnreadable, Message: plain(m.err)})
		}
		if opts.OnRootCertificates != nil && (out.began || len(r.missing) == 0) {
			opts.OnRootCertificates(rootCertificates(objects))
		}
		out.send(facts, sorted(problems), len(r.missing) == 0)
		changed := events.wait(ctx)
		if err := events.Close(); err != nil {
			return fmt.Errorf("closing the watch of files: %w", err)
		}
		if !changed {
			return nil
		}
	}
}

// rootCertificates returns the MeshRootCertificates. Namespaces are ignored: of several
// with the same name it returns the first.
func rootCertificates(objects []object) []v1alpha2.MeshRootCertificate {
	var all []v1alpha2.MeshRootCertificate
	for _, o := range objects {
		obj, ok := o.Object.(*v1alpha2.MeshRootCertificate)
		if ok && !slices.ContainsFunc(all, func(c v1alpha2.MeshRootCertificate) bool { return c.Name == obj.Name }) {
			all = append(all, *obj)
		}
	}
	return all
}

// output remembers what it has sent.
type output struct {
	apply  func(...fact.Fact)
	report func([]mesh.Problem)

	began, reported bool
	facts           map[mesh.ObjectRef]mesh.Digest
	problems        []mesh.Problem
}

// send sends changes. Nothing is applied before the facts are complete for the first
// time.
func (o *output) send(facts []fact.Fact, problems []mesh.Problem, complete bool) {
	if o.began || complete {
		if changed := o.changed(facts); len(changed) > 0 || !o.began {
			o.apply(changed...)
		}
		o.began = true
	}
	if !o.reported || !slices.Equal(o.problems, problems) {
		o.report(problems)
		o.reported, o.problems = true, problems
	}
}

// changed returns the facts that differ from the last call.
func (o *output) changed(facts []fact.Fact) []fact.Fact {
	now := make(map[mesh.ObjectRef]mesh.Digest, len(facts))
	var gone, changed []fact.Fact
	for _, f := range facts {
		digest := mesh.DigestOf(f.Problems)
		if f.Content != nil {
			digest = mesh.JoinDigests(digest, f.Content.Digest())
		}
		now[f.Object] = digest
		if was, ok := o.facts[f.Object]; !ok || was != digest {
			changed = append(changed, f)
		}
	}
	for ref := range o.facts {
		if _, ok := now[ref]; !ok {
			gone = append(gone, source.Gone(ref))
		}
	}
	slices.SortFunc(gone, func(a, b fact.Fact) int { return compareRefs(a.Object, b.Object) })
	o.facts = now
	return append(gone, changed...)
}

// events watches some paths for changes.
type events struct {
	*fsnotify.Watcher
	// paths are absolute. Changes of a path or one of its parent folders count.
	paths []string
	// folders are absolute. Changes of any entry count, including the link that is swapped
	// when a mounted ConfigMap changes.
	folders map[string]bool
}

// watch starts watching the found folders and the parents of each path.
func (r *reader) watch() (*events, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watching files: %w; the limit fs.inotify.max_user_instances may have to be raised", err)
	}
	e := &events{Watcher: watcher, folders: make(map[string]bool)}
	add := func(folder string) error {
		err := watcher.Add(folder)
		if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			// Reading it will report the Problem.
			return nil
		}
		return fmt.Errorf("watching %s: %w; the limit fs.inotify.max_user_watches may have to be raised", folder, errors.Join(err, watcher.Close()))
	}
	for _, path := range r.paths {
		absolute, err := filepath.Abs(path)
		if err != nil {
			return nil, errors.Join(err, watcher.Close())
		}
		e.paths = append(e.paths, absolute)
		for at := absolute; at != filepath.Dir(at); at = filepath.Dir(at) {
			if err := add(filepath.Dir(at)); err != nil {
				return nil, err
			}
		}
	}
	for _, folder := range r.folders {
		absolute, err := filepath.Abs(folder)
		if err != nil {
			return nil, errors.Join(err, watcher.Close())
		}
		e.folders[absolute] = true
		if err := add(absolute); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// wait returns true after a change, once there are no more changes for a while, and false
// when ctx ends.
func (e *events) wait(ctx context.Context) bool {
	var settled, late <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return false
		case event := <-e.Events:
			if !e.counts(event.Name) {
				continue
			}
		case <-e.Errors:
			// Events were lost, so anything may have changed.
		case <-settled:
			return true
		case <-late:
			return true
		}
		settled = time.After(quiet)
		if late == nil {
			late = time.After(maxWait)
		}
	}
}

func (e *events) counts(name string) bool {
	if e.folders[filepath.Dir(name)] {
		return true
	}
	return slices.ContainsFunc(e.paths, func(path string) bool {
		return path == name || strings.HasPrefix(path, name+string(filepath.Separator))
	})
}
