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

// kubeSecrets reads and changes Secrets of an API server.
type kubeSecrets struct {
	client kubernetes.Interface
	// rights are those that its user needs, for messages.
	rights string
}

// read returns a Secret. The error wraps ErrNotFound if there is none.
func (s kubeSecrets) read(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	found, err := s.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%w: Secret %s/%s; the controller fills it but may not create Secrets, so create it: kubectl create secret generic %[3]s --namespace %[2]s",
			ErrNotFound, namespace, name)
	}
	return found, s.failed("reading", namespace, name, err)
}

// update changes a Secret. The error wraps ErrConflict if it has changed since read
// returned old.
func (s kubeSecrets) update(ctx context.Context, namespace, name string, old Secret, change func(*corev1.Secret)) error {
	found, err := s.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	changed := err == nil && found.ResourceVersion != old.version
	if err == nil && !changed {
		change(found)
		_, err = s.client.CoreV1().Secrets(namespace).Update(ctx, found, metav1.UpdateOptions{})
	}
	if changed || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return fmt.Errorf("changing Secret %s/%s: %w", namespace, name, ErrConflict)
	}
	return s.failed("changing", namespace, name, err)
}

// failed adds context to an error, and a hint if rights are missing.
func (s kubeSecrets) failed(doing, namespace, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s Secret %s/%s: %w; allow the controller's service account to %s", doing, namespace, name, err, s.rights)
	}
	return fmt.Errorf("%s Secret %s/%s: %w", doing, namespace, name, err)
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

// KubeStore stores Secrets in one namespace of an API server. They must exist, empty at
// first, because the right to create Secrets would allow creating tokens of any service
// account of the namespace. Its user needs get, list, watch and update on each of them.
type KubeStore struct {
	secrets   kubeSecrets
	namespace string
	log       *slog.Logger
}

var _ SecretStore = (*KubeStore)(nil)

// NewKubeStore returns a store in a namespace.
func NewKubeStore(client kubernetes.Interface, namespace string, log *slog.Logger) *KubeStore {
	return &KubeStore{kubeSecrets{client, "get, list, watch and update that Secret"}, namespace, log}
}

// Describe returns the Secret's namespace and name.
func (s *KubeStore) Describe(name string) string { return "Secret " + s.namespace + "/" + name }

// Get reads a Secret from the API server.
func (s *KubeStore) Get(ctx context.Context, name string) (Secret, error) {
	found, err := s.secrets.read(ctx, s.namespace, name)
	if err != nil {
		return Secret{}, err
	}
	return newSecret(found), nil
}

// Update changes the data and leaves the rest of the object unchanged.
func (s *KubeStore) Update(ctx context.Context, name string, old Secret, data map[string][]byte) error {
	return s.secrets.update(ctx, s.namespace, name, old, func(found *corev1.Secret) { found.Data = data })
}

// Watch watches the one Secret.
func (s *KubeStore) Watch(ctx context.Context, name string, changed func()) {
	informer := coreinformers.NewFilteredSecretInformer(s.secrets.client, s.namespace, 0, cache.Indexers{}, func(options *metav1.ListOptions) {
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
