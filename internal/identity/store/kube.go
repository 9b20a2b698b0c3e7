package store

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

// KubeSecrets reads and changes Secrets in any namespace of an API server.
type KubeSecrets struct {
	Client kubernetes.Interface
	// Rights are those that its user needs, for messages.
	Rights string
}

// Read returns a Secret. The error wraps ErrNotFound if there is none.
func (s KubeSecrets) Read(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	found, err := s.Client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%w: Secret %s/%s; the controller fills it but may not create Secrets, so create it: kubectl create secret generic %[3]s --namespace %[2]s",
			ErrNotFound, namespace, name)
	}
	return found, s.failed("reading", namespace, name, err)
}

// Update changes a Secret. The error wraps ErrConflict if it has changed since Read
// returned old.
func (s KubeSecrets) Update(ctx context.Context, namespace, name string, old Secret, change func(*corev1.Secret)) error {
	found, err := s.Client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	changed := err == nil && found.ResourceVersion != old.Version
	if err == nil && !changed {
		change(found)
		_, err = s.Client.CoreV1().Secrets(namespace).Update(ctx, found, metav1.UpdateOptions{})
	}
	if changed || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return fmt.Errorf("changing Secret %s/%s: %w", namespace, name, ErrConflict)
	}
	return s.failed("changing", namespace, name, err)
}

// failed adds context to an error, and a hint if rights are missing.
func (s KubeSecrets) failed(doing, namespace, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s Secret %s/%s: %w; allow the controller's service account to %s", doing, namespace, name, err, s.Rights)
	}
	return fmt.Errorf("%s Secret %s/%s: %w", doing, namespace, name, err)
}

// SecretOf returns the content of a Secret. It is empty if it has no data, or only empty values as its
// type may require.
func SecretOf(found *corev1.Secret) Secret {
	empty := true
	for _, value := range found.Data {
		empty = empty && len(value) == 0
	}
	return Secret{Data: found.Data, Empty: empty, Version: found.ResourceVersion}
}

// Kube stores Secrets in one namespace of an API server. They must exist, empty at
// first, because the right to create Secrets would allow creating tokens of any service
// account of the namespace. Its user needs get, list, watch and update on each of them.
type Kube struct {
	secrets   KubeSecrets
	namespace string
	log       *slog.Logger
}

var _ Secrets = (*Kube)(nil)

// NewKube returns a store in a namespace.
func NewKube(client kubernetes.Interface, namespace string, log *slog.Logger) *Kube {
	return &Kube{KubeSecrets{client, "get, list, watch and update that Secret"}, namespace, log}
}

// Describe returns the Secret's namespace and name.
func (s *Kube) Describe(name string) string { return "Secret " + s.namespace + "/" + name }

// Get reads a Secret from the API server.
func (s *Kube) Get(ctx context.Context, name string) (Secret, error) {
	found, err := s.secrets.Read(ctx, s.namespace, name)
	if err != nil {
		return Secret{}, err
	}
	return SecretOf(found), nil
}

// Update changes the data and leaves the rest of the object unchanged.
func (s *Kube) Update(ctx context.Context, name string, old Secret, data map[string][]byte) error {
	return s.secrets.Update(ctx, s.namespace, name, old, func(found *corev1.Secret) { found.Data = data })
}

// Watch watches the one Secret.
func (s *Kube) Watch(ctx context.Context, name string, changed func()) {
	informer := coreinformers.NewFilteredSecretInformer(s.secrets.Client, s.namespace, 0, cache.Indexers{}, func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	})
	Watch(ctx, informer, s.log.With("secret", s.namespace+"/"+name), changed)
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

// Watch runs an informer until ctx ends and calls changed after each of its events.
func Watch(ctx context.Context, informer cache.SharedIndexInformer, log *slog.Logger, changed func()) {
	// These fail only for a running informer.
	_ = informer.SetTransform(nameOnly)
	_ = informer.SetWatchErrorHandlerWithContext(WatchErrors(log))
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(any, any) { changed() },
		DeleteFunc: func(any) { changed() },
	})
	informer.RunWithContext(ctx)
}

// WatchErrors returns a handler that logs errors of watches. The informer retries at growing intervals, and everything
// is polled anyway.
func WatchErrors(log *slog.Logger) cache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, _ *cache.Reflector, err error) {
		switch {
		case ctx.Err() != nil, err == io.EOF, err == io.ErrUnexpectedEOF,
			apierrors.IsResourceExpired(err), apierrors.IsGone(err), apierrors.IsNotFound(err):
		default:
			log.Warn("cannot watch the API server, so changes are noticed late; retrying", "error", err)
		}
	}
}
