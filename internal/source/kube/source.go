// Package kube reads objects from the API server. A Source caches the MeshConfig,
// Namespaces and the control plane's ConfigMaps and reports their changes. Its method
// Feed applies the facts of all objects of the mesh, as converted by internal/source.
// The package writes nothing.
package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// Options configure a Source.
type Options struct {
	// Namespace is the control plane's namespace, with the MeshConfig and the ConfigMaps.
	Namespace string
	// MeshConfigName is the name of the MeshConfig, normally osm-mesh-config.
	MeshConfigName string
	// Cache, if not nil, is a cache made with CacheOptions and started by someone else,
	// such as a manager. Otherwise the Source has its own.
	Cache cache.Cache
	// Log receives errors of reading from the API server.
	Log *slog.Logger
}

// CacheOptions returns the options for the cache of a Source. Objects in it are trimmed
// by Trim. The log receives errors of reading from the API server.
func CacheOptions(namespace, meshConfigName string, log *slog.Logger) cache.Options {
	return cache.Options{
		Scheme:                   Scheme(),
		Mapper:                   Mapper(),
		DefaultTransform:         Trim,
		DefaultWatchErrorHandler: watchErrors(log),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{namespace: {}}},
			&v1alpha2.MeshConfig{}: {Namespaces: map[string]cache.Config{namespace: {
				FieldSelector: fields.OneTermEqualSelector("metadata.name", meshConfigName),
			}}},
		},
	}
}

// Source reads objects from one API server. All its methods are safe for concurrent use,
// even before Start. Objects that it returns or passes to functions are shared and must
// not be changed, except those of Namespace.
//
// It needs permission to get, list and watch Namespaces, the MeshConfig and, if
// OnConfigMap is called, ConfigMaps in the control plane's namespace.
type Source struct {
	log       *slog.Logger
	cache     cache.Cache
	ownCache  bool
	live      client.Reader
	discovery *discovery.DiscoveryClient
	// podCertificates is the latest answer; nil before the first.
	podCertificates atomic.Pointer[podCertificates]

	meshConfig current[v1alpha2.MeshConfig]
	configMaps configMaps

	namespacesRead, meshConfigRead, configMapsRead chan struct{}
	// served is true once the API server has served MeshConfigs.
	served atomic.Bool

	// finding is a semaphore for concurrent searches of pods.
	finding chan struct{}

	versionCalls singleflight.Group
	// native is nil until the API server's version is known.
	native atomic.Pointer[bool]
}

// New returns a Source that does nothing until Start.
func New(config *rest.Config, opts Options) (*Source, error) {
	s := &Source{
		log:            opts.Log,
		cache:          opts.Cache,
		finding:        make(chan struct{}, findConcurrency),
		namespacesRead: make(chan struct{}),
		meshConfigRead: make(chan struct{}),
		configMapsRead: make(chan struct{}),
	}
	s.configMaps.wanted = make(chan struct{})
	var err error
	if s.cache == nil {
		s.ownCache = true
		if s.cache, err = cache.New(config, CacheOptions(opts.Namespace, opts.MeshConfigName, opts.Log)); err != nil {
			return nil, fmt.Errorf("making a cache of %s: %w", config.Host, err)
		}
	}
	if s.live, err = client.New(config, client.Options{Scheme: Scheme(), Mapper: Mapper()}); err != nil {
		return nil, fmt.Errorf("creating a client for %s: %w", config.Host, err)
	}
	if s.discovery, err = discovery.NewDiscoveryClientForConfig(config); err != nil {
		return nil, fmt.Errorf("creating a client for %s: %w", config.Host, err)
	}
	return s, nil
}

