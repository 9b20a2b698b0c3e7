package root

import (
	"context"
	"fmt"
	"log/slog"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/identity/store"
)

// KubeObjects reads MeshRootCertificates of one namespace from an API server. It needs get,
// list and watch.
type KubeObjects struct {
	client    dynamic.Interface
	namespace string
	log       *slog.Logger
}

var _ Objects = (*KubeObjects)(nil)

// NewKubeObjects returns the objects of a namespace.
func NewKubeObjects(client dynamic.Interface, namespace string, log *slog.Logger) *KubeObjects {
	return &KubeObjects{client, namespace, log}
}

// List lists the objects in the API server.
func (o *KubeObjects) List(ctx context.Context) ([]v1alpha2.MeshRootCertificate, error) {
	list, err := o.client.Resource(resource).Namespace(o.namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil // The CRD is not installed.
	}
	if err != nil {
		return nil, err
	}
	all := make([]v1alpha2.MeshRootCertificate, len(list.Items))
	for i := range list.Items {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &all[i]); err != nil {
			return nil, fmt.Errorf("MeshRootCertificate %s/%s: %w", o.namespace, list.Items[i].GetName(), err)
		}
	}
	return all, nil
}

var resource = v1alpha2.SchemeGroupVersion.WithResource("meshrootcertificates")

// Watch watches the API server. If the server does not have the kind, Watch retries at
// growing intervals.
func (o *KubeObjects) Watch(ctx context.Context, changed func()) {
	informer := dynamicinformer.NewFilteredDynamicInformer(o.client, resource, o.namespace, 0, cache.Indexers{}, nil).Informer()
	store.Watch(ctx, informer, o.log.With("kind", "MeshRootCertificate"), changed)
}
