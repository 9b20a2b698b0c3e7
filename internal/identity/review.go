package identity

import (
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
)

// TokenReviewer says whose a token is. It is safe for use by many goroutines.
type TokenReviewer interface {
	// Review returns the pod that a token is bound to, which is live, and its service
	// account. The token has to be for Audience. The error wraps ErrToken or
	// ErrNotMember if the token or its pod is not good, and issuer.ErrUnavailable if
	// that could not be found out; it never holds the token. Beside an error the
	// Workload is as much as is known, for the log.
	Review(ctx context.Context, token string) (Workload, error)
}

// Screener is a TokenReviewer that can tell of some tokens that they are not good without
// asking anybody. It is safe for use by many goroutines.
type Screener interface {
	// Screen returns an error that wraps ErrToken, and does not hold the token, if Review
	// is sure to return one. Nil says nothing.
	Screen(token string) error
}

// The names of what the API server knows of a token beside its user.
const (
	extraPodName = "authentication.kubernetes.io/pod-name"
	extraPodUID  = "authentication.kubernetes.io/pod-uid"

	serviceAccountPrefix = "system:serviceaccount:"
)

// KubeReviewer has a cluster's API server review tokens of service accounts, and looks
// at the pod itself, so it needs no informer. Nothing is remembered from one call to the
// next: a pod that is deleted gets no more certificates from then on.
type KubeReviewer struct {
	// Client needs create on tokenreviews and get on pods.
	Client kubernetes.Interface
}

var _ Screener = KubeReviewer{}

// Screen looks at what a token claims of itself, without verifying that it is true: it
// must be a JSON Web Token for Audience that has not ended. Clocks may be apart by some
// minutes.
func (KubeReviewer) Screen(token string) error {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return fmt.Errorf("%w: it is no JSON Web Token", ErrToken)
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return fmt.Errorf("%w: its claims can't be read", ErrToken)
	}
	var claims struct {
		Audience any     `json:"aud"`
		Expires  float64 `json:"exp"`
	}
	if err := json.Unmarshal(text, &claims); err != nil {
		return fmt.Errorf("%w: its claims can't be read", ErrToken)
	}
	list, _ := claims.Audience.([]any)
	if claims.Audience != Audience && !slices.Contains(list, any(Audience)) {
		return fmt.Errorf("%w: it is not for the audience %q", ErrToken, Audience)
	}
	if end := time.Unix(int64(min(claims.Expires, math.MaxInt32<<8)), 0); time.Since(end) > maxSkew {
		return fmt.Errorf("%w: it ended at %s", ErrToken, end.UTC().Format(time.RFC3339))
	}
	return nil
}

// maxSkew is how far the clocks of an API server and of the controller may be apart.
const maxSkew = 5 * time.Minute

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
		return Workload{}, fmt.Errorf("%w: its pod %s/%s is no more", ErrToken, w.Namespace, w.Pod)
	}
	if err != nil {
		return Workload{}, fmt.Errorf("%w: asking the API server for the pod %s/%s: %w", issuer.ErrUnavailable, w.Namespace, w.Pod, err)
	}
	return w, checkPod(pod, w)
}

// workloadOf reads the result of a review. Whatever is not as it must be is refused:
// an API server that does not know of audiences, say, leaves them out.
func workloadOf(status authenticationv1.TokenReviewStatus) (Workload, error) {
	switch {
	case !status.Authenticated:
		reason := status.Error
		if reason == "" {
			reason = "the API server does not know it"
		}
		return Workload{}, fmt.Errorf("%w: %s", ErrToken, reason)
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
			return Workload{}, fmt.Errorf("%w: it is not bound to a pod (there is no %s); use the projected token of a pod", ErrToken, extra.name)
		}
		*extra.value = values[0]
	}
	return w, nil
}

// checkPod tells whether the live pod is the one that a token speaks of.
func checkPod(pod *corev1.Pod, w Workload) error {
	account := pod.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	switch {
	case string(pod.UID) != w.PodUID:
		return fmt.Errorf("%w: it is for another pod of the name %s/%s, with the UID %s", ErrToken, w.Namespace, w.Pod, w.PodUID)
	case account != w.ServiceAccount:
		return fmt.Errorf("%w: it is of the service account %s, and the pod %s/%s runs as %s", ErrToken, w.ServiceAccount, w.Namespace, w.Pod, account)
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return fmt.Errorf("%w: the pod %s/%s has finished", ErrNotMember, w.Namespace, w.Pod)
	}
	return nil
}
