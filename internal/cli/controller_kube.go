package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	controllerconfig "sigs.k8s.io/controller-runtime/pkg/config"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/internal/audit"
	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/identity/root"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/injector"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// openCluster reads the mesh from a cluster, and tells there what is wrong with it.
func (f *controllerFlags) openCluster(ctx context.Context, metrics prometheus.Registerer, log *slog.Logger) (*origin, error) {
	config, err := f.kube.config()
	if err != nil {
		return nil, err
	}
	// The API server's own priority and fairness bounds what we ask of it.
	config.QPS = -1
	ctrllog.SetLogger(logr.FromSlogHandler(log.Handler()))
	made, err := cache.New(config, kube.CacheOptions(f.mesh.namespace, f.mesh.config, log))
	if err != nil {
		return nil, fmt.Errorf("making a cache of %s: %w", config.Host, err)
	}
	facts, err := kube.New(config, kube.Options{Namespace: f.mesh.namespace, MeshConfigName: f.mesh.config, Cache: made, Log: log})
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of %s: %w", config.Host, err)
	}
	roots, err := f.newClusterRoots(config, client, log)
	if err != nil {
		return nil, err
	}
	live := meshconfig.Follow(facts, meshconfig.Resolve)
	live.OnChange(f.log.follow)
	warnPod, err := audit.NewPodWarner(config)
	if err != nil {
		return nil, err
	}
	read := make(chan struct{})
	mapper := f.mapper()
	w := writer{
		flags: f, config: config, cache: made, facts: facts, mapper: mapper,
		missed: f.newMissed(client, facts, live, read, log), metrics: audit.NewMetrics(metrics), log: log,
	}
	return &origin{
		config: live,
		read:   read,
		feed: func(ctx context.Context, whole *catalog.Catalog) error {
			return facts.Feed(ctx, mapper, whole.Apply, whole.Synced)
		},
		find: func(ctx context.Context, id mesh.Identity, uid string) (mesh.Fact, bool, error) {
			pod, err := facts.FindPod(ctx, id.Namespace, id.ServiceAccount, types.UID(uid))
			if err != nil || pod == nil {
				return mesh.Fact{}, false, err
			}
			fact, ok := mapper.Fact(pod)
			return fact, ok, nil
		},
		tell: w.run,
		run: []func(context.Context) error{
			made.Start,
			facts.Start,
			func(ctx context.Context) error {
				if facts.WaitForSync(ctx) == nil {
					close(read)
				}
				return nil
			},
		},
		reviewer: identity.KubeReviewer{Client: client},
		review:   debug.KubeReview(client),
		member: func(ctx context.Context, w identity.Workload) error {
			return memberOf(ctx, facts, mapper, w)
		},
		roots:  roots,
		probes: []health.Probes{health.Func{ID: "CRD meshconfigs." + v1alpha2.GroupName, Ready: facts.ServesMeshConfigs}},
		warn: func(ctx context.Context, err error) error {
			// Without a name the pod of this process is the one of its host name.
			hostname, _ := os.Hostname()
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			return audit.WarnFatal(ctx, config, f.mesh.namespace, f.mesh.config, env("POD_NAME", hostname), err)
		},
		warnPod:  warnPod,
		rest:     config,
		problems: func() []mesh.Problem { return nil },
	}, nil
}

// writer tells in the cluster what is found, and keeps there what pods need, if it is
// this replica's turn.
type writer struct {
	flags   *controllerFlags
	config  *rest.Config
	cache   cache.Cache
	facts   *kube.Source
	mapper  *source.Mapper
	missed  audit.Missed
	metrics *audit.Metrics
	log     *slog.Logger
}

