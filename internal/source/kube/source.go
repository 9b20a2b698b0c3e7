// Package kube reads objects from the API server. A Source keeps the mesh's own ones
// in a cache, the MeshConfig, Namespaces and the control plane's ConfigMaps, and reports
// their changes. Its Feed passes on the facts in all objects that a mesh is made of, as
// internal/source finds them. The package writes nothing.
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

// Options say what a Source reads.
type Options struct {
	// Namespace is the control plane's, where the MeshConfig and the ConfigMaps are.
	Namespace string
	// MeshConfigName is the name of the MeshConfig, osm-mesh-config as a rule.
	MeshConfigName string
	// Cache, if it is not nil, is a cache made with CacheOptions that someone else
	// starts, such as a manager. Otherwise the Source has one of its own.
	Cache cache.Cache
	// Log gets what the API server does not let us read.
	Log *slog.Logger
}

// CacheOptions are those of the cache of a Source, so that its owner can add
// objects of its own. Objects in it are trimmed by Trim. The log gets what the API
// server does not let us read.
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

// Source reads objects from one API server. All its methods are safe for use by
// many goroutines, before Start too. Objects that it returns or hands to functions
// are shared and must not be changed, but for those of Namespace.
//
// Its user needs to be allowed get, list and watch of Namespaces, of the
// MeshConfig and, if OnConfigMap is called, of ConfigMaps in the control plane's
// namespace.
type Source struct {
	log       *slog.Logger
	cache     cache.Cache
	ownCache  bool
	live      client.Reader
	discovery *discovery.DiscoveryClient

	meshConfig current[v1alpha2.MeshConfig]
	configMaps configMaps

	namespacesRead, meshConfigRead, configMapsRead chan struct{}
	// served is whether the API server has ever served MeshConfigs.
	served atomic.Bool

	// finding has room for those who look for a pod at a time.
	finding chan struct{}

	versionCalls singleflight.Group
	// native is nil until the API server has told its version.
	native atomic.Pointer[bool]
}

// New returns a Source that does nothing until Start.
func New(config *rest.Config, opts Options) (*Source, error) {
	s := &Source{
		log:            opts.Log,
		cache:          opts.Cache,
		finding:        make(chan struct{}, findAtOnce),
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
		return nil, fmt.Errorf("making a client of %s: %w", config.Host, err)
	}
	if s.discovery, err = discovery.NewDiscoveryClientForConfig(config); err != nil {
		return nil, fmt.Errorf("making a client of %s: %w", config.Host, err)
	}
	return s, nil
}

// Start reads until ctx ends. It is called once. It returns an error only if the
// cache cannot be used; an API server that is away or refuses is asked again.
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
		return s.watch(ctx, &v1alpha2.MeshConfig{}, s.meshConfigEvents(), known)
	})
	group.Go(func() error {
		select {
		case <-s.configMaps.wanted:
			return s.watch(ctx, &corev1.ConfigMap{}, s.configMapEvents(), func() { s.configMaps.settle(); close(s.configMapsRead) })
		case <-ctx.Done():
			return nil
		}
	})
	return group.Wait()
}

// watch hands the events of one kind to the handler until ctx ends, and calls read
// once the handler was told of all objects that there are at first.
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

// WaitForSync returns when all that there is at first has been read and handed to
// the functions. Its error, if ctx ends before, names what has not been read.
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

// ServesMeshConfigs reports whether the API server has been found to serve
// MeshConfigs, be there one or not.
func (s *Source) ServesMeshConfigs() bool { return s.served.Load() }

// MeshConfig returns the MeshConfig, or nil where there is none or it has not been
// read yet. The caller must not change it.
func (s *Source) MeshConfig() *v1alpha2.MeshConfig { return s.meshConfig.value.Load() }

// OnMeshConfig has f called with the MeshConfig, or nil where there is none: once
// when it is known, which may be at once, and after each change of it. Calls do
// not overlap, and f must not block nor call OnMeshConfig.
func (s *Source) OnMeshConfig(f func(*v1alpha2.MeshConfig)) { s.meshConfig.subscribe(f) }

// OnConfigMap has f called with the ConfigMap of that name in the control plane's
// namespace, or nil where there is none: once when it is known, which may be at
// once, and after each change of it. Calls do not overlap, and f must not block nor
// call OnConfigMap.
func (s *Source) OnConfigMap(name string, f func(*corev1.ConfigMap)) {
	s.configMaps.want()
	s.configMaps.get(name).subscribe(f)
}

// Namespace returns a namespace, which is the caller's own. One that is not in the
// cache is asked of the API server, because a pod may come right after it.
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
