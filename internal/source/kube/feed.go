package kube

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Feed reads every object that a mesh is made of and passes facts on until ctx ends:
// in batches of what has come in the meantime, with one fact of an object at most.
// It calls synced once, when all that there was at first has been applied. A kind
// whose CRD is not installed keeps nobody waiting, and is read once it is. A kind
// that the API server does not let us read keeps synced waiting; the log says so.
//
// Both functions are called from one goroutine; while apply runs, facts gather for
// the next batch. Feed is called once, and works while Start does. It returns an
// error only if the cache cannot be used.
//
// Beside what a Source needs, its user needs to be allowed get, list and watch of
// Pods, Services, EndpointSlices and all kinds of traffic policies in all namespaces.
// ServiceAccounts are not read: a pod names its own, and no fact is about one.
func (s *Source) Feed(ctx context.Context, mapper *source.Mapper, apply func(...mesh.Fact), synced func()) error {
	group, ctx := errgroup.WithContext(ctx)
	b := newBatch(mapper)
	s.OnMeshConfig(b.meshConfig())

	core := []client.Object{&corev1.Namespace{}, &corev1.Pod{}, &corev1.Service{}, &discoveryv1.EndpointSlice{}}
	// Every kind is told of once, so nobody blocks here.
	unread := 1 + len(core) + len(policies())
	read := make(chan struct{}, unread)
	tell := func() func() { return sync.OnceFunc(func() { read <- struct{}{} }) }

	group.Go(func() error {
		select {
		case <-s.meshConfigRead:
			read <- struct{}{}
		case <-ctx.Done():
		}
		return nil
	})
	for _, kind := range core {
		group.Go(func() error { return s.watch(ctx, kind, b.events(), tell()) })
	}
	for _, kind := range policies() {
		group.Go(func() error {
			known := tell()
			if !s.waitForCRD(ctx, kind, known) {
				return nil
			}
			return s.watch(ctx, kind.object, b.events(), known)
		})
	}
	group.Go(func() error {
		for {
			select {
			case <-b.more:
			case <-read:
				unread--
			case <-ctx.Done():
				return nil
			}
			// What has been read is in the batch before its kind is told of.
			if facts := b.take(); len(facts) > 0 {
				apply(facts...)
			}
			if unread == 0 {
				unread = -1
				synced()
			}
		}
	})
	return group.Wait()
}

// batch gathers facts until they are taken.
type batch struct {
	mapper *source.Mapper
	// more holds something while there are facts.
	more chan struct{}

	mu    sync.Mutex
	facts []mesh.Fact
	// index says where the fact of an object is.
	index map[mesh.ObjectRef]int
}

func newBatch(mapper *source.Mapper) *batch {
	return &batch{mapper: mapper, more: make(chan struct{}, 1), index: make(map[mesh.ObjectRef]int)}
}

// put adds a fact, in the place of an older one of its object.
func (b *batch) put(fact mesh.Fact) {
	b.mu.Lock()
	if i, there := b.index[fact.Object]; there {
		b.facts[i] = fact
	} else {
		b.index[fact.Object] = len(b.facts)
		b.facts = append(b.facts, fact)
	}
	b.mu.Unlock()
	select {
	case b.more <- struct{}{}:
	default:
	}
}

func (b *batch) take() []mesh.Fact {
	b.mu.Lock()
	defer b.mu.Unlock()
	facts := b.facts
	b.facts = nil
	clear(b.index)
	return facts
}

// events puts the facts of the objects of a kind.
func (b *batch) events() toolscache.ResourceEventHandler {
	put := func(obj any) {
		if object, ok := obj.(client.Object); ok {
			if fact, ok := b.mapper.Fact(object); ok {
				b.put(fact)
			}
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: put,
		UpdateFunc: func(before, after any) {
			was, _ := before.(client.Object)
			// A resync tells of objects that have not changed.
			if is, ok := after.(client.Object); ok && (was == nil || was.GetResourceVersion() != is.GetResourceVersion()) {
				put(is)
			}
		},
		DeleteFunc: func(deleted any) {
			// The deletion of an object may have been missed, and then this is its last
			// known state.
			if unknown, ok := deleted.(toolscache.DeletedFinalStateUnknown); ok {
				deleted = unknown.Obj
			}
			if object, ok := deleted.(client.Object); ok {
				if ref, ok := source.Ref(object); ok {
					b.put(source.Gone(ref))
				}
			}
		},
	}
}

// meshConfig puts the fact of the MeshConfig, of which there is one or none.
func (b *batch) meshConfig() func(*v1alpha2.MeshConfig) {
	var last *v1alpha2.MeshConfig
	return func(obj *v1alpha2.MeshConfig) {
		if obj == nil && last != nil {
			if ref, ok := source.Ref(last); ok {
				b.put(source.Gone(ref))
			}
		}
		if obj != nil {
			if fact, ok := b.mapper.Fact(obj); ok {
				b.put(fact)
			}
		}
		last = obj
	}
}
