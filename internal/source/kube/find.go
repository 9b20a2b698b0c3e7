package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// findPage is the page size of the lists.
	findPage = 250
	// findConcurrency limits concurrent searches; others wait.
	findConcurrency = 4
)

// FindPod asks the API server for the pod with the UID that runs as the service account,
// and returns nil if there is none. It bypasses the cache.
func (s *Source) FindPod(ctx context.Context, namespace, serviceAccount string, uid types.UID) (*corev1.Pod, error) {
	select {
	case s.finding <- struct{}{}:
		defer func() { <-s.finding }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	options := &client.ListOptions{
		Namespace:     namespace,
		FieldSelector: fields.OneTermEqualSelector("spec.serviceAccountName", serviceAccount),
		Limit:         findPage,
	}
	for {
		var pods corev1.PodList
		if err := s.live.List(ctx, &pods, options); err != nil {
			return nil, fmt.Errorf("listing the pods of service account %s/%s: %w", namespace, serviceAccount, err)
		}
		for i := range pods.Items {
			if pods.Items[i].UID == uid {
				return &pods.Items[i], nil
			}
		}
		if options.Continue = pods.Continue; pods.Continue == "" {
			return nil, nil
		}
	}
}
