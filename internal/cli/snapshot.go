package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/offline"
	"github.com/outrigger-mesh/outrigger/internal/injector"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/dir"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
)

// snapshotFlags select the objects of which a command makes a Snapshot.
type snapshotFlags struct {
	engine  engineFlags
	files   []string
	timeout time.Duration
}

func (f *snapshotFlags) add(flags *pflag.FlagSet) {
	f.engine.addConfig(flags)
	flags.StringArrayVarP(&f.files, "filename", "f", nil, "file or folder of manifests (*.yaml, *.yml, *.json at any depth), or - for standard input; may be given several times")
	flags.BoolVar(&f.engine.fromCluster, "from-cluster", false, "read the objects of the cluster instead of manifests")
	flags.DurationVar(&f.timeout, "timeout", time.Minute, "with --from-cluster: how long reading the cluster may take")
}

// reading is the mesh of the manifests or of the cluster.
type reading struct {
	*fact.Snapshot
	facts []fact.Fact
	// problems are the Problems of manifests that are not in the Snapshot.
	problems []mesh.Problem
	// unread are the kinds that were not read, with the number of their objects.
	unread []string
}

// read returns the mesh, and warns if no namespace belongs to it.
func (f *snapshotFlags) read(cmd *cobra.Command) (*reading, error) {
	var r reading
	var err error
	from := "manifests"
	switch {
	case f.engine.fromCluster && len(f.files) > 0:
		return nil, usage.Errorf("%s: give -f or --from-cluster, not both", cmd.CommandPath())
	case f.engine.fromCluster:
		from = "cluster"
		r.facts, err = f.clusterFacts(cmd)
	case len(f.files) > 0:
		err = f.manifestFacts(cmd, &r)
	default:
		err = usage.Errorf("%s: name a file or a folder with -f, or - for standard input; or give --from-cluster", cmd.CommandPath())
	}
	if err != nil {
		return nil, err
	}
	namespaces, members := 0, 0
	for _, stated := range r.facts {
		if ns, ok := stated.Content.(*fact.Namespace); ok {
			namespaces++
			if ns.Member {
				members++
			}
		}
	}
	if namespaces > 0 && members == 0 {
		terminal.Fprintf(cmd.ErrOrStderr(), "warning: no namespace of the %s is in mesh %s; name your mesh with --mesh-name\n", from, f.engine.mesh.Name)
	}
	r.Snapshot = catalog.BuildFor(r.facts, catalog.Options{Features: sidecar.Features, Proxyless: sidecar.IsProxyless})
	return &r, nil
}

// clusterFacts reads everything once.
func (f *snapshotFlags) clusterFacts(cmd *cobra.Command) ([]fact.Fact, error) {
	config, err := f.engine.kube.config()
	if err != nil {
		return nil, err
	}
	s, err := kube.New(config, kube.Options{
		Namespace: f.engine.mesh.Namespace, MeshConfigName: f.engine.mesh.Config,
		Log: slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return nil, err
	}
	errUnread := fmt.Errorf("not everything was read within %s; check the connection to the API server, and that you have the right to list Pods, Services, EndpointSlices, Namespaces and the mesh's own kinds", f.timeout)
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), f.timeout, errUnread)
	defer cancel()
	read, done := context.WithCancel(ctx)
	defer done()
	var mu sync.Mutex
	var facts []fact.Fact
	complete := false
	group, groupCtx := errgroup.WithContext(read)
	group.Go(func() error { return s.Start(groupCtx) })
	group.Go(func() error {
		apply := func(some ...fact.Fact) {
			mu.Lock()
			defer mu.Unlock()
			if !complete {
				facts = append(facts, some...)
			}
		}
		return s.Feed(groupCtx, source.NewMapper(injector.Mapper(f.engine.mesh.Name, meshconfig.NewResolver())), apply, func() {
			mu.Lock()
			defer mu.Unlock()
			complete = true
			done()
		})
	})
	ended := make(chan error, 1)
	go func() { ended <- group.Wait() }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		// Requests to a server that does not answer may end later.
		select {
		case <-ended:
		case <-time.After(time.Second):
		}
		return nil, fmt.Errorf("reading the cluster: %w", context.Cause(ctx))
	}
	switch {
	case complete:
		keys, err := s.ConfigMaps(ctx, fact.TokenKeysName, source.TokenKeys)
		if err != nil {
			terminal.Fprintf(cmd.ErrOrStderr(), "warning: %v; keys of tokens that are there are taken as missing\n", err)
		}
		// Nobody who asks a question about the mesh should need private keys for it.
		facts = append(facts, source.AssumedCertificates(facts)...)
		return append(facts, keys...), nil
	case ctx.Err() != nil:
		// The timeout is more informative than the error that it caused.
		err = context.Cause(ctx)
	}
	return nil, fmt.Errorf("reading the cluster: %w", err)
}

