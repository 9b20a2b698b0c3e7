package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
)

// FollowCertificates calls put with each Secret of the type kubernetes.io/tls in a namespace, or in all if that is
// "*", initially and after each change, and remove with those that are deleted, until ctx ends. It calls synced once, when
// put has had the existing ones, or when the API server denies reading them: the right may have gone with the
// namespace, which must not hold up everything else. The functions must not block, and must not change the
// Secrets. The clients need list and watch on Secrets there. While the API server cannot be read, nothing else is
// called. An error means that nothing was followed.
func FollowCertificates(ctx context.Context, clients kubernetes.Interface, log *slog.Logger, namespace string, put, remove func(*corev1.Secret), synced func()) error {
	if namespace == "*" {
		namespace = metav1.NamespaceAll
	}
	informer := coreinformers.NewFilteredSecretInformer(clients, namespace, 0, toolscache.Indexers{}, func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector("type", string(corev1.SecretTypeTLS)).String()
	})
	synced = sync.OnceFunc(synced)
	logs := watchErrors(log.With("secrets", string(corev1.SecretTypeTLS), "namespace", namespace))
	failed := func(ctx context.Context, r *toolscache.Reflector, err error) {
		logs(ctx, r, err)
		if apierrors.IsForbidden(err) {
			synced()
		}
	}
	err := informer.SetTransform(trimSecret)
	if err == nil {
		err = follow(ctx, informer, events(put, remove), failed, synced)
	}
	if err != nil {
		return fmt.Errorf("watching the Secrets with certificates: %w", err)
	}
	return nil
}

// trimSecret keeps what a certificate consists of.
func trimSecret(obj any) (any, error) {
	secret, ok := obj.(*corev1.Secret)
	if !ok {
		return obj, nil
	}
	data := map[string][]byte{}
	for _, key := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
		if value, ok := secret.Data[key]; ok {
			data[key] = value
		}
	}
	return &corev1.Secret{ObjectMeta: trimMeta(&secret.ObjectMeta, nil), Type: secret.Type, Data: data}, nil
}
