package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// ConfigMaps returns the facts of the ConfigMaps with a name in all namespaces, read once. The function
// read makes the fact of a ConfigMap, or returns false.
func (s *Source) ConfigMaps(ctx context.Context, name string, read func(*corev1.ConfigMap) (fact.Fact, bool)) ([]fact.Fact, error) {
	var list corev1.ConfigMapList
	if err := s.live.List(ctx, &list, client.MatchingFields{metav1.ObjectNameField: name}); err != nil {
		return nil, fmt.Errorf("listing the ConfigMaps %s: %w", name, err)
	}
	var facts []fact.Fact
	for i := range list.Items {
		if f, ok := read(&list.Items[i]); ok {
			facts = append(facts, f)
		}
	}
	return facts, nil
}

// FollowConfigMaps calls apply with the facts of the ConfigMaps with a name in all namespaces until
// ctx ends, and synced once, when it has applied the existing ones. The function read makes the fact
// of a ConfigMap, or returns false. Apply must not block. The clients need list and watch on
// ConfigMaps of this name. While the API server cannot be read, the last facts stay. An error
// means that nothing was followed.
func FollowConfigMaps(ctx context.Context, clients kubernetes.Interface, log *slog.Logger, name string,
	read func(*corev1.ConfigMap) (fact.Fact, bool), apply func(...fact.Fact), synced func(),
) error {
	informer := coreinformers.NewFilteredConfigMapInformer(clients, metav1.NamespaceAll, 0, toolscache.Indexers{}, func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	})
	handler := events(
		func(configMap *corev1.ConfigMap) {
			if f, ok := read(configMap); ok {
				apply(f)
			}
		},
		func(configMap *corev1.ConfigMap) {
			if f, ok := read(configMap); ok {
				apply(source.Gone(f.Object))
			}
		},
	)
	if err := follow(ctx, informer, handler, watchErrors(log.With("configMap", name)), synced); err != nil {
		return fmt.Errorf("watching the ConfigMaps %s: %w", name, err)
	}
	return nil
}

// follow passes the events of an informer to the handler until ctx ends, and calls synced once, when the handler
// has had the existing objects. The function failed is told why objects cannot be read. An error means that
// nothing was followed.
func follow(ctx context.Context, informer toolscache.SharedIndexInformer, handler toolscache.ResourceEventHandler, failed toolscache.WatchErrorHandlerWithContext, synced func()) error {
	events, err := informer.AddEventHandler(handler)
	if err := errors.Join(err, informer.SetWatchErrorHandlerWithContext(failed)); err != nil {
		return err
	}
	go func() {
		if toolscache.WaitForCacheSync(ctx.Done(), events.HasSynced) {
			synced()
		}
	}()
	informer.RunWithContext(ctx)
	return nil
}
