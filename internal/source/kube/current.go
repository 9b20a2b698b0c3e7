package kube

import (
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// current holds the current state of one object and its subscribers.
type current[T any] struct {
	// value is nil while the object does not exist.
	value atomic.Pointer[T]

	// mu is held while functions are called, so that all see changes in the same order.
	mu        sync.Mutex
	known     bool
	functions []func(*T)
}

func (c *current[T]) set(value *T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.value.Store(value)
	c.known = true
	for _, f := range c.functions {
		f(value)
	}
}

// settle reports that the object does not exist, unless its state is already known.
func (c *current[T]) settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known {
		return
	}
	c.known = true
	for _, f := range c.functions {
		f(nil)
	}
}

func (c *current[T]) subscribe(f func(*T)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.functions = append(c.functions, f)
	if c.known {
		f(c.value.Load())
	}
}

// configMaps holds the ConfigMaps of the control plane's namespace.
type configMaps struct {
	once sync.Once
	// wanted is closed when the first ConfigMap is requested.
	wanted chan struct{}

	mu      sync.Mutex
	settled bool
	byName  map[string]*current[corev1.ConfigMap]
}

func (c *configMaps) want() { c.once.Do(func() { close(c.wanted) }) }

func (c *configMaps) get(name string) *current[corev1.ConfigMap] {
	c.mu.Lock()
	defer c.mu.Unlock()
	configMap, ok := c.byName[name]
	if !ok {
		if c.byName == nil {
			c.byName = make(map[string]*current[corev1.ConfigMap])
		}
		configMap = &current[corev1.ConfigMap]{known: c.settled}
		c.byName[name] = configMap
	}
	return configMap
}

func (c *configMaps) settle() {
	c.mu.Lock()
	c.settled = true
	var all []*current[corev1.ConfigMap]
	for _, configMap := range c.byName {
		all = append(all, configMap)
	}
	c.mu.Unlock()
	for _, configMap := range all {
		configMap.settle()
	}
}

// events calls put with each object that is created or changed, and remove with the last
// known state of each that is deleted.
func events[P client.Object](put, remove func(P)) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(added any) {
			if obj, ok := added.(P); ok {
				put(obj)
			}
		},
		UpdateFunc: func(before, after any) {
			was, known := before.(P)
			// A resync repeats unchanged objects.
			if obj, ok := after.(P); ok && (!known || was.GetResourceVersion() != obj.GetResourceVersion()) {
				put(obj)
			}
		},
		DeleteFunc: func(deleted any) {
			// If the watch missed the deletion, this holds the object's last known
			// state.
			if unknown, missed := deleted.(toolscache.DeletedFinalStateUnknown); missed {
				deleted = unknown.Obj
			}
			if obj, ok := deleted.(P); ok {
				remove(obj)
			}
		},
	}
}
