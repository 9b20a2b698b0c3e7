// Package page reads lists of objects in pages, so that neither the API server nor a command
// has thousands of objects in one answer.
package page

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
)

// All returns the objects of all pages of a list, which the method List of a client returns:
//
//	pods, err := page.All[corev1.Pod](ctx, client.CoreV1().Pods("").List, metav1.ListOptions{})
//
// After an error, it returns the objects of the pages before.
func All[T any, L runtime.Object](ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error), options metav1.ListOptions) ([]T, error) {
	var all []T
	err := newPager(list).EachListItem(ctx, options, func(object runtime.Object) error {
		all = append(all, *any(object).(*T))
		return nil
	})
	return all, err
}

// Each calls take with each object of such a list, in the list's order. At most two pages are in
// memory, unless take keeps objects of them. It returns take's first error.
func Each[T any, L runtime.Object](ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error), options metav1.ListOptions, take func(*T) error) error {
	pages := newPager(list)
	pages.PageBufferSize = 0
	return pages.EachListItem(ctx, options, func(object runtime.Object) error { return take(any(object).(*T)) })
}

func newPager[L runtime.Object](list func(context.Context, metav1.ListOptions) (L, error)) *pager.ListPager {
	return pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return list(ctx, options)
	})
}
