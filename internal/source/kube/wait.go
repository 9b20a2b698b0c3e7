package kube

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/outrigger-mesh/outrigger/internal/source"
)

// crdPeriod is how often the API server is asked for a CRD that it does not have.
const crdPeriod = 3 * time.Second

// waitForCRD returns true when the API server serves a kind or does not let us ask,
// and false when ctx ends before. It calls missing if it does not serve it yet, and
// asks again every few seconds.
func (s *Source) waitForCRD(ctx context.Context, kind source.Kind, missing func()) bool {
	resource, logged := kind.Resource(), false
	without := "every setting has its default"
	if kind.Role == source.Policy {
		without = "none is in force"
	}
	served := func(ctx context.Context) (bool, error) {
		list, err := s.discovery.ServerResourcesForGroupVersionWithContext(ctx, kind.GroupVersion().String())
		has := err == nil && serves(list, resource.Resource)
		if has {
			// Discovery still names a kind for a while whose CRD has just been deleted.
			err = s.discovery.RESTClient().Get().AbsPath("apis", kind.Group, kind.Version, resource.Resource).Param("limit", "1").Do(ctx).Error()
		}
		switch {
		case apierrors.IsNotFound(err) || err == nil && !has:
			missing()
			if !logged {
				logged = true
				s.log.Info("the API server has no "+kind.Kind+" objects yet, so "+without+"; to change that, install the CRD",
					"crd", resource.String(), "version", kind.Version)
			}
			return false, nil
		case err != nil && !apierrors.IsForbidden(err):
			if ctx.Err() == nil {
				s.log.Warn("the API server does not say whether it has "+kind.Kind+" objects; asking again", "error", err)
			}
			return false, nil
		default:
			return true, nil
		}
	}
	return wait.PollUntilContextCancel(ctx, crdPeriod, true, served) == nil
}

func serves(list *metav1.APIResourceList, name string) bool {
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == name })
}

// watchErrors logs why objects cannot be read, each time that the API server is
// asked. It is asked again at growing intervals.
func watchErrors(log *slog.Logger) toolscache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, r *toolscache.Reflector, err error) {
		switch {
		case ctx.Err() != nil, err == io.EOF, err == io.ErrUnexpectedEOF,
			apierrors.IsResourceExpired(err), apierrors.IsGone(err):
			// A watch ends now and then, and goes on. A connection that breaks has one of
			// the two errors within another.
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			log.Error("the API server does not let us read objects; asking again; allow the control plane's service account to get, list and watch them, as the roles of the chart do",
				"kind", r.TypeDescription(), "error", err)
		default:
			log.Warn("objects cannot be read from the API server; asking again; what was read before counts until then", "kind", r.TypeDescription(), "error", err)
		}
	}
}
