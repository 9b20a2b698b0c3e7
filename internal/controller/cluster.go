package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	controllerconfig "sigs.k8s.io/controller-runtime/pkg/config"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/internal/audit"
	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/gateway"
	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/identity/kubelet"
	"github.com/outrigger-mesh/outrigger/internal/identity/publish"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/policy"
	"github.com/outrigger-mesh/outrigger/internal/injector"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
	"github.com/outrigger-mesh/outrigger/internal/ondemand"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/internal/servercert"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/internal/upgrade"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// cluster is an origin whose objects are in an API server.
type cluster struct {
	options  *Options
	config   *rest.Config
	cache    cache.Cache
	facts    *kube.Source
	resolver *source.Resolver
	mapper   *source.Mapper
	client   kubernetes.Interface
	live     *source.Live
	// known is closed when all existing objects have been read.
	known chan struct{}
	keeps rootSources
	// presented are the certificates of gateways.
	presented servercert.Store
	metrics   *audit.Metrics
	podWarn   func(ctx context.Context, namespace, pod, uid, reason, key, message string) error
	// dryRun injects an existing pod as an injector would, and changes nothing. It waits until all
	// objects have been read.
	dryRun func(ctx context.Context, pod *corev1.Pod) (inject.Result, error)
	// policies keeps the admission policies that inject pods; nil without them.
	policies *injector.PolicyKeeper
	// upgrades are the metrics of upgrades, nil without them, and changes tells them of changes
	// of the MeshConfig.
	upgrades *upgrade.Metrics
	changes  func() <-chan struct{}
}

func newCluster(from Cluster, o *Options, metrics prometheus.Registerer) (*cluster, error) {
	config, err := from.Connect()
	if err != nil {
		return nil, err
	}
	// The API server limits requests by priority and fairness.
	config.QPS = -1
	ctrllog.SetLogger(logr.FromSlogHandler(o.Log.Handler()))
	c := &cluster{
		options: o, config: config, known: make(chan struct{}), metrics: audit.NewMetrics(metrics), resolver: meshconfig.NewResolver(),
	}
	c.mapper = source.NewMapper(injector.Mapper(o.Mesh.Name, c.resolver))
	if c.cache, err = cache.New(config, kube.CacheOptions(o.Mesh.Namespace, o.Mesh.Config, o.Log)); err != nil {
		return nil, fmt.Errorf("making a cache of %s: %w", config.Host, err)
	}
	if c.facts, err = kube.New(config, kube.Options{Namespace: o.Mesh.Namespace, MeshConfigName: o.Mesh.Config, Cache: c.cache, Log: o.Log}); err != nil {
		return nil, err
	}
	if c.client, err = kubernetes.NewForConfig(binary(config)); err != nil {
		return nil, fmt.Errorf("creating a client for %s: %w", config.Host, err)
	}
	if c.keeps, err = newClusterRoots(config, c.client, o); err != nil {
		return nil, err
	}
	if c.podWarn, err = audit.NewPodWarner(config); err != nil {
		return nil, err
	}
	c.live = meshconfig.Follow(c.facts, c.resolver)
	c.dryRun = c.newDryRun(from.TemplateConfigMap)
	if from.InjectionPolicies != policy.ModeWebhook && from.InjectionPolicies != "" {
		c.policies = c.newPolicyKeeper(from.TemplateConfigMap, from.InjectionPolicies)
	}
	if o.UpgradeProxies > 0 {
		c.upgrades, c.changes = upgrade.NewMetrics(metrics), configChanges(c.live)
	}
	return c, nil
}

// binary returns a configuration of clients that exchange built-in objects with the API server
// as Protocol Buffers. In JSON, a token's review and its pod would cost as much as signing.
func binary(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return config
}

func (c *cluster) settings() *source.Live { return c.live }

func (c *cluster) serverCertificates() driver.ServerCertificates { return &c.presented }

func (c *cluster) read() <-chan struct{} { return c.known }

