package kubelet

import (
	"cmp"
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/pki"
)

const (
	// workers is how many requests are answered at once.
	workers = 16
	// answerTimeout bounds one attempt to answer a request.
	answerTimeout = 30 * time.Second
	// firstRetry and lastRetry bound the pauses after attempts that have failed.
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// sign answers requests until ctx ends.
func (s *signer) sign(ctx context.Context, resource schema.GroupVersionResource) {
	informer := dynamicinformer.NewFilteredDynamicInformer(s.objects, resource, metav1.NamespaceAll, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = s.selector()
	}).Informer()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry))
	defer queue.ShutDown()
	enqueue := func(obj any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
			queue.Add(key)
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: enqueue, UpdateFunc: func(_, obj any) { enqueue(obj) }}); err != nil {
		s.Log.Error("cannot watch the certificate requests of kubelets", "error", err)
		return
	}
	var running sync.WaitGroup
	defer running.Wait()
	for range workers {
		running.Go(func() {
			for {
				key, ended := queue.Get()
				if ended {
					return
				}
				if err := s.answer(ctx, resource, informer.GetStore(), key); err != nil && ctx.Err() == nil {
					s.Log.Warn("a certificate request of a kubelet is not answered yet", "request", key, "error", err)
					queue.AddRateLimited(key)
				} else {
					queue.Forget(key)
				}
				queue.Done(key)
			}
		})
	}
	// The workers end with the queue.
	go func() {
		<-ctx.Done()
		queue.ShutDown()
	}()
	informer.RunWithContext(ctx)
}

// answer signs or denies one request. An error should be retried: a request that is denied or
// has failed is final for its pod, so what may pass leaves the request unanswered.
func (s *signer) answer(ctx context.Context, resource schema.GroupVersionResource, store cache.Store, key string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	obj, exists, err := store.GetByKey(key)
	if err != nil || !exists {
		return err
	}
	found := obj.(*unstructured.Unstructured)
	var request certificatesv1.PodCertificateRequest
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, &request); err != nil {
		return err
	}
	if len(request.Status.Conditions) > 0 || request.DeletionTimestamp != nil {
		return nil
	}
	status, err := s.decide(ctx, &request)
	if err != nil || status == nil {
		return err
	}
	status.Conditions[0].Status = metav1.ConditionTrue
	status.Conditions[0].LastTransitionTime = metav1.Now()
	answered := found.DeepCopy()
	if answered.Object["status"], err = runtime.DefaultUnstructuredConverter.ToUnstructured(status); err != nil {
		return err
	}
	_, err = s.objects.Resource(resource).Namespace(request.Namespace).UpdateStatus(ctx, answered, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// Another version of the object is on its way, or none.
		return nil
	}
	return err
}

// decide returns the status of a request, or nil if its pod is no more.
func (s *signer) decide(ctx context.Context, r *certificatesv1.PodCertificateRequest) (*certificatesv1.PodCertificateRequestStatus, error) {
	if n := len(r.Spec.UnverifiedUserAnnotations); n > 0 {
		return deny(reasonAnnotations, fmt.Sprintf("the volume has %d userAnnotations; this signer knows none", n)), nil
	}
	key, err := keyOf(r)
	if err != nil {
		return deny(reasonUnsupportedKeyType, fmt.Sprintf("%v; use ECDSAP256", err)), nil
	}
	// The API server has compared the request with its pod only if a node made it.
	pod, err := s.client.CoreV1().Pods(r.Namespace).Get(ctx, r.Spec.PodName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("asking the API server for the pod %s/%s: %w", r.Namespace, r.Spec.PodName, err)
	}
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil, nil
	}
	if d := differ(pod, &r.Spec); d != "" {
		return deny(reasonOtherPod, fmt.Sprintf("the pod %s/%s %s", r.Namespace, r.Spec.PodName, d)), nil
	}
	w := identity.Workload{Namespace: r.Namespace, ServiceAccount: r.Spec.ServiceAccountName, Pod: r.Spec.PodName, PodUID: string(r.Spec.PodUID)}
	if err := s.Member(ctx, w); err != nil {
		return nil, err
	}
	since := time.Now()
	chain, err := s.Manager.SignKey(ctx, key, w, backdate, lifeOf(s.Manager.Life(), time.Duration(*r.Spec.MaxExpirationSeconds)*time.Second))
	if err != nil {
		return nil, err
	}
	begin, end := metav1.NewTime(chain[0].NotBefore), metav1.NewTime(chain[0].NotAfter)
	refresh := metav1.NewTime(refreshAt(chain[0], pki.Renewal(since, pki.End(chain))))
	return &certificatesv1.PodCertificateRequestStatus{
		Conditions:       []metav1.Condition{{Type: issued, Reason: issued, Message: "signed by the mesh"}},
		CertificateChain: string(pki.Encode(chain...)), NotBefore: &begin, NotAfter: &end, BeginRefreshAt: &refresh,
	}, nil
}

func deny(reason, message string) *certificatesv1.PodCertificateRequestStatus {
	return &certificatesv1.PodCertificateRequestStatus{Conditions: []metav1.Condition{{Type: denied, Reason: reason, Message: message}}}
}

// keyOf returns the key of a request, whose owner the API server has verified.
func keyOf(r *certificatesv1.PodCertificateRequest) (crypto.PublicKey, error) {
	csr, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err != nil {
		return nil, errors.New("its PKCS #10 request is unreadable")
	}
	return csr.PublicKey, identity.CheckKey(csr.PublicKey)
}

// differ describes how a pod differs from the one in a request; empty if it does not.
func differ(pod *corev1.Pod, spec *certificatesv1.PodCertificateRequestSpec) string {
	account := cmp.Or(pod.Spec.ServiceAccountName, "default")
	switch {
	case pod.UID != spec.PodUID:
		return fmt.Sprintf("has the UID %s, not %s", pod.UID, spec.PodUID)
	case account != spec.ServiceAccountName:
		return fmt.Sprintf("runs as the service account %s, not %s", account, spec.ServiceAccountName)
	case pod.Spec.NodeName != string(spec.NodeName):
		return fmt.Sprintf("is on the node %q, not %q", pod.Spec.NodeName, spec.NodeName)
	}
	return ""
}
