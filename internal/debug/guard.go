package debug

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// Audience is that of the tokens by which people look at proxies. Such a token is of
	// no use anywhere else, and no other one is of use here.
	Audience = "outrigger.dev/proxies"
	// Viewer is the service account, in the control plane's namespace, that people take a
	// token of. Who may have one may look.
	Viewer = "outrigger-viewer"
)

// ErrToken is the error of a token that says of nobody who it is, and ErrForbidden that of
// somebody who may not look.
var (
	ErrToken     = errors.New("the token is not valid")
	ErrForbidden = errors.New("forbidden")
)

// Review says whether who has a token may get a path. The error is ErrToken,
// ErrForbidden, or that the question could not be answered.
type Review func(ctx context.Context, token, path string) error

// KubeReview has the cluster's API server say whose a token is, and whether that user may
// get the path as it would one of its own. It needs create on tokenreviews and
// subjectaccessreviews. Nothing is remembered, so a right that is taken away is gone.
func KubeReview(client kubernetes.Interface) Review {
	return func(ctx context.Context, token, path string) error {
		who, err := client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{Audience}},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("asking the API server to review the token: %w", err)
		}
		// An API server that does not know of audiences leaves them out.
		if !who.Status.Authenticated || !slices.Contains(who.Status.Audiences, Audience) {
			return fmt.Errorf("%w: the API server does not know it for the audience %q", ErrToken, Audience)
		}
		user := who.Status.User
		extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
		for key, values := range user.Extra {
			extra[key] = authorizationv1.ExtraValue(values)
		}
		may, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User: user.Username, Groups: user.Groups, UID: user.UID, Extra: extra,
				NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("asking the API server for the rights of %s: %w", user.Username, err)
		}
		if !may.Status.Allowed || may.Status.Denied {
			return fmt.Errorf("%w: user %s may not get %s", ErrForbidden, user.Username, path)
		}
		return nil
	}
}

// Guard serves a page at its path to those whom the Review lets through, and nothing else.
func Guard(path string, page http.Handler, review Review, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || token == "" {
			http.Error(w, "a bearer token for the audience "+Audience+" is needed", http.StatusUnauthorized)
			return
		}
		switch err := review(r.Context(), token, path); {
		case err == nil:
			page.ServeHTTP(w, r)
		case errors.Is(err, ErrToken):
			http.Error(w, err.Error(), http.StatusUnauthorized)
		case errors.Is(err, ErrForbidden):
			http.Error(w, err.Error(), http.StatusForbidden)
		default:
			log.Warn("who asks for proxies is not known", "error", err)
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	return mux
}
