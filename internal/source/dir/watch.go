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

	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	// quiet is how long nothing must have changed before files are read again, so
	// that few are seen half written. maxWait is how long that may take.
	quiet   = 100 * time.Millisecond
	maxWait = time.Second
)

// Watch reads the manifests, and again after every change of them, until ctx ends.
// It passes on the facts that have changed since it last did so, sorted by object,
// those of objects that are gone first. The first call of apply comes once every
// path is there and has been read, and is made even if there are no facts. Paths are
// as for Load, but for standard input.
//
// What cannot be read stays as it was: a file that is broken keeps the objects that
// are not found in it any more, and a path that is gone keeps all of its. Report is
// called with all Problems of reading, none included, whenever they have changed.
//
// Both functions are called from the goroutine of Watch, apply first. An error means
// that files cannot be watched.
func Watch(ctx context.Context, paths []string, opts Options, apply func(...mesh.Fact), report func([]mesh.Problem)) error {
	if slices.Contains(paths, "-") {
		return errStdin
	}
	opts.Stdin = nil
	r := newReader(paths, opts)
	out := &output{apply: apply, report: report}
	for {
		// The folders are watched before they are read, so that no change is missed,
		// and anew each time, because a link may lead elsewhere by now.
		r.find()
		events, err := r.watch()
		if err != nil {
			return err
		}
		objects, problems := r.read()
		facts, more := factsOf(objects, opts)
		problems = append(problems, more...)
		for _, m := range r.missing {
			problems = append(problems, mesh.Problem{Object: fileRef(m.path), Reason: ReasonUnreadable, Message: plain(m.err)})
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

// output remembers what it has passed on.
type output struct {
	apply  func(...mesh.Fact)
	report func([]mesh.Problem)

	began, reported bool
	facts           map[mesh.ObjectRef]mesh.Digest
	problems        []mesh.Problem
}

// send passes on what is new. Nothing is applied before the facts are complete once.
func (o *output) send(facts []mesh.Fact, problems []mesh.Problem, complete bool) {
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

// changed returns the facts that are not as they were.
func (o *output) changed(facts []mesh.Fact) []mesh.Fact {
	now := make(map[mesh.ObjectRef]mesh.Digest, len(facts))
	var gone, changed []mesh.Fact
	for _, fact := range facts {
		digest := mesh.DigestOf(fact.Problems)
		if fact.Content != nil {
			digest = mesh.JoinDigests(digest, fact.Content.Digest())
		}
		now[fact.Object] = digest
		if was, ok := o.facts[fact.Object]; !ok || was != digest {
			changed = append(changed, fact)
		}
	}
	for ref := range o.facts {
		if _, ok := now[ref]; !ok {
			gone = append(gone, source.Gone(ref))
		}
	}
	slices.SortFunc(gone, func(a, b mesh.Fact) int { return compareRefs(a.Object, b.Object) })
	o.facts = now
	return append(gone, changed...)
}

// events are the changes of the files of some paths.
type events struct {
	*fsnotify.Watcher
	// paths are absolute. A change of one, or of a folder on the way to it, counts.
	paths []string
	// folders are absolute. A change of anything in one counts, of a link too by which
	// the files of a mounted ConfigMap are swapped.
	folders map[string]bool
}

// watch begins to watch the folders that were found and the way to each path.
func (r *reader) watch() (*events, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watching files: %w; the limit fs.inotify.max_user_instances may have to be raised", err)
	}
	e := &events{Watcher: watcher, folders: make(map[string]bool)}
	add := func(folder string) error {
		err := watcher.Add(folder)
		if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			// It is read anyway, and there will be a Problem if it cannot be.
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

// wait returns true when something has changed and then nothing more for a while,
// and false when ctx has ended.
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
