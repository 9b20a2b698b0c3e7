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
	// Audience is the audience of the tokens that give access to the proxy page. Such a
	// token is valid nowhere else, and no other token is valid here.
	Audience = "outrigger.dev/proxies"
	// Viewer is the service account in the control plane's namespace that users request
	// a token for. The right to do that is the right to view proxies.
	Viewer = "outrigger-viewer"
)

// ErrToken is the error of a token that authenticates nobody, and ErrForbidden that of a user
// who lacks the right.
var (
	ErrToken     = errors.New("the token is not valid")
	ErrForbidden = errors.New("forbidden")
)

// ErrEnough is returned by a function that gets the answers of several controllers and needs
// no other than those it has.
var ErrEnough = errors.New("no more answers are needed")

// Review checks whether the bearer of a token may get a path. The error is ErrToken,
// ErrForbidden, or that of a review that could not be made.
type Review func(ctx context.Context, token, path string) error

// KubeReview asks the cluster's API server whose token it is and whether that user may get
// the path, as a non-resource URL. It needs create on tokenreviews and
// subjectaccessreviews. Answers are not cached, so a revoked right ends at once.
func KubeReview(client kubernetes.Interface) Review {
	return func(ctx context.Context, token, path string) error {
		who, err := client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{Audience}},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("asking the API server to review the token: %w", err)
		}
		// An API server that does not support audiences omits them.
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

// Guard serves pages at their paths, to users whom the Review lets get the path.
func Guard(pages map[string]http.Handler, review Review, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	for path, page := range pages {
		mux.Handle("GET "+path, guarded(path, page, review, log))
	}
	return mux
}

func guarded(path string, page http.Handler, review Review, log *slog.Logger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
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
	}
}