// manifestFacts reads the facts of manifests as a controller without a cluster does. Package
// dir adds what a cluster would add, such as pods; the injector decides which sidecar each pod
// gets.
func (f *snapshotFlags) manifestFacts(cmd *cobra.Command, r *reading) error {
	// Standard input is needed twice: for the injector and for package dir.
	var stdin []byte
	if slices.Contains(f.files, "-") {
		var err error
		if stdin, err = io.ReadAll(cmd.InOrStdin()); err != nil {
			return err
		}
	}
	sources, err := offline.Read(f.files, bytes.NewReader(stdin))
	if errors.Is(err, offline.ErrStdinTwice) {
		err = usage.Error{Err: err}
	}
	if err != nil {
		return err
	}
	options := dir.Options{Mapper: injector.Mapper(f.engine.mesh.Name, meshconfig.NewResolver()), Stdin: bytes.NewReader(stdin), OnUnread: func(kinds map[schema.GroupKind]int) {
		for kind, n := range kinds {
			r.unread = append(r.unread, fmt.Sprintf("%d %s", n, kind))
		}
		slices.Sort(r.unread)
	}}
	var given []mesh.Problem
	meshConfig := findMeshConfig(sources)
	if meshConfig == nil {
		if meshConfig, given, err = f.assumedMeshConfig(cmd.ErrOrStderr()); err != nil {
			return err
		}
		options.MeshConfig = meshConfig
	}
	classes, err := f.newClasses(cmd.Context(), sources, meshConfig)
	if err != nil {
		return err
	}
	options.Sidecar = classes.of
	facts, problems, err := dir.Load(f.files, options)
	if err != nil {
		return err
	}
	r.facts, r.problems = facts, slices.Concat(given, problems, classes.problems)
	return nil
}

// classes decides which sidecar each pod gets.
type classes struct {
	ctx    context.Context
	engine *inject.Injector
	// problems are the pods that the injector would deny.
	problems []mesh.Problem
}

// newClasses returns classes that use the injector with the MeshConfig.
func (f *snapshotFlags) newClasses(ctx context.Context, sources []offline.Source, meshConfig *v1alpha2.MeshConfig) (*classes, error) {
	engineFlags := f.engine
	engineFlags.found = meshConfig
	// The MeshConfig's fact has the same Problems.
	engineFlags.problems = io.Discard
	engine, err := engineFlags.build(ctx, offline.Parse(sources).Namespaces())
	if err != nil {
		return nil, err
	}
	return &classes{ctx: ctx, engine: engine}, nil
}

// of is the function Sidecar of dir.Options. The engine already knows the namespaces.
func (c *classes) of(pod *corev1.Pod, _ *corev1.Namespace) dir.Sidecar {
	sidecar, problem := injector.Decide(c.ctx, c.engine, pod)
	if problem != nil {
		c.problems = append(c.problems, *problem)
	}
	return sidecar
}

// allProblems returns the Problems of the Snapshot and the others, sorted.
func allProblems(s *fact.Snapshot, others []mesh.Problem) []mesh.Problem {
	all := slices.Clone(others)
	for _, problems := range s.Problems.All() {
		all = append(all, problems.List...)
	}
	slices.SortFunc(all, func(a, b mesh.Problem) int {
		return cmp.Or(
			strings.Compare(a.Object.Namespace, b.Object.Namespace), strings.Compare(a.Object.Kind, b.Object.Kind),
			strings.Compare(a.Object.Name, b.Object.Name), strings.Compare(a.String(), b.String()),
		)
	})
	return slices.Compact(all)
}

// Proxies returns the proxies of the pods of a folder of manifests, sorted by name.
func Proxies(cmd *cobra.Command, folder string) ([]*mesh.Proxy, error) {
	var flags snapshotFlags
	flags.add(pflag.NewFlagSet("", pflag.ContinueOnError))
	flags.files = []string{folder}
	read, err := flags.read(cmd)
	if err != nil {
		return nil, err
	}
	var proxies []*mesh.Proxy
	for _, view := range read.Views.All() {
		proxies = append(proxies, view.Proxy)
	}
	slices.SortFunc(proxies, func(a, b *mesh.Proxy) int { return a.Name.Compare(b.Name) })
	return proxies, nil
}
