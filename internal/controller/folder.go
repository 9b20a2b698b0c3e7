package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/identity/publish"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/injector"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
	"github.com/outrigger-mesh/outrigger/internal/ondemand"
	"github.com/outrigger-mesh/outrigger/internal/servercert"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/dir"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// folder is an origin whose objects are in manifests, without an API server.
type folder struct {
	options  *Options
	from     Folder
	resolver *source.Resolver
	live     *source.Live
	classes  *liveClasses
	// preset is the MeshConfig to use while the manifests have none.
	preset       *v1alpha2.MeshConfig
	tokens       identity.TokenKey
	keeps        rootSources
	certificates *rootCertificates
	// presented are the certificates of gateways.
	presented servercert.Store
	// known is closed when the manifests have been read for the first time. cat is the
	// catalog of their facts.
	known chan struct{}
	cat   atomic.Pointer[catalog.Catalog]
	// reading are the Problems found while reading, which are not in the Snapshot.
	reading problemList
}

func newFolder(from Folder, o *Options) (*folder, error) {
	f := &folder{
		options: o, from: from, resolver: meshconfig.NewResolver(), known: make(chan struct{}),
		certificates: &rootCertificates{read: make(chan struct{}), changed: make(chan struct{}, 1)},
	}
	var err error
	// The chart's MeshConfig is also the default of the offline commands.
	if f.preset, err = meshconfig.OfChart(o.Mesh.Namespace); err != nil {
		return nil, err
	}
	if f.tokens, err = identity.LoadTokenKey(from.CADir); err != nil {
		return nil, fmt.Errorf("%w; choose another folder with --ca-dir", err)
	}
	if f.keeps, err = newFolderRoots(from, f.certificates); err != nil {
		return nil, err
	}
	f.live = source.NewLive(f.resolver.Resolve(nil))
	if f.classes, err = newLiveClasses(o.Mesh, f.live); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *folder) settings() *source.Live { return f.live }

func (f *folder) serverCertificates() driver.ServerCertificates { return &f.presented }

func (f *folder) read() <-chan struct{} { return f.known }

func (f *folder) feed(ctx context.Context, to *catalog.Catalog) error {
	f.cat.Store(to)
	known := sync.OnceFunc(func() { close(f.known) })
	keys, applied := newKeys(to, f.live, f.options.Log)
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	running.Go(func() { keys.Run(ctx) })
	first := sync.OnceFunc(func() { keys.Settle(ctx) })
	apply := func(facts ...fact.Fact) {
		applied(facts...)
		first()
		to.Synced()
		known()
	}
	report := func(problems []mesh.Problem) {
		logChanges(f.options.Log, f.reading.get(), problems)
		f.reading.set(problems)
	}
	return dir.Watch(ctx, f.from.Files, dir.Options{
		Mapper:     injector.Mapper(f.options.Mesh.Name, f.resolver),
		MeshConfig: f.preset,
		OnMeshConfig: func(obj *v1alpha2.MeshConfig) {
			if obj != f.live.GetMeshConfig() {
				f.live.Set(f.resolver.Resolve(obj))
			}
			f.classes.begin()
		},
		OnRootCertificates:   f.certificates.set,
		OnServerCertificates: f.presented.Replace,
		Sidecar:              f.classes.of,
	}, apply, report)
}

// find returns nil: in a folder every workload has a fact.
func (f *folder) find() catalog.Find { return nil }

func (f *folder) reviewer() identity.TokenReviewer { return f.tokens }

func (f *folder) member(ctx context.Context, w identity.Workload) error {
	id := mesh.Identity{TrustDomain: f.live.GetTrustDomain(), Namespace: w.Namespace, ServiceAccount: w.ServiceAccount}
	cat := f.cat.Load()
	if cat == nil {
		return errors.New("the manifests have not been read yet")
	}
	_, err := cat.AwaitView(ctx, id, w.PodUID)
	if errors.Is(err, catalog.ErrNoProxy) {
		return fmt.Errorf("%w: %w", identity.ErrNotMember, err)
	}
	return err
}

func (f *folder) roots() rootSources { return f.keeps }

func (f *folder) learned(of *catalog.Catalog) (ondemand.Store, error) {
	return ondemand.NewFile(filepath.Join(f.from.CADir, "learned-services.json"), of.Apply, of.Snapshot)
}

