package kubelet

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// publish keeps the ClusterTrustBundle equal to the trusted roots until ctx ends. Only who may
// attest for the signer can change it; it is restored within a minute if somebody does.
func (s *signer) publish(ctx context.Context, client dynamic.ResourceInterface, of schema.GroupVersion) {
	changed := s.Manager.TrustBundleChanged(ctx.Done())
	for {
		wait := again
		if err := s.write(ctx, client, of, string(s.Manager.TrustBundle())); err != nil && ctx.Err() == nil {
			s.Log.Error("cannot publish the trusted roots", "clusterTrustBundle", s.Bundle, "error", err)
			wait = soon
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(wait):
		}
	}
}

func (s *signer) write(ctx context.Context, client dynamic.ResourceInterface, of schema.GroupVersion, roots string) error {
	if roots == "" {
		return nil
	}
	found, err := client.Get(ctx, s.Bundle, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		found = &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": of.String(), "kind": "ClusterTrustBundle", "metadata": map[string]any{"name": s.Bundle},
			"spec": map[string]any{"signerName": s.Signer, "trustBundle": roots},
		}}
		_, err = client.Create(ctx, found, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	if text, _, _ := unstructured.NestedString(found.Object, "spec", "trustBundle"); text == roots {
		return nil
	}
	if err := unstructured.SetNestedField(found.Object, roots, "spec", "trustBundle"); err != nil {
		return fmt.Errorf("the object is malformed: %w", err)
	}
	_, err = client.Update(ctx, found, metav1.UpdateOptions{})
	return err
}
