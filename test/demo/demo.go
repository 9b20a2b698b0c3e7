// Package demo runs the bookstore's mesh on one machine, without a cluster, and reports
// what happens: real proxies, real certificates, and policies that change while requests
// run.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/samples"
	"github.com/outrigger-mesh/outrigger/test/lab"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
	"github.com/outrigger-mesh/outrigger/test/playground"
)

// Options are the settings of the demo.
type Options struct {
	// Programs are the mesh's programs, and Bookstore is the application's.
	Programs  localmesh.Programs
	Bookstore string
	// Class is the sidecar class of all pods, or Mixed. It must pass CheckClass.
	Class string
	// Dir is an empty folder for all files.
	Dir string
	// Dashboard is the address to serve the dashboard at, as HOST:PORT; the port may be 0.
	Dashboard string
	// DebugListen is the address at which the controller's debug pages are served on this
	// machine. If its port is taken, another one is used.
	DebugListen string
	// For is how long the mesh runs once it is set up; 0 means until ctx ends.
	For time.Duration
	// Out receives the report for people.
	Out io.Writer
	Log *slog.Logger
}

// Run runs the demo. It returns without an error when its time is over or ctx ends, and
// leaves nothing behind except in Dir.
func Run(ctx context.Context, opts Options) error {
	s := &stage{opts: opts, tally: newTally(), journals: playground.NewJournals(), began: time.Now(), known: map[peer]bool{}}
	s.say("The bookstore on this machine: each pod is a network namespace with its own sidecar.")
	manifests, err := Manifests(opts.Class)
	if err != nil {
		return err
	}
	s.say(classes(opts.Class))
	application := lab.Image{Files: map[string]string{"/bookstore": opts.Bookstore}, Entrypoint: []string{"/bookstore"}}
	stock := application
	stock.Entrypoint = []string{"/bookstore", "stock"}
	mesh, err := localmesh.New(ctx, localmesh.Options{
		Dir:       opts.Dir,
		Manifests: manifests,
		Programs:  opts.Programs,
		Images:    map[string]lab.Image{"outriggermesh/bookstore:0.2.0": application, "mysql:8": stock},
		Output: func(pod, container string) io.Writer {
			return s.journals.Writer(pod, container, s.tally.writer(pod, container))
		},
		Progress: s.say,
		Log:      opts.Log,
	})
	if err != nil {
		return s.ended(ctx, err)
	}
	s.mesh = mesh
	window := playground.Window{
		Mesh: mesh, Journals: s.journals, Dashboard: opts.Dashboard, DebugListen: opts.DebugListen, Name: "demo",
		Say: s.say, Log: opts.Log,
	}
	err = window.While(ctx, s.play)
	s.say("Stopping: removing all pods, proxies and networks.")
	return errors.Join(s.ended(ctx, err), mesh.Close())
}

// Manifests returns the sample's manifests by file name, with sidecars of a class or of Mixed.
func Manifests(class string) (map[string]string, error) {
	all, err := manifests()
	if err != nil {
		return nil, err
	}
	return all, setClass(class, all)
}

// manifests returns the sample's manifests by file name.
func manifests() (map[string]string, error) {
	files, err := fs.Glob(samples.Bookstore, "bookstore-smi/*.yaml")
	if err != nil {
		return nil, err
	}
	out := make(map[string]string, len(files))
	for _, file := range files {
		content, err := fs.ReadFile(samples.Bookstore, file)
		if err != nil {
			return nil, err
		}
		out[path.Base(file)] = string(content)
	}
	return out, nil
}

// stage is the state of a running demo.
type stage struct {
	opts  Options
	mesh  *localmesh.Mesh
	tally *tally
	// journals have the output of the containers.
	journals *playground.Journals
	began    time.Time
	// known are the peers that were reported.
	known map[peer]bool
}

// say writes a line with the time since the beginning.
func (s *stage) say(line string) {
	fmt.Fprintf(s.opts.Out, "%4.0fs  %s\n", time.Since(s.began).Seconds(), line)
}

// classes describes the sidecars of the demo.
func classes(class string) string {
	if class != Mixed {
		return "All sidecars are of class " + class + "."
	}
	pods := map[string][]string{}
	for _, m := range mixture {
		pods[m.class] = append(pods[m.class], m.workload)
	}
	var kinds []string
	for _, class := range slices.Sorted(maps.Keys(pods)) {
		kinds = append(kinds, class+" at "+strings.Join(pods[class], ", "))
	}
	return "Three classes of sidecars in one mesh: " + strings.Join(kinds, "; ") + "."
}