// run writes until ctx ends. A replica that has lost its turn goes on serving and waits
// for the next one: proxies must not lose theirs because the API server is away.
func (w *writer) run(ctx context.Context, whole *catalog.Catalog, identities *identities) error {
	for {
		err := w.turn(ctx, whole, identities)
		w.metrics.Forget()
		if ctx.Err() != nil {
			return nil
		}
		w.log.Warn("this replica does not write any more, and waits for its next turn", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// turn writes until ctx ends or another replica does.
func (w *writer) turn(ctx context.Context, whole *catalog.Catalog, identities *identities) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	mgr, err := w.flags.newManager(ctx, w.config, w.cache, w.log)
	if err != nil {
		return err
	}
	err = errors.Join(
		audit.AddMeshConfig(ctx, mgr, w.facts, meshconfig.Options(), whole, catalog.ReasonNotSupportedByProxy, w.metrics),
		audit.AddPods(mgr, w.facts, w.flags.mesh.name, w.missed, w.metrics),
		audit.AddPolicies(ctx, mgr, whole, w.mapper, w.metrics),
		audit.AddRejections(mgr, whole, registry.ReasonRejected),
		root.AddBundle(mgr, identities.manager, w.flags.mesh.name, w.log),
		root.AddStatus(mgr, identities.roots, identities.repository),
		root.AddGateway(mgr, identities.roots, identities.manager, w.facts, w.log),
	)
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// memberOf refuses workloads whose namespace is not of the mesh. That there is such a pod
// has been asked of the API server before.
func memberOf(ctx context.Context, facts *kube.Source, mapper *source.Mapper, w identity.Workload) error {
	namespace, err := facts.Namespace(ctx, w.Namespace)
	if err != nil {
		return err
	}
	fact, _ := mapper.Fact(namespace)
	if said, ok := fact.Content.(*mesh.Namespace); !ok || !said.Member {
		return fmt.Errorf("%w: its namespace %s is not of this mesh; label it %s=NAME with the mesh's name", identity.ErrNotMember, w.Namespace, inject.MonitoredByLabel)
	}
	return nil
}

func (f *controllerFlags) mapper() *source.Mapper {
	return source.NewMapper(source.MapperOptions{MeshName: f.mesh.name, Config: meshconfig.Options(), SidecarClass: inject.ClassOf})
}

// newManager returns a manager that is to run until ctx ends, over a cache that goes on.
func (f *controllerFlags) newManager(ctx context.Context, config *rest.Config, shared cache.Cache, log *slog.Logger) (manager.Manager, error) {
	// The names of controllers are labels of metrics; one process may run several
	// managers one after the other.
	skipNameValidation := true
	mgr, err := manager.New(config, manager.Options{
		Scheme:                        kube.Scheme(),
		MapperProvider:                func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return kube.Mapper(), nil },
		NewCache:                      func(*rest.Config, cache.Options) (cache.Cache, error) { return sharedCache{shared, ctx.Done()}, nil },
		Logger:                        logr.FromSlogHandler(log.Handler()),
		LeaderElection:                f.leaderElect,
		LeaderElectionID:              "outrigger-controller",
		LeaderElectionNamespace:       f.mesh.namespace,
		LeaderElectionReleaseOnCancel: true,
		Metrics:                       metricsserver.Options{BindAddress: "0"},
		Controller:                    controllerconfig.Controller{SkipNameValidation: &skipNameValidation},
	})
	if err != nil {
		return nil, fmt.Errorf("making a manager of %s: %w", config.Host, err)
	}
	return mgr, nil
}

// sharedCache is a cache that somebody else has started and that outlives the manager. It
// is not waited for any more once the manager is to end: one that may not read some kind
// would else wait for it for ever, in a loop that never rests.
type sharedCache struct {
	cache.Cache
	end <-chan struct{}
}

// Start waits for the manager's end.
func (c sharedCache) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// WaitForCacheSync returns true when all has been read or the manager is to end.
func (c sharedCache) WaitForCacheSync(ctx context.Context) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-c.end:
			cancel()
		case <-ctx.Done():
		}
	}()
	synced := c.Cache.WaitForCacheSync(ctx)
	select {
	case <-c.end:
		return true
	default:
		return synced
	}
}

// newMissed returns a function that tells what the injector would say of a pod, had it
// been asked. It has no answer before all that there is has been read.
func (f *controllerFlags) newMissed(client kubernetes.Interface, facts *kube.Source, live *source.Live, read <-chan struct{}, log *slog.Logger) audit.Missed {
	engine := injector.New(injector.Assembly{
		Mesh: f.mesh.names(), Config: live, Namespace: injector.Namespaces(facts), NativeSidecars: facts.NativeSidecars, Client: client, Log: log,
	})
	// The metrics of an injector would count decisions about pods that are there
	// already, so nobody sees these.
	reloader := inject.NewReloader(engine, "", inject.NewMetrics(prometheus.NewRegistry()), log)
	if f.templateConfigMap != "" {
		facts.OnConfigMap(f.templateConfigMap, reloader.ConfigMap)
	}
	look := sync.OnceFunc(reloader.Look)
	return func(ctx context.Context, pod *corev1.Pod) (bool, string, string) {
		select {
		case <-read:
			look()
			return missed(ctx, engine, pod, log)
		case <-ctx.Done():
			return false, "", ""
		}
	}
}

// missed asks an injector about a pod that is there already.
func missed(ctx context.Context, engine *inject.Injector, pod *corev1.Pod, log *slog.Logger) (bool, string, string) {
	raw, err := json.Marshal(pod)
	if err != nil {
		log.Error("a pod is not audited", "namespace", pod.Namespace, "pod", pod.Name, "error", err)
		return false, "", ""
	}
	d := engine.Inject(ctx, inject.Request{Namespace: pod.Namespace, Pod: raw, DryRun: true}).Decision
	switch {
	case d.Outcome == inject.Skip:
		return false, "", ""
	case d.Reason == "not_configured" || d.Reason == "namespace_unknown":
		// These say that there was no decision, so nothing is known of the pod.
		log.Warn("a pod is not audited", "namespace", pod.Namespace, "pod", pod.Name, "reason", d.Reason, "message", d.Message)
		return false, "", ""
	}
	return true, string(d.Reason), d.Message
}