func (c *cluster) feed(ctx context.Context, to *catalog.Catalog) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.cache.Start(ctx) })
	group.Go(func() error { return c.facts.Start(ctx) })
	// Without what was learned, proxies would lose services for a moment, and without keys
	// refuse tokens.
	var unread atomic.Int32
	unread.Store(3)
	synced := func() {
		if unread.Add(-1) == 0 {
			to.Synced()
		}
	}
	unread.Add(int32(len(c.options.GatewayCertificates)))
	for _, namespace := range c.options.GatewayCertificates {
		group.Go(func() error {
			put := func(secret *corev1.Secret) {
				if f, ok := c.presented.Put(secret); ok {
					to.Apply(f)
				}
			}
			remove := func(secret *corev1.Secret) { to.Apply(c.presented.Delete(secret)) }
			return kube.FollowCertificates(ctx, c.client, c.options.Log, namespace, put, remove, synced)
		})
	}

	keys, apply := newKeys(to, c.live, c.options.Log)
	group.Go(func() error { return always(keys.Run)(ctx) })
	read := make(chan struct{})
	group.Go(func() error {
		if settle(ctx, keys, read) {
			synced()
		}
		return nil
	})
	group.Go(func() error { return c.facts.Feed(ctx, c.mapper, apply, func() { close(read) }) })
	group.Go(func() error {
		return kube.FollowConfigMaps(ctx, c.client, c.options.Log, fact.LearnedName, source.Learned, to.Apply, synced)
	})
	group.Go(func() error {
		return kube.FollowConfigMaps(ctx, c.client, c.options.Log, fact.TokenKeysName, source.TokenKeys, to.Apply, synced)
	})
	group.Go(func() error {
		if c.facts.WaitForSync(ctx) == nil {
			close(c.known)
		}
		return nil
	})
	return group.Wait()
}

func (c *cluster) find() catalog.Find {
	return func(ctx context.Context, id mesh.Identity, uid string) (fact.Fact, bool, error) {
		pod, err := c.facts.FindPod(ctx, id.Namespace, id.ServiceAccount, types.UID(uid))
		if err != nil || pod == nil {
			return fact.Fact{}, false, err
		}
		f, ok := c.mapper.Fact(pod)
		return f, ok, nil
	}
}

func (c *cluster) reviewer() identity.TokenReviewer { return identity.KubeReviewer{Client: c.client} }

// member refuses workloads whose namespace is not in the mesh. The token review has already
// shown that the pod exists.
func (c *cluster) member(ctx context.Context, w identity.Workload) error {
	namespace, err := c.facts.Namespace(ctx, w.Namespace)
	if err != nil {
		return err
	}
	f, _ := c.mapper.Fact(namespace)
	if content, ok := f.Content.(*fact.Namespace); !ok || !content.Member {
		return fmt.Errorf("%w: its namespace %s is not of this mesh; label it %s=NAME with the mesh's name", identity.ErrNotMember, w.Namespace, metadata.MonitoredBy)
	}
	return nil
}

func (c *cluster) roots() rootSources { return c.keeps }

func (c *cluster) learned(of *catalog.Catalog) (ondemand.Store, error) {
	return ondemand.NewKube(c.client, c.options.Mesh.Name, of.Snapshot), nil
}

// problems returns nil: all Problems of a cluster are in the Snapshot.
func (c *cluster) problems() []mesh.Problem { return nil }

func (c *cluster) warn(ctx context.Context, err error) error {
	// By default a pod's host name is its name.
	hostname, _ := os.Hostname()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return audit.WarnFatal(ctx, c.config, c.options.Mesh.Namespace, c.options.Mesh.Config, cmp.Or(os.Getenv("POD_NAME"), hostname), err)
}

func (c *cluster) warnPod(ctx context.Context, namespace, pod, uid, message string) error {
	return c.podWarn(ctx, namespace, pod, uid, audit.ReasonProxyFailing, "", message)
}