// report logs Problems, and writes the trust bundle to a file.
func (f *folder) report(ctx context.Context, of *catalog.Catalog, identities *identities) error {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { publish.PublishFile(ctx, identities.manager, f.from.CADir, f.options.Log) })
	logProblems(of, of.SubscribeObjects(ctx.Done()), f.options.Log)
	return nil
}

func (f *folder) problems() []mesh.Problem {
	return append(f.reading.get(), f.classes.problems.get()...)
}

// warn and warnPod do nothing, since there are no Events.
func (f *folder) warn(context.Context, error) error { return nil }

func (f *folder) warnPod(context.Context, string, string, string, string) error { return nil }

func (f *folder) api() api { return api{} }

// rootCertificates are the MeshRootCertificates of the manifests. It implements root.Objects.
type rootCertificates struct {
	// read is closed when the manifests have been read for the first time.
	read chan struct{}
	// changed has a token after each call of set.
	changed chan struct{}

	mu   sync.Mutex
	list []v1alpha2.MeshRootCertificate
}

func (c *rootCertificates) set(list []v1alpha2.MeshRootCertificate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = list
	select {
	case <-c.read:
	default:
		close(c.read)
	}
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// List waits until the manifests have been read, because another CA could sign if an object
// were missed.
func (c *rootCertificates) List(ctx context.Context) ([]v1alpha2.MeshRootCertificate, error) {
	if !wait(ctx, c.read) {
		return nil, errors.New("the manifests have not been read yet")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.list), nil
}

// Watch calls changed after each reading of the manifests.
func (c *rootCertificates) Watch(ctx context.Context, changed func()) {
	for wait(ctx, c.changed) {
		changed()
	}
}

// problemList is a list of Problems that is safe for concurrent use.
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

// liveClasses decides which sidecar a pod of the manifests gets, with the MeshConfig of the
// same manifests.
type liveClasses struct {
	engine *inject.Injector
	// problems are the pods that the injector would deny.
	problems problemList
}

// namespaceKey is the context key of the pod's namespace.
type namespaceKey struct{}

func newLiveClasses(names meshconfig.Mesh, live *source.Live) (*liveClasses, error) {
	config, err := inject.NewConfig("", "")
	if err != nil {
		return nil, err
	}
	engine := injector.New(injector.Assembly{
		Mesh:   names,
		Config: live,
		Namespace: func(ctx context.Context, name string) (*inject.Namespace, error) {
			found, ok := ctx.Value(namespaceKey{}).(*corev1.Namespace)
			if !ok || found == nil {
				return nil, fmt.Errorf("namespace %q is not known", name)
			}
			return inject.NamespaceOf(found), nil
		},
		NativeSidecars: func(context.Context) (bool, error) { return true, nil },
		Log:            slog.New(slog.DiscardHandler),
	})
	engine.Use(config)
	return &liveClasses{engine: engine}, nil
}

// begin drops the Problems of the previous reading.
func (c *liveClasses) begin() { c.problems.set(nil) }

// of is the function Sidecar of dir.Options.
func (c *liveClasses) of(pod *corev1.Pod, namespace *corev1.Namespace) dir.Sidecar {
	ctx := context.WithValue(context.Background(), namespaceKey{}, namespace)
	sidecar, problem := injector.Decide(ctx, c.engine, pod)
	if problem != nil {
		c.problems.add(*problem)
	}
	return sidecar
}

// logProblems logs changes of the objects' Problems until changed is closed.
func logProblems(of *catalog.Catalog, changed <-chan mesh.ObjectRef, log *slog.Logger) {
	logged := make(map[mesh.ObjectRef][]mesh.Problem)
	for object := range changed {
		now := of.Problems(object)
		logChanges(log, logged[object], now)
		if logged[object] = now; len(now) == 0 {
			delete(logged, object)
		}
	}
}

// logChanges logs new and solved Problems.
func logChanges(log *slog.Logger, former, now []mesh.Problem) {
	for _, p := range now {
		if !slices.Contains(former, p) {
			log.Warn("an object has a problem", "object", p.Object.String(), "reason", p.Reason, "field", p.Field, "message", p.Message)
		}
	}
	for _, p := range former {
		if !slices.Contains(now, p) {
			log.Info("a problem is resolved", "object", p.Object.String(), "reason", p.Reason, "field", p.Field)
		}
	}
}