// Start reads until ctx ends. It must be called once. It returns an error only if the
// cache is unusable; if the API server is down or denies access, it retries.
func (s *Source) Start(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	if s.ownCache {
		group.Go(func() error { return s.cache.Start(ctx) })
	}
	group.Go(func() error {
		return s.watch(ctx, &corev1.Namespace{}, toolscache.ResourceEventHandlerFuncs{}, func() { close(s.namespacesRead) })
	})
	group.Go(func() error {
		known := sync.OnceFunc(func() { s.meshConfig.settle(); close(s.meshConfigRead) })
		if s.waitForCRD(ctx, source.MeshConfig(), known) {
			s.served.Store(true)
		}
		return s.watch(ctx, &v1alpha2.MeshConfig{}, events(s.meshConfig.set, func(*v1alpha2.MeshConfig) { s.meshConfig.set(nil) }), known)
	})
	group.Go(func() error {
		select {
		case <-s.configMaps.wanted:
			return s.watch(ctx, &corev1.ConfigMap{}, events(
				func(c *corev1.ConfigMap) { s.configMaps.get(c.Name).set(c) },
				func(c *corev1.ConfigMap) { s.configMaps.get(c.Name).set(nil) },
			), func() { s.configMaps.settle(); close(s.configMapsRead) })
		case <-ctx.Done():
			return nil
		}
	})
	return group.Wait()
}

// watch passes the events of one kind to the handler until ctx ends, and calls read once
// the handler has received all initial objects.
func (s *Source) watch(ctx context.Context, kind client.Object, handler toolscache.ResourceEventHandler, read func()) error {
	informer, err := s.cache.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watching %T: %w", kind, err)
	}
	events, err := informer.AddEventHandler(handler)
	if err != nil {
		return fmt.Errorf("watching %T: %w", kind, err)
	}
	if toolscache.WaitForCacheSync(ctx.Done(), events.HasSynced) {
		read()
	}
	<-ctx.Done()
	return nil
}

// WaitForSync returns when all initial objects have been read and passed to the
// functions. If ctx ends before, the error names what has not been read.
func (s *Source) WaitForSync(ctx context.Context) error {
	type part struct {
		name string
		read chan struct{}
	}
	parts := []part{{"the Namespaces", s.namespacesRead}, {"the MeshConfig", s.meshConfigRead}}
	select {
	case <-s.configMaps.wanted:
		parts = append(parts, part{"the control plane's ConfigMaps", s.configMapsRead})
	default:
	}
	for _, part := range parts {
		select {
		case <-part.read:
		case <-ctx.Done():
			return fmt.Errorf("waiting to read %s; see the log for the API server's answer: %w", part.name, context.Cause(ctx))
		}
	}
	return nil
}

// ServesMeshConfigs reports whether the API server serves MeshConfigs, even if there is
// none.
func (s *Source) ServesMeshConfigs() bool { return s.served.Load() }

// MeshConfig returns the MeshConfig, or nil if there is none or it has not been read yet.
// The caller must not change it.
func (s *Source) MeshConfig() *v1alpha2.MeshConfig { return s.meshConfig.value.Load() }

// OnMeshConfig calls f with the MeshConfig, or nil if there is none: once when its state
// is known, possibly immediately, and after each change. Calls do not overlap. f must not
// block or call OnMeshConfig.
func (s *Source) OnMeshConfig(f func(*v1alpha2.MeshConfig)) { s.meshConfig.subscribe(f) }

// OnConfigMap calls f with the named ConfigMap of the control plane's namespace, or nil
// if there is none: once when its state is known, possibly immediately, and after each
// change. Calls do not overlap. f must not block or call OnConfigMap.
func (s *Source) OnConfigMap(name string, f func(*corev1.ConfigMap)) {
	s.configMaps.want()
	s.configMaps.get(name).subscribe(f)
}

// Namespace returns a namespace, which the caller may change. If it is not in the cache,
// it is read from the API server, since a pod may be created right after its namespace.
func (s *Source) Namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	var namespace corev1.Namespace
	key := client.ObjectKey{Name: name}
	select {
	case <-s.namespacesRead:
		if s.cache.Get(ctx, key, &namespace) == nil {
			return &namespace, nil
		}
	default:
	}
	if err := s.live.Get(ctx, key, &namespace); err != nil {
		return nil, fmt.Errorf("namespace %q: %w", name, err)
	}
	return &namespace, nil
}
