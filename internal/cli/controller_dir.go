package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/identity/root"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/injector"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/dir"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// openFolder reads the mesh from manifests, without an API server. What is wrong with
// them is logged and on the debug pages.
func (f *controllerFlags) openFolder(ctx context.Context, log *slog.Logger) (*origin, error) {
	// Manifests without a MeshConfig get the chart's, as for the offline commands.
	preset, _, err := (&snapshotFlags{engine: engineFlags{mesh: f.mesh}}).assumedMeshConfig(io.Discard)
	if err != nil {
		return nil, err
	}
	tokens, err := identity.LoadTokenKey(f.caDir)
	if err != nil {
		return nil, fmt.Errorf("%w; choose another folder with --ca-dir", err)
	}
	roots, err := f.newFolderRoots(log)
	if err != nil {
		return nil, err
	}
	live := f.newLive()
	classes, err := f.newLiveClasses(live)
	if err != nil {
		return nil, err
	}
	var whole atomic.Pointer[catalog.Catalog]
	var reading problemList
	read := make(chan struct{})
	began := sync.OnceFunc(func() { close(read) })
	options := dir.Options{
		Mapper:     source.MapperOptions{MeshName: f.mesh.name, Config: meshconfig.Options(), SidecarClass: inject.ClassOf},
		MeshConfig: preset,
		OnMeshConfig: func(obj *v1alpha2.MeshConfig) {
			if obj != live.GetMeshConfig() {
				c, _ := source.NewConfig(obj, meshconfig.Options())
				live.Set(c)
			}
			classes.begin()
		},
		Sidecar: classes.of,
	}
	return &origin{
		config: live,
		read:   read,
		feed: func(ctx context.Context, to *catalog.Catalog) error {
			whole.Store(to)
			apply := func(facts ...mesh.Fact) {
				to.Apply(facts...)
				to.Synced()
				began()
			}
			report := func(problems []mesh.Problem) {
				tellProblems(log, reading.get(), problems)
				reading.set(problems)
			}
			return dir.Watch(ctx, f.files, options, apply, report)
		},
		tell: func(ctx context.Context, of *catalog.Catalog, identities *identities) error {
			var running sync.WaitGroup
			defer running.Wait()
			running.Go(func() { root.PublishFile(ctx, identities.manager, f.caDir, log) })
			logProblems(of, of.SubscribeObjects(ctx.Done()), log)
			return nil
		},
		reviewer: tokens,
		member: func(ctx context.Context, w identity.Workload) error {
			id := mesh.Identity{TrustDomain: live.GetTrustDomain(), Namespace: w.Namespace, ServiceAccount: w.ServiceAccount}
			to := whole.Load()
			if to == nil {
				return errors.New("the manifests have not been read yet")
			}
			_, err := to.AwaitView(ctx, id, w.PodUID)
			if errors.Is(err, catalog.ErrNoProxy) {
				return fmt.Errorf("%w: %w", identity.ErrNotMember, err)
			}
			return err
		},
		roots:    roots,
		problems: func() []mesh.Problem { return append(reading.get(), classes.problems.get()...) },
		warn:     func(context.Context, error) error { return nil },
	}, nil
}

// newLive returns the configuration of a mesh without a MeshConfig.
func (f *controllerFlags) newLive() *source.Live {
	c, _ := source.NewConfig(nil, meshconfig.Options())
	live := source.NewLive(c)
	live.OnChange(f.log.follow)
	return live
}

// problemList is Problems that change.
type problemList struct {
	mu   sync.Mutex
	list []mesh.Problem
}

func (l *problemList) set(list []mesh.Problem) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = list
}

func (l *problemList) add(p mesh.Problem) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, p)
}

func (l *problemList) get() []mesh.Problem {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.list)
}

// liveClasses decides which sidecars pods of manifests get, by the MeshConfig of the
// same manifests.
type liveClasses struct {
	engine *inject.Injector
	// problems are the pods that the injector would deny.
	problems problemList
}

// namespaceKey finds the namespace of the pod that is asked about.
type namespaceKey struct{}

func (f *controllerFlags) newLiveClasses(live *source.Live) (*liveClasses, error) {
	config, err := inject.NewConfig("", "")
	if err != nil {
		return nil, err
	}
	engine := injector.New(injector.Assembly{
		Mesh:   f.mesh.names(),
		Config: live,
		Namespace: func(ctx context.Context, name string) (*inject.Namespace, error) {
			found, ok := ctx.Value(namespaceKey{}).(*corev1.Namespace)
			if !ok || found == nil {
				return nil, fmt.Errorf("namespace %q is not known", name)
			}
			return &inject.Namespace{Name: found.Name, Labels: found.Labels, Annotations: found.Annotations}, nil
		},
		NativeSidecars: func(context.Context) (bool, error) { return true, nil },
		Log:            discard,
	})
	engine.Use(config)
	return &liveClasses{engine: engine}, nil
}

// begin forgets what was found when the manifests were read before.
func (c *liveClasses) begin() { c.problems.set(nil) }

// of is for dir.Options.
func (c *liveClasses) of(pod *corev1.Pod, namespace *corev1.Namespace) dir.Sidecar {
	ctx := context.WithValue(context.Background(), namespaceKey{}, namespace)
	sidecar, problem := decideSidecar(ctx, c.engine, pod)
	if problem != nil {
		c.problems.add(*problem)
	}
	return sidecar
}

// logProblems logs what is wrong with objects when that changes, until changed is
// closed.
func logProblems(of *catalog.Catalog, changed <-chan mesh.ObjectRef, log *slog.Logger) {
	told := make(map[mesh.ObjectRef][]mesh.Problem)
	for object := range changed {
		now := of.Problems(object)
		tellProblems(log, told[object], now)
		if told[object] = now; len(now) == 0 {
			delete(told, object)
		}
	}
}

// tellProblems logs those that are new, and those that are solved.
func tellProblems(log *slog.Logger, former, now []mesh.Problem) {
	for _, p := range now {
		if !slices.Contains(former, p) {
			log.Warn("something is wrong", "object", p.Object.String(), "reason", p.Reason, "field", p.Field, "message", p.Message)
		}
	}
	for _, p := range former {
		if !slices.Contains(now, p) {
			log.Info("something is not wrong any more", "object", p.Object.String(), "reason", p.Reason, "field", p.Field)
		}
	}
}
