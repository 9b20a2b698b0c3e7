package kubelet

import (
	"context"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/outrigger-mesh/outrigger/internal/source/kube"
)

// publish keeps the ClusterTrustBundle equal to the trusted roots until ctx ends. Its label tells
// the injector whether the mesh's issuer can sign for kubelets. Only who may
// attest for the signer can change it; it is restored within a minute if somebody does.
func (s *signer) publish(ctx context.Context, client dynamic.ResourceInterface, version schema.GroupVersion) {
	changed := s.Manager.TrustBundleChanged(ctx.Done())
	for {
		wait := again
		if err := s.write(ctx, client, version, string(s.Manager.TrustBundle())); err != nil && ctx.Err() == nil {
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

func (s *signer) write(ctx context.Context, client dynamic.ResourceInterface, version schema.GroupVersion, roots string) error {
	if roots == "" {
		return nil
	}
	signs := strconv.FormatBool(s.Manager.SignsKeys())
	found, err := client.Get(ctx, s.Bundle, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		found = &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": version.String(), "kind": "ClusterTrustBundle",
			"metadata": map[string]any{"name": s.Bundle, "labels": map[string]any{kube.SignsLabel: signs}},
			"spec":     map[string]any{"signerName": s.Signer, "trustBundle": roots},
		}}
		_, err = client.Create(ctx, found, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	text, _, _ := unstructured.NestedString(found.Object, "spec", "trustBundle")
	labels := found.GetLabels()
	if text == roots && labels[kube.SignsLabel] == signs {
		return nil
	}
	if labels == nil {
		labels = make(map[string]string)
	}
	labels[kube.SignsLabel] = signs
	found.SetLabels(labels)
	if err := unstructured.SetNestedField(found.Object, roots, "spec", "trustBundle"); err != nil {
		return fmt.Errorf("the object is malformed: %w", err)
	}
	_, err = client.Update(ctx, found, metav1.UpdateOptions{})
	return err
}
