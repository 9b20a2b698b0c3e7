package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	controllerconfig "sigs.k8s.io/controller-runtime/pkg/config"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/internal/audit"
	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
)

// controllerFlags are those of 'outrigger controller'.
type controllerFlags struct {
	kube kubeFlags
	mesh meshFlags
	log  logFlags

	healthListen, templateConfigMap string
	leaderElect                     bool
	catalog                         catalog.Options
}

func newControllerCommand() *cobra.Command {
	var f controllerFlags
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Tell what is wrong with the mesh's objects and which pods have no sidecar",
		Long: `Tell what is wrong with the mesh's objects and which pods have no sidecar.

The controller writes into the status of the MeshConfig and of traffic policies what
it found in the spec: values that cannot be used, names that lead to nothing, objects
that contradict each other, fields that do nothing. It looks for pods that run in a
namespace of the mesh without the sidecar that they should have. It tells of all of it
in Warning Events and metrics.

In this build it does not serve configuration to proxies and issues no
certificates: injected sidecars start and get nothing to do. That comes with the
delivery of configuration.

Several replicas may run; one of them, the leader, writes.`,
		Example: `  # In a pod.
  outrigger controller --mesh-name osm --mesh-namespace osm-system

  # On a workstation, beside nobody else.
  outrigger controller --kubeconfig ~/.kube/config --leader-elect=false`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("template-configmap") {
				f.templateConfigMap = f.mesh.injectorName()
			}
			log, err := f.log.logger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return f.run(cmd.Context(), log)
		},
	}
	flags := cmd.Flags()
	f.kube.add(flags)
	f.mesh.add(flags)
	f.mesh.addConfig(flags)
	flags.StringVar(&f.healthListen, "health-listen", ":9091", "address of /health/alive, /health/ready and /metrics")
	f.log.add(flags)
	flags.StringVar(&f.templateConfigMap, "template-configmap", "", "the injector's ConfigMap, whose policy says which pods should have a sidecar; empty for none (default outrigger-injector, or outrigger-injector-REVISION)")
	flags.DurationVar(&f.catalog.HoldOff, "hold-off", catalog.DefaultHoldOff, "how long the cluster must be quiet before changes are worked in")
	flags.DurationVar(&f.catalog.MaxHoldOff, "max-hold-off", catalog.DefaultMaxHoldOff, "how long a change waits at most to be worked in")
	flags.BoolVar(&f.leaderElect, "leader-elect", true, "let one of several replicas be the one that writes")
	return cmd
}

// run serves, and leaves an Event behind if that fails.
func (f *controllerFlags) run(ctx context.Context, log *slog.Logger) error {
	config, err := f.kube.config()
	if err != nil {
		return err
	}
	// The API server's own priority and fairness bounds what we ask of it.
	config.QPS = -1
	ctrllog.SetLogger(logr.FromSlogHandler(log.Handler()))

	err = f.serve(ctx, config, log)
	if err == nil || ctx.Err() != nil {
		return err
	}
	// Without a name the pod of this process is the one of its host name.
	hostname, _ := os.Hostname()
	last, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return errors.Join(err, audit.WarnFatal(last, config, f.mesh.namespace, f.mesh.config, env("POD_NAME", hostname), err))
}

