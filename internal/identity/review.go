package identity

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// TokenReviewer authenticates tokens. It is safe for use by many goroutines.
type TokenReviewer interface {
	// Review returns the running pod that a token is bound to and its service account. The
	// token must be for Audience. The error wraps ErrToken or ErrNotMember if the token or
	// its pod is invalid, and issuer.ErrUnavailable if that could not be checked; it never
	// contains the token. With an error, the Workload holds what is known, for the log.
	Review(ctx context.Context, token string) (Workload, error)
}

// Screener is a TokenReviewer that can reject some invalid tokens without a request. It is
// safe for use by many goroutines.
type Screener interface {
	// Screen returns an error that wraps ErrToken, without the token, if Review would
	// certainly return one. Nil does not mean that the token is valid.
	Screen(token string) error
}

// Keys of a token's extra data in the API server's review.
const (
	extraPodName = "authentication.kubernetes.io/pod-name"
	extraPodUID  = "authentication.kubernetes.io/pod-uid"

	serviceAccountPrefix = "system:serviceaccount:"
)

// KubeReviewer lets a cluster's API server review service account tokens and reads the pod
// directly, without an informer. It caches nothing, so a deleted pod immediately stops
// getting certificates.
type KubeReviewer struct {
	// Client needs create on tokenreviews and get on pods.
	Client kubernetes.Interface
}

var _ Screener = KubeReviewer{}

// Screen checks a token's claims without verifying its signature: it must be an unexpired
// JSON Web Token for Audience. Clocks may differ by some minutes.
func (KubeReviewer) Screen(token string) error {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return fmt.Errorf("%w: it is not a JSON Web Token", ErrToken)
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return fmt.Errorf("%w: its claims are unreadable", ErrToken)
	}
	var claims struct {
		Audience any     `json:"aud"`
		Expires  float64 `json:"exp"`
	}
	if err := json.Unmarshal(text, &claims); err != nil {
		return fmt.Errorf("%w: its claims are unreadable", ErrToken)
	}
	list, _ := claims.Audience.([]any)
	if claims.Audience != Audience && !slices.Contains(list, any(Audience)) {
		return fmt.Errorf("%w: it is not for the audience %q", ErrToken, Audience)
	}
	if end := time.Unix(int64(min(claims.Expires, math.MaxInt32<<8)), 0); time.Since(end) > pki.Skew {
		return fmt.Errorf("%w: it expired at %s", ErrToken, end.UTC().Format(time.RFC3339))
	}
	return nil
}

// Review is for TokenReviewer.
func (r KubeReviewer) Review(ctx context.Context, token string) (Workload, error) {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{Audience}}}
	answer, err := r.Client.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{})
	if apierrors.IsBadRequest(err) || apierrors.IsInvalid(err) {
		return Workload{}, fmt.Errorf("%w: %w", ErrToken, err)
	}
	if err != nil {
		return Workload{}, fmt.Errorf("%w: asking the API server to review a token: %w", issuer.ErrUnavailable, err)
	}
	w, err := workloadOf(answer.Status)
	if err != nil {
		return Workload{}, err
	}
	pod, err := r.Client.CoreV1().Pods(w.Namespace).Get(ctx, w.Pod, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Workload{}, fmt.Errorf("%w: its pod %s/%s no longer exists", ErrToken, w.Namespace, w.Pod)
	}
	if err != nil {
		return Workload{}, fmt.Errorf("%w: asking the API server for the pod %s/%s: %w", issuer.ErrUnavailable, w.Namespace, w.Pod, err)
	}
	return w, checkPod(pod, w)
}

// workloadOf returns the workload of a review's result. It rejects incomplete results, such
// as of an API server that does not support audiences.
func workloadOf(status authenticationv1.TokenReviewStatus) (Workload, error) {
	switch {
	case !status.Authenticated:
		return Workload{}, fmt.Errorf("%w: %s", ErrToken, cmp.Or(status.Error, "the API server does not know it"))
	case status.Error != "":
		return Workload{}, fmt.Errorf("%w: %s", ErrToken, status.Error)
	case !slices.Contains(status.Audiences, Audience):
		return Workload{}, fmt.Errorf("%w: it is for the audiences %q, want %q", ErrToken, status.Audiences, Audience)
	}
	rest, ok := strings.CutPrefix(status.User.Username, serviceAccountPrefix)
	namespace, account, found := strings.Cut(rest, ":")
	if !ok || !found || namespace == "" || account == "" || strings.Contains(account, ":") {
		return Workload{}, fmt.Errorf("%w: its user %q is not a service account", ErrToken, status.User.Username)
	}
	w := Workload{Namespace: namespace, ServiceAccount: account}
	for _, extra := range []struct {
		name  string
		value *string
	}{{extraPodName, &w.Pod}, {extraPodUID, &w.PodUID}} {
		values := status.User.Extra[extra.name]
		if len(values) != 1 || values[0] == "" {
			return Workload{}, fmt.Errorf("%w: it is not bound to a pod (%s is missing); use a pod's projected token", ErrToken, extra.name)
		}
		*extra.value = values[0]
	}
	return w, nil
}

// checkPod checks that a pod is the one that the token is bound to.
func checkPod(pod *corev1.Pod, w Workload) error {
	account := cmp.Or(pod.Spec.ServiceAccountName, "default")
	switch {
	case string(pod.UID) != w.PodUID:
		return fmt.Errorf("%w: it is for another pod named %s/%s, with the UID %s", ErrToken, w.Namespace, w.Pod, w.PodUID)
	case account != w.ServiceAccount:
		return fmt.Errorf("%w: it is for the service account %s, but the pod %s/%s runs as %s", ErrToken, w.ServiceAccount, w.Namespace, w.Pod, account)
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return fmt.Errorf("%w: the pod %s/%s has finished", ErrNotMember, w.Namespace, w.Pod)
	}
	return nil
}
