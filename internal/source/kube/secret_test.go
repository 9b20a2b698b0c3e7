package kube

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestFollowCertificatesWithoutTheRight goes on where the API server denies reading Secrets, as in a namespace
// that was deleted together with the role, and reads them once it allows it.
func TestFollowCertificatesWithoutTheRight(t *testing.T) {
	t.Parallel()
	clients := fake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "own"}, Type: corev1.SecretTypeTLS})
	var allowed atomic.Bool
	clients.PrependReactor("list", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		if allowed.Load() {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(corev1.Resource("secrets"), "", errors.New("no right"))
	})
	synced, put := make(chan struct{}), make(chan string, 1)
	go func() {
		_ = FollowCertificates(t.Context(), clients, slog.New(slog.DiscardHandler), "shop",
			func(secret *corev1.Secret) { put <- secret.Name }, func(*corev1.Secret) {}, func() { close(synced) })
	}()
	select {
	case <-synced:
	case <-time.After(30 * time.Second):
		t.Fatal("it waits for the right to read Secrets")
	}
	allowed.Store(true)
	select {
	case name := <-put:
		if name != "own" {
			t.Errorf("it reads the Secret %q", name)
		}
	case <-time.After(30 * time.Second):
		t.Error("with the right again, it reads no Secret")
	}
}