// serve wires the controller: objects of the cluster to Problems, and those to the
// status, Events and metrics; beside it an injector that is only asked what it
// would do.
func (f *controllerFlags) serve(ctx context.Context, config *rest.Config, log *slog.Logger) error {
	listener, err := net.Listen("tcp", f.healthListen)
	if err != nil {
		return fmt.Errorf("listening for health checks: %w; choose another address with --health-listen", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	mgr, err := f.newManager(ctx, config, log)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	facts, err := kube.New(config, kube.Options{
		Namespace: f.mesh.namespace, MeshConfigName: f.mesh.config, Cache: mgr.GetCache(), Log: log,
	})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	ask, begin, err := f.newMissed(config, facts, log)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	registry := prometheus.NewRegistry()
	metrics := audit.NewMetrics(registry)
	f.catalog.Log = log
	whole, mapper := catalog.New(f.catalog), f.mapper()
	err = errors.Join(
		audit.AddMeshConfig(mgr, facts, configOptions(), metrics),
		audit.AddPods(mgr, facts, f.mesh.name, ask, metrics),
		audit.AddPolicies(ctx, mgr, whole, mapper, metrics),
	)
	if err != nil {
		return errors.Join(err, listener.Close())
	}

	var synced atomic.Bool
	group.Go(func() error {
		whole.Run(ctx)
		return nil
	})
	group.Go(func() error { return facts.Feed(ctx, mapper, whole.Apply, whole.Synced) })
	group.Go(func() error { return mgr.Start(ctx) })
	group.Go(func() error { return facts.Start(ctx) })
	group.Go(func() error {
		if facts.WaitForSync(ctx) != nil {
			return nil
		}
		synced.Store(true)
		begin()
		return nil
	})
	probes := health.Join("outrigger-controller",
		health.Func{ID: "objects of the cluster", Ready: synced.Load},
		health.Func{ID: "snapshot of the mesh", Ready: func() bool {
			select {
			case <-whole.Ready():
				return true
			default:
				return false
			}
		}},
		health.Func{ID: "CRD meshconfigs." + v1alpha2.GroupName, Ready: facts.ServesMeshConfigs},
	)
	group.Go(func() error { return serveProbes(ctx, listener, registry, probes) })
	return group.Wait()
}

func (f *controllerFlags) mapper() *source.Mapper {
	return source.NewMapper(source.MapperOptions{MeshName: f.mesh.name, Config: configOptions(), SidecarClass: inject.ClassOf})
}

// newManager returns a manager that is to run until ctx ends.
func (f *controllerFlags) newManager(ctx context.Context, config *rest.Config, log *slog.Logger) (manager.Manager, error) {
	// The names of controllers are labels of metrics; one process may run several
	// managers one after the other.
	skipNameValidation := true
	mgr, err := manager.New(config, manager.Options{
		Scheme:         kube.Scheme(),
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return kube.Mapper(), nil },
		Cache:          kube.CacheOptions(f.mesh.namespace, f.mesh.config, log),
		NewCache: func(config *rest.Config, opts cache.Options) (cache.Cache, error) {
			made, err := cache.New(config, opts)
			return leftCache{made, ctx.Done()}, err
		},
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

// leftCache is a cache that is not waited for any more once the manager is to end. A
// manager that may not read some kind would else wait for it for ever, in a loop that
// never rests.
type leftCache struct {
	cache.Cache
	end <-chan struct{}
}

// WaitForCacheSync returns true when all has been read or the manager is to end.
func (c leftCache) WaitForCacheSync(ctx context.Context) bool {
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

// newMissed returns a function that tells what the injector would say of a pod,
// had it been asked. It has no answer before begin is called, once all that there
// is has been read.
func (f *controllerFlags) newMissed(config *rest.Config, facts *kube.Source, log *slog.Logger) (ask audit.Missed, begin func(), err error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("making a client of %s: %w", config.Host, err)
	}
	injector := newLiveInjector(facts, client, f.mesh, &f.log, log)
	// The metrics of an injector would count decisions about pods that are there
	// already, so nobody sees these.
	reloader := inject.NewReloader(injector, "", inject.NewMetrics(prometheus.NewRegistry()), log)
	if f.templateConfigMap != "" {
		facts.OnConfigMap(f.templateConfigMap, reloader.ConfigMap)
	}
	ready := make(chan struct{})
	ask = func(ctx context.Context, pod *corev1.Pod) (bool, string, string) {
		select {
		case <-ready:
			return missed(ctx, injector, pod, log)
		case <-ctx.Done():
			return false, "", ""
		}
	}
	return ask, func() { reloader.Look(); close(ready) }, nil
}

// missed asks an injector about a pod that is there already.
func missed(ctx context.Context, injector *inject.Injector, pod *corev1.Pod, log *slog.Logger) (bool, string, string) {
	raw, err := json.Marshal(pod)
	if err != nil {
		log.Error("a pod is not audited", "namespace", pod.Namespace, "pod", pod.Name, "error", err)
		return false, "", ""
	}
	d := injector.Inject(ctx, inject.Request{Namespace: pod.Namespace, Pod: raw, DryRun: true}).Decision
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

func serveProbes(ctx context.Context, listener net.Listener, registry *prometheus.Registry, probes health.Probes) error {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(prometheus.Gatherers{registry, ctrlmetrics.Registry}, promhttp.HandlerOpts{}))
	mux.Handle("/health/alive", health.LivenessHandler(probes))
	mux.Handle("/health/ready", health.ReadinessHandler(probes))
	server := &http.Server{Addr: listener.Addr().String(), Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	return serve(ctx, server, 0, func() error { return server.Serve(listener) })
}
