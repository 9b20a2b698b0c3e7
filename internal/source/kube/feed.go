package kube

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// Feed reads all objects of the mesh and calls apply with the fact of each, initially and
// after each change, until ctx ends. Each kind has its own goroutine, which preserves the
// order of changes. Apply must not block. Synced is called once, when all initial objects
// have been applied. A kind without a CRD does not delay synced, and is read once the CRD
// is installed. A kind that we are not permitted to read delays synced; this is logged.
//
// Feed must be called once and works while Start runs. It returns an error only if the
// cache is unusable.
//
// In addition to the permissions for a Source, it needs get, list and watch for Pods,
// Services, EndpointSlices and all kinds of traffic policies in all namespaces.
// ServiceAccounts are not read: no fact depends on them.
func (s *Source) Feed(ctx context.Context, mapper *source.Mapper, apply func(...fact.Fact), synced func()) error {
	group, ctx := errgroup.WithContext(ctx)
	f := feed{mapper, apply}
	s.OnMeshConfig(f.meshConfig())

	// The Source already watches the MeshConfig.
	kinds := slices.DeleteFunc(slices.Clone(mapper.Kinds()), func(k source.Kind) bool { return k.Role == source.Configuration })
	var unread atomic.Int64
	unread.Store(int64(1 + len(kinds)))
	read := func() {
		if unread.Add(-1) == 0 {
			synced()
		}
	}
	group.Go(func() error {
		select {
		case <-s.meshConfigRead:
			read()
		case <-ctx.Done():
		}
		return nil
	})
	for _, kind := range kinds {
		group.Go(func() error {
			known := sync.OnceFunc(read)
			if kind.Role != source.Cluster && !s.waitForCRD(ctx, kind, known) {
				return nil
			}
			return s.watch(ctx, kind.New(), events(f.put, f.remove), known)
		})
	}
	return group.Wait()
}

// feed converts objects to facts and applies them.
type feed struct {
	mapper *source.Mapper
	apply  func(...fact.Fact)
}

// put applies the fact of an object, if its kind has facts.
func (f feed) put(obj client.Object) {
	if fact, ok := f.mapper.Fact(obj); ok {
		f.apply(fact)
	}
}

// remove applies the deletion of an object.
func (f feed) remove(obj client.Object) {
	if ref, ok := f.mapper.Ref(obj); ok {
		f.apply(source.Gone(ref))
	}
}

// meshConfig applies the fact of the MeshConfig, of which there is at most one.
func (f feed) meshConfig() func(*v1alpha2.MeshConfig) {
	var last *v1alpha2.MeshConfig
	return func(obj *v1alpha2.MeshConfig) {
		switch {
		case obj != nil:
			f.put(obj)
		case last != nil:
			f.remove(last)
		}
		last = obj
	}
}
