package servingcert

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
)

// lastRead remembers a source's content when it was last read, to ignore events without a
// change. It is safe for concurrent use.
type lastRead struct {
	mu  sync.Mutex
	sum [sha256.Size]byte
}

func (l *lastRead) set(parts ...[]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sum = digest(parts)
}

func (l *lastRead) differs(parts ...[]byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sum != digest(parts)
}

// digest hashes the parts with their lengths, so that different lists have different
// hashes.
func digest(parts [][]byte) [sha256.Size]byte {
	var all []byte
	for _, part := range parts {
		all = binary.AppendUvarint(all, uint64(len(part)))
		all = append(all, part...)
	}
	return sha256.Sum256(all)
}

// byName limits an informer to one object, as a Role with resourceNames requires.
func byName(name string) func(*metav1.ListOptions) {
	return func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}
}

// runInformer runs the informer until ctx ends and calls changed after each event, when the
// informer's store is up to date.
func runInformer(ctx context.Context, informer cache.SharedIndexInformer, changed func()) {
	// Adding a handler fails only for an informer that has been stopped.
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(any, any) { changed() },
		DeleteFunc: func(any) { changed() },
	})
	informer.RunWithContext(ctx)
}

// stored returns the object under key of the informer's store, or nil.
func stored[T any](informer cache.SharedIndexInformer, key string) *T {
	object, exists, err := informer.GetStore().GetByKey(key)
	if err != nil || !exists {
		return nil
	}
	typed, _ := object.(*T)
	return typed
}