// ended drops the error of a demo that was stopped.
func (s *stage) ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// scene is one step of the demo.
type scene struct {
	text string
	// change changes the mesh; nil for a scene without a change.
	change func(ctx context.Context) error
}

// sceneTime is the minimal duration of a scene, and reportEvery the interval of reports.
const (
	sceneTime   = 9 * time.Second
	reportEvery = 3 * time.Second
)

// play runs the scenes, and then reports requests until the time is over.
func (s *stage) play(ctx context.Context) error {
	if s.opts.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.opts.For)
		defer cancel()
	}
	if err := s.identities(ctx); err != nil {
		return s.ended(ctx, err)
	}
	s.tally.reset()
	for _, scene := range s.scenes() {
		s.say(scene.text)
		if scene.change != nil {
			if err := scene.change(ctx); err != nil {
				return s.ended(ctx, err)
			}
		}
		for end := time.Now().Add(sceneTime); time.Now().Before(end); {
			if !s.watch(ctx) {
				return nil
			}
		}
	}
	until := "Ctrl-C"
	if s.opts.For > 0 {
		until = "the time is over"
	}
	s.say("The demo is complete. Requests continue until " + until + ".")
	for s.watch(ctx) {
	}
	return nil
}

// watch reports the requests of an interval. It returns false when ctx has ended.
func (s *stage) watch(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(reportEvery):
	}
	s.say("requests of the last 3 seconds:")
	show(s.opts.Out, s.tally.reset())
	s.newPeers()
	return true
}

// identities reports the proxies that are connected to the controller.
func (s *stage) identities(ctx context.Context) error {
	proxies, err := s.mesh.Proxies(ctx)
	if err != nil {
		return fmt.Errorf("asking the controller which proxies are connected: %w", err)
	}
	s.say(fmt.Sprintf("%d proxies have their configuration. Each has a certificate for its identity, with a key that was generated in its pod:", len(proxies)))
	for _, p := range proxies {
		fmt.Fprintf(s.opts.Out, "      %-32s %-8s %s\n", p.Name, p.Class, p.Identity)
	}
	return nil
}

// newPeers reports the peers that sidecars have verified since the last call.
func (s *stage) newPeers() {
	for _, p := range s.tally.verified() {
		if !s.known[p] {
			s.known[p] = true
			fmt.Fprintf(s.opts.Out, "      mTLS: the sidecar of %s has verified its %s %s\n", p.sidecar, p.role, p.identity)
		}
	}
}

func (s *stage) scenes() []scene {
	return []scene{
		{text: "Nine in ten purchases go to bookstore-v1, one to v2. bookthief is in no TrafficTarget: its sidecar has no route, and the server's would deny it."},
		{"A gateway lets everybody outside the mesh browse, and nothing else.", s.open},
		{"The split is shifted to 50:50 while requests run.", s.split(50, 50)},
		{"bookstore-v2 gets all requests.", s.split(0, 100)},
		{"The controller is killed. Requests continue without it.", func(context.Context) error { return s.mesh.KillController() }},
		{"The controller is back; proxies are up to date, so nothing is resent. A TrafficTarget lets bookthief in.", func(ctx context.Context) error {
			if err := s.mesh.StartController(ctx); err != nil {
				return err
			}
			return s.mesh.Apply(ctx, "thief.yaml", thief)
		}},
		{"The TrafficTarget is deleted again, and bookthief is denied.", func(ctx context.Context) error { return s.mesh.Delete(ctx, "thief.yaml") }},
	}
}

// split changes the weights of the sample's TrafficSplit.
func (s *stage) split(v1, v2 int) func(context.Context) error {
	return func(ctx context.Context) error {
		all, err := manifests()
		if err != nil {
			return err
		}
		changed := strings.Replace(all["policies.yaml"], "service: bookstore-v1, weight: 90", fmt.Sprintf("service: bookstore-v1, weight: %d", v1), 1)
		changed = strings.Replace(changed, "service: bookstore-v2, weight: 10", fmt.Sprintf("service: bookstore-v2, weight: %d", v2), 1)
		return s.mesh.Apply(ctx, "policies.yaml", changed)
	}
}

// thief is a TrafficTarget that allows bookthief's requests.
const thief = `
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: thief, namespace: bookstore}
spec:
  destination: {kind: ServiceAccount, name: bookstore-v2, namespace: bookstore}
  sources: [{kind: ServiceAccount, name: bookthief, namespace: bookthief}]
  rules: [{kind: HTTPRouteGroup, name: bookstore}]
`