func (c *cluster) api() api {
	return api{
		config: c.config, review: debug.KubeReview(c.client),
		probes: []health.Probes{health.Func{ID: "CRD meshconfigs." + v1alpha2.GroupName, Ready: c.facts.ServesMeshConfigs}},
	}
}

// report writes Problems, and the trust bundle that pods need, while this replica is the
// leader, until ctx ends. A replica that loses the leadership keeps serving and becomes a
// candidate again: proxies must not lose their controller because the API server is
// unavailable.
func (c *cluster) report(ctx context.Context, cat *catalog.Catalog, identities *identities) error {
	for {
		err := c.turn(ctx, cat, identities)
		c.metrics.Forget()
		if ctx.Err() != nil {
			return nil
		}
		c.options.Log.Warn("this replica does not write any more, and waits for its next turn", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// turn writes until ctx ends or this replica loses the leadership.
func (c *cluster) turn(ctx context.Context, cat *catalog.Catalog, identities *identities) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	mgr, err := c.newManager(ctx)
	if err != nil {
		return err
	}
	err = errors.Join(
		audit.AddMeshConfig(ctx, mgr, c.facts, c.resolver, cat, []string{catalog.ReasonNotSupportedByProxy, reasonUpgradeStopped}, c.metrics),
		audit.AddPods(mgr, c.facts, c.options.Mesh.Name, c.missing, c.metrics),
		audit.AddPolicies(ctx, mgr, cat, c.mapper, c.metrics),
		audit.AddRejections(mgr, cat, c.mapper, registry.ReasonRejected),
		publish.AddBundle(mgr, identities.manager, c.options.Mesh.Name, c.options.Log),
		publish.AddStatus(mgr, identities.roots),
		publish.AddGateway(mgr, identities.roots, identities.manager, c.facts, c.options.Log),
		kubelet.Add(mgr, kubelet.Options{
			Manager: identities.manager, Member: c.member, Signer: inject.SignerName(c.options.Mesh.Name), Bundle: inject.TrustBundleName(c.options.Mesh.Name),
			Wanted: func() bool { return c.live.GetMeshConfig().Spec.Certificate.PodCertificates }, Log: c.options.Log,
		}),
	)
	if c.policies != nil {
		err = errors.Join(err, mgr.Add(manager.RunnableFunc(c.policies.Run)))
	}
	if len(c.options.Gateways) > 0 {
		err = errors.Join(err, gateway.Add(ctx, mgr, cat, c.options.Gateways, func(ctx context.Context, about corev1.ObjectReference, reason, message string) error {
			return audit.Warn(ctx, mgr.GetClient(), about, reason, message, message)
		}, c.options.Log))
	}
	if c.upgrades != nil {
		err = errors.Join(err, mgr.Add(c.newRollout(mgr.GetClient(), cat)))
	}
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// newManager returns a manager that runs until ctx ends. The cache outlives it.
func (c *cluster) newManager(ctx context.Context) (manager.Manager, error) {
	// Names of controllers must be unique in a process, which may run several managers one
	// after the other.
	skipNameValidation := true
	mgr, err := manager.New(c.config, manager.Options{
		Scheme:                        kube.Scheme(),
		MapperProvider:                func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return kube.Mapper(), nil },
		NewCache:                      func(*rest.Config, cache.Options) (cache.Cache, error) { return sharedCache{c.cache, ctx.Done()}, nil },
		Logger:                        logr.FromSlogHandler(c.options.Log.Handler()),
		LeaderElection:                c.options.LeaderElect,
		LeaderElectionID:              "outrigger-controller",
		LeaderElectionNamespace:       c.options.Mesh.Namespace,
		LeaderElectionReleaseOnCancel: true,
		Metrics:                       metricsserver.Options{BindAddress: "0"},
		Controller:                    controllerconfig.Controller{SkipNameValidation: &skipNameValidation},
	})
	if err != nil {
		return nil, fmt.Errorf("creating a manager for %s: %w", c.config.Host, err)
	}
	return mgr, nil
}

// sharedCache is a cache that was started elsewhere and outlives the manager. A manager that
// ends must not wait for it: without the right to read some kind, the cache never syncs, and
// the manager would wait in a busy loop forever.
type sharedCache struct {
	cache.Cache
	end <-chan struct{}
}

// Start waits for the manager's end.
func (c sharedCache) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// WaitForCacheSync returns true when the cache has synced or the manager ends.
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

// newDryRun returns the function for dryRun.
func (c *cluster) newDryRun(templateConfigMap string) func(context.Context, *corev1.Pod) (inject.Result, error) {
	engine := injector.New(injector.Assembly{
		Mesh: c.options.Mesh, Config: c.live, Namespace: injector.Namespaces(c.facts), NativeSidecars: c.facts.NativeSidecars, Client: c.client, Log: c.options.Log,
	})
	// These metrics are not exported, since they would count decisions about existing pods.
	reloader := inject.NewReloader(engine, "", inject.NewMetrics(prometheus.NewRegistry()), c.options.Log)
	if templateConfigMap != "" {
		c.facts.OnConfigMap(templateConfigMap, reloader.ConfigMap)
	}
	look := sync.OnceFunc(reloader.Look)
	return func(ctx context.Context, pod *corev1.Pod) (inject.Result, error) {
		select {
		case <-c.known:
		case <-ctx.Done():
			return inject.Result{}, ctx.Err()
		}
		look()
		raw, err := json.Marshal(pod)
		if err != nil {
			return inject.Result{}, err
		}
		return engine.Inject(ctx, inject.Request{Namespace: pod.Namespace, Pod: raw, DryRun: true}), nil
	}
}

// newPolicyKeeper returns the keeper of the admission policies.
func (c *cluster) newPolicyKeeper(templateConfigMap string, mode policy.Mode) *injector.PolicyKeeper {
	live := meshconfig.Follow(c.facts, meshconfig.NewInjectionResolver())
	engine := injector.New(injector.Assembly{
		Mesh: c.options.Mesh, Config: live, Namespace: injector.Namespaces(c.facts),
		NativeSidecars: c.facts.NativeSidecars, PodCertificates: injector.PodCertificates(c.facts, c.options.Mesh.Name), Client: c.client, Log: c.options.Log,
	})
	reloader := inject.NewReloader(engine, "", inject.NewMetrics(prometheus.NewRegistry()), c.options.Log)
	changed := make(chan struct{}, 1)
	signal := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	live.OnChange(func(*source.Config) { signal() })
	if templateConfigMap != "" {
		c.facts.OnConfigMap(templateConfigMap, func(m *corev1.ConfigMap) {
			reloader.ConfigMap(m)
			signal()
		})
	}
	look := sync.OnceFunc(reloader.Look)
	return &injector.PolicyKeeper{
		Client: c.client, Mesh: c.options.Mesh, Mode: mode, Changed: changed, Owner: injector.PolicyOwner(c.options.Mesh.Name), Log: c.options.Log,
		Model: func(ctx context.Context) (*inject.Model, error) {
			select {
			case <-c.known:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			look()
			return engine.Model(), nil
		},
	}
}

// missing is an audit.Missed: it reports whether an injector would inject or deny an existing
// pod that was created without it, and why.
func (c *cluster) missing(ctx context.Context, pod *corev1.Pod) (bool, string, string) {
	result, err := c.dryRun(ctx, pod)
	d, log := result.Decision, c.options.Log.With("namespace", pod.Namespace, "pod", pod.Name)
	switch {
	case ctx.Err() != nil:
		return false, "", ""
	case err != nil:
		log.Error("a pod was not checked for a missing sidecar", "error", err)
		return false, "", ""
	case d.Outcome == inject.Skip:
		return false, "", ""
	case d.Reason == "not_configured" || d.Reason == "namespace_unknown":
		// With these reasons the injector has made no decision.
		log.Warn("a pod was not checked for a missing sidecar", "reason", d.Reason, "message", d.Message)
		return false, "", ""
	}
	return true, string(d.Reason), d.Message
}
