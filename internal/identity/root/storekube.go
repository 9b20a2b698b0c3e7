package root

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// managedByLabel is the label of ConfigMaps that the controller creates; managedBy is its
// value.
const (
	managedByLabel = "app.kubernetes.io/managed-by"
	managedBy      = "outrigger-controller"
)

// KubeStore stores Secrets in one namespace of an API server. They must exist, empty at
// first, because the right to create Secrets would allow creating tokens of any service
// account of the namespace. Its user needs get, list, watch and update on each of them.
type KubeStore struct {
	client    kubernetes.Interface
	namespace string
	log       *slog.Logger
}

var _ SecretStore = (*KubeStore)(nil)

// NewKubeStore returns a store in a namespace.
func NewKubeStore(client kubernetes.Interface, namespace string, log *slog.Logger) *KubeStore {
	return &KubeStore{client, namespace, log}
}

// Describe returns the Secret's namespace and name.
func (s *KubeStore) Describe(name string) string { return "Secret " + s.namespace + "/" + name }

// Get reads a Secret from the API server.
func (s *KubeStore) Get(ctx context.Context, name string) (Secret, error) {
	found, err := s.client.CoreV1().Secrets(s.namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Secret{}, missing(s.namespace, name)
	}
	if err != nil {
		return Secret{}, s.failed("reading", name, err)
	}
	return newSecret(found), nil
}

// newSecret converts a Secret. It is empty if it has no data, or only empty values as its
// type may require.
func newSecret(found *corev1.Secret) Secret {
	empty := true
	for _, value := range found.Data {
		empty = empty && len(value) == 0
	}
	return Secret{Data: found.Data, empty: empty, version: found.ResourceVersion}
}

// missing returns the error for a Secret that does not exist.
func missing(namespace, name string) error {
	return fmt.Errorf("%w: Secret %s/%s; the controller fills it but may not create Secrets, so create it: kubectl create secret generic %[3]s --namespace %[2]s",
		ErrNotFound, namespace, name)
}

// Update changes the data and leaves the rest of the object unchanged.
func (s *KubeStore) Update(ctx context.Context, name string, old Secret, data map[string][]byte) error {
	secret, err := s.client.CoreV1().Secrets(s.namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && secret.ResourceVersion != old.version {
		return fmt.Errorf("changing %s: %w", s.Describe(name), ErrConflict)
	}
	if err == nil {
		secret.Data = data
		_, err = s.client.CoreV1().Secrets(s.namespace).Update(ctx, secret, metav1.UpdateOptions{})
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return fmt.Errorf("changing %s: %w", s.Describe(name), ErrConflict)
	}
	if err != nil {
		return s.failed("changing", name, err)
	}
	return nil
}

// failed adds context to an error, and a hint if rights are missing.
func (s *KubeStore) failed(doing, name string, err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%s %s: %w; allow the controller's service account to get, list, watch and update that Secret", doing, s.Describe(name), err)
	}
	return fmt.Errorf("%s %s: %w", doing, s.Describe(name), err)
}

// Watch watches the one Secret.
func (s *KubeStore) Watch(ctx context.Context, name string, changed func()) {
	informer := coreinformers.NewFilteredSecretInformer(s.client, s.namespace, 0, cache.Indexers{}, func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	})
	watch(ctx, informer, s.log.With("secret", s.namespace+"/"+name), changed)
}

// nameOnly reduces cached objects to the needed metadata, to save memory.
func nameOnly(obj any) (any, error) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return obj, nil
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: object.GetNamespace(), Name: object.GetName(), ResourceVersion: object.GetResourceVersion(),
	}}, nil
}

// watch runs an informer until ctx ends and calls changed after each of its events.
func watch(ctx context.Context, informer cache.SharedIndexInformer, log *slog.Logger, changed func()) {
	// These fail only for a running informer.
	_ = informer.SetTransform(nameOnly)
	_ = informer.SetWatchErrorHandlerWithContext(watchErrors(log))
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(any, any) { changed() },
		DeleteFunc: func(any) { changed() },
	})
	informer.RunWithContext(ctx)
}

// watchErrors logs watch errors. The informer retries at growing intervals, and everything
// is polled anyway.
func watchErrors(log *slog.Logger) cache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, _ *cache.Reflector, err error) {
		switch {
		case ctx.Err() != nil, err == io.EOF, err == io.ErrUnexpectedEOF,
			apierrors.IsResourceExpired(err), apierrors.IsGone(err), apierrors.IsNotFound(err):
		default:
			log.Warn("cannot watch the API server, so changes are noticed late; retrying", "error", err)
		}
	}
}
