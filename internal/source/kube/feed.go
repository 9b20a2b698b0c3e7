package kube

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Feed reads every object that a mesh is made of and has apply called with the fact in
// each, as it comes, until ctx ends: by a goroutine for each kind, in the order in which
// the objects of the kind change. Apply must not block. Synced is called once, when all
// that there was at first has been applied. A kind whose CRD is not installed keeps
// nobody waiting, and is read once it is. A kind that the API server does not let us
// read keeps synced waiting; the log says so.
//
// Feed is called once, and works while Start does. It returns an error only if the
// cache cannot be used.
//
// Beside what a Source needs, its user needs to be allowed get, list and watch of
// Pods, Services, EndpointSlices and all kinds of traffic policies in all namespaces.
// ServiceAccounts are not read: a pod names its own, and no fact is about one.
func (s *Source) Feed(ctx context.Context, mapper *source.Mapper, apply func(...mesh.Fact), synced func()) error {
	group, ctx := errgroup.WithContext(ctx)
	f := feed{mapper, apply}
	s.OnMeshConfig(f.meshConfig())

	// The MeshConfig is known to the Source already.
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
			return s.watch(ctx, kind.New(), f.events(), known)
		})
	}
	return group.Wait()
}

// feed passes on the facts in objects.
type feed struct {
	mapper *source.Mapper
	apply  func(...mesh.Fact)
}

// put passes on the fact in an object, if the mesh reads its kind.
func (f feed) put(obj any) {
	if object, ok := obj.(client.Object); ok {
		if fact, ok := f.mapper.Fact(object); ok {
			f.apply(fact)
		}
	}
}

// remove passes on that an object is gone.
func (f feed) remove(obj any) {
	if object, ok := obj.(client.Object); ok {
		if ref, ok := f.mapper.Ref(object); ok {
			f.apply(source.Gone(ref))
		}
	}
}

// events passes on the facts of the objects of a kind.
func (f feed) events() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: f.put,
		UpdateFunc: func(before, after any) {
			was, _ := before.(client.Object)
			// A resync tells of objects that have not changed.
			if is, ok := after.(client.Object); ok && (was == nil || was.GetResourceVersion() != is.GetResourceVersion()) {
				f.put(is)
			}
		},
		DeleteFunc: func(deleted any) {
			// The deletion of an object may have been missed, and then this is its last
			// known state.
			if unknown, ok := deleted.(toolscache.DeletedFinalStateUnknown); ok {
				deleted = unknown.Obj
			}
			f.remove(deleted)
		},
	}
}

// meshConfig passes on the fact of the MeshConfig, of which there is one or none.
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
