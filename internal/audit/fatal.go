package audit

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
)

// WarnFatal writes an Event with the reason InitializationError about a part of the
// control plane that fails. It refers to the named MeshConfig or, if that can't be read,
// to the pod of the failing part or, if that can't be read either, to the namespace.
func WarnFatal(ctx context.Context, config *rest.Config, namespace, meshConfig, pod string, failure error) error {
	c, err := client.New(config, client.Options{Scheme: kube.Scheme(), Mapper: kube.Mapper()})
	if err != nil {
		return fmt.Errorf("creating a client for %s: %w", config.Host, err)
	}
	return Warn(ctx, c, control(ctx, c, namespace, meshConfig, pod), reasonInitializationError, failure.Error(), failure.Error())
}

// NewPodWarner returns a function that writes an Event about a pod with a reason: at most one
// per pod, reason and key, as long as the API server keeps it.
func NewPodWarner(config *rest.Config) (func(ctx context.Context, namespace, pod, uid, reason, key, message string) error, error) {
	c, err := client.New(config, client.Options{Scheme: kube.Scheme(), Mapper: kube.Mapper()})
	if err != nil {
		return nil, fmt.Errorf("creating a client for %s: %w", config.Host, err)
	}
	return func(ctx context.Context, namespace, pod, uid, reason, key, message string) error {
		about := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: pod, UID: types.UID(uid)}
		return Warn(ctx, c, about, reason, key, message)
	}, nil
}

// control returns the object that represents the control plane.
func control(ctx context.Context, c client.Client, namespace, meshConfig, pod string) corev1.ObjectReference {
	var config v1alpha2.MeshConfig
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: meshConfig}, &config); err == nil {
		ref, _ := source.Ref(&config)
		return referenceTo(ref, config.UID)
	}
	found := metav1.PartialObjectMetadata{}
	found.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: pod}, &found); err == nil {
		return corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: pod, UID: found.UID}
	}
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Namespace: namespace, Name: namespace}
}
