package playground

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/test/lab"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// Options are the settings of a folder that runs as a mesh.
type Options struct {
	// Paths are the files and folders of the manifests.
	Paths []string
	// Class, if not empty, replaces the MeshConfig's sidecar class.
	Class string
	// Commands are the commands and files of containers.
	Commands *Commands
	// Programs are the mesh's programs.
	Programs localmesh.Programs
	// Dir is an empty folder for all files.
	Dir string
	// Dashboard, DebugListen and Name are those of Window.
	Dashboard, DebugListen, Name string
	// Sidecars shows the output of sidecars too.
	Sidecars bool
	// For is how long the mesh runs once it is set up; 0 means until ctx ends.
	For time.Duration
	// Out receives the output of containers and the report for people, and Err what is wrong.
	Out, Err io.Writer
	Log      *slog.Logger
}

// Run runs the manifests as a mesh until ctx ends, and follows their changes. It leaves
// nothing behind except in Dir.
func Run(ctx context.Context, opts Options) error {
	for i, path := range opts.Paths {
		absolute, err := filepath.Abs(path)
		if err != nil {
			return err
		}
		opts.Paths[i] = absolute
	}
	r := &runner{opts: opts, folder: folder{opts.Paths, opts.Class}, began: time.Now(), journals: NewJournals()}
	stamp := r.folder.stamp()
	manifests, notes, err := r.folder.read()
	if err != nil {
		return err
	}
	for _, note := range notes {
		r.say(note)
	}
	mesh, err := localmesh.New(ctx, localmesh.Options{
		Dir: opts.Dir, Manifests: manifests, Programs: opts.Programs, Strict: true, DNS: true,
		MeshName: meshName, MeshNamespace: meshNamespace,
		Images:  opts.Commands.images(r.folders()),
		Prepare: opts.Commands.prepare,
		Output: func(pod, container string) io.Writer {
			return r.journals.Writer(pod, container, r.printer(pod, container))
		},
		Progress: r.say, Log: opts.Log,
	})
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range opts.Commands.unused() {
		r.warn("--command %s: no pod has such a container", name)
	}
	window := Window{
		Mesh: mesh, Journals: r.journals, Dashboard: opts.Dashboard, DebugListen: opts.DebugListen, Name: opts.Name,
		Say: r.say, Log: opts.Log,
	}
	err = window.While(ctx, func(ctx context.Context) error { return r.follow(ctx, mesh, stamp) })
	r.say("Stopping: removing all pods, proxies and networks.")
	if ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, mesh.Close())
}

// runner is a running folder.
type runner struct {
	opts     Options
	folder   folder
	journals *Journals
	began    time.Time
	// printing is held while a line is written.
	printing sync.Mutex
}

// folders returns the folders of the manifests.
func (r *runner) folders() []string {
	var all []string
	for _, path := range r.opts.Paths {
		if isManifest(path) {
			path = filepath.Dir(path)
		}
		all = append(all, path)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// say writes a line with the time since the beginning.
func (r *runner) say(line string) {
	r.printing.Lock()
	defer r.printing.Unlock()
	terminal.Fprintf(r.opts.Out, "%4.0fs  %s\n", time.Since(r.began).Seconds(), line)
}

func (r *runner) warn(format string, args ...any) {
	r.printing.Lock()
	defer r.printing.Unlock()
	_, _ = terminal.FprintError(r.opts.Err, fmt.Errorf(format, args...))
}

// printer returns a writer that shows a container's output, each line after the container's
// name.
func (r *runner) printer(pod, container string) io.Writer {
	if !r.opts.Sidecars && isOfMesh(container) || strings.HasPrefix(pod, meshNamespace+"/") {
		return io.Discard
	}
	return &Lines{Take: func(line []byte) {
		r.printing.Lock()
		defer r.printing.Unlock()
		terminal.Fprintf(r.opts.Out, "%s %s | %s\n", pod, container, string(line))
	}}
}

// pollFiles is the interval at which changes of the manifests are noticed. They are read when
// they have not changed for one interval.
const pollFiles = 300 * time.Millisecond

// follow applies changes of the manifests until ctx ends.
func (r *runner) follow(ctx context.Context, mesh *localmesh.Mesh, applied string) error {
	if r.opts.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.opts.For)
		defer cancel()
	}
	// A change ends what the former one still waits for, such as a pod that cannot start.
	var task sync.WaitGroup
	stop := func() {}
	end := func() {
		stop()
		task.Wait()
	}
	defer end()
	begin := func(f func(context.Context, *localmesh.Mesh)) {
		end()
		of, cancel := context.WithCancel(ctx)
		stop = cancel
		task.Go(func() { f(of, mesh) })
	}
	begin(r.awaitReady)
	r.say("Run a command in a pod: outrigger lab exec " + example(mesh) + " -- COMMAND")
	last := applied
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pollFiles):
		}
		now := r.folder.stamp()
		if now == last && now != applied {
			begin(r.apply)
			applied = now
		}
		last = now
	}
}

// apply replaces the mesh's manifests. The mesh keeps the former ones if that is impossible.
func (r *runner) apply(ctx context.Context, mesh *localmesh.Mesh) {
	before := podsOf(mesh)
	manifests, notes, err := r.folder.read()
	if err == nil {
		for _, note := range notes {
			r.opts.Log.Debug(note)
		}
		err = mesh.Replace(ctx, manifests)
	}
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, localmesh.ErrPods):
		r.warn("%w", err)
	case err != nil:
		r.warn("the manifests have changed and cannot be used, so the mesh keeps the former ones: %w", err)
	default:
		r.say("The manifests have changed; the mesh uses the new ones.")
		if !maps.Equal(before, podsOf(mesh)) {
			r.awaitReady(ctx, mesh)
		}
	}
}

// podsOf returns the mesh's pods by name.
func podsOf(mesh *localmesh.Mesh) map[string]*lab.Pod {
	pods := make(map[string]*lab.Pod)
	for _, name := range mesh.Pods() {
		pods[name] = mesh.Pod(name)
	}
	return pods
}

// awaitReady reports when all pods are ready, or which is not.
func (r *runner) awaitReady(ctx context.Context, mesh *localmesh.Mesh) {
	err := mesh.WaitReady(ctx)
	switch {
	case ctx.Err() != nil || errors.Is(err, lab.ErrClosed):
	case err != nil:
		r.warn("%w", err)
	default:
		r.say(fmt.Sprintf("All %d pods are ready.", len(mesh.Pods())))
	}
}

// example returns a pod to name in an example.
func example(mesh *localmesh.Mesh) string {
	if pods := mesh.Pods(); len(pods) > 0 {
		return pods[0]
	}
	return "NAMESPACE/POD"
}
