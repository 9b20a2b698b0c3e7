package page

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestEach reads five pages of two pods. A page is requested only when all but the last one have
// been taken, so that they need not be in memory.
func TestEach(t *testing.T) {
	var taken []string
	var count atomic.Int64
	list := func(_ context.Context, options metav1.ListOptions) (*corev1.PodList, error) {
		at, _ := strconv.Atoi(options.Continue)
		if n := int(count.Load()); options.Limit == 0 || at > n+2 {
			return nil, fmt.Errorf("with %d pods taken, %d pods after the first %d are requested", n, options.Limit, at)
		}
		pods := &corev1.PodList{Items: make([]corev1.Pod, 2)}
		for i := range pods.Items {
			pods.Items[i].Name = strconv.Itoa(at + i)
		}
		if at < 8 {
			pods.Continue = strconv.Itoa(at + 2)
		}
		return pods, nil
	}
	take := func(pod *corev1.Pod) error {
		taken = append(taken, pod.Name)
		count.Add(1)
		return nil
	}
	if err := Each(t.Context(), list, metav1.ListOptions{}, take); err != nil || !slices.Equal(taken, []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}) {
		t.Errorf("it takes %v, %v", taken, err)
	}
	taken = nil
	count.Store(0)
	enough := errors.New("enough")
	err := Each(t.Context(), list, metav1.ListOptions{}, func(pod *corev1.Pod) error {
		_ = take(pod)
		if pod.Name == "2" {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || len(taken) != 3 {
		t.Errorf("after an error it has taken %v, %v", taken, err)
	}
}
