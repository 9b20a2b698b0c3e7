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

// crdPeriod is how often the API server is polled for a missing CRD.
const crdPeriod = 3 * time.Second

// waitForCRD returns true when the API server serves a kind or denies the query, and
// false when ctx ends. While the kind is not served, it calls missing and polls.
func (s *Source) waitForCRD(ctx context.Context, kind source.Kind, missing func()) bool {
	resource, logged := kind.Resource(), false
	without := "the defaults apply"
	if kind.Role != source.Configuration {
		without = "no such policies apply"
	}
	served := func(ctx context.Context) (bool, error) {
		list, err := s.discovery.ServerResourcesForGroupVersionWithContext(ctx, kind.GroupVersion().String())
		has := err == nil && serves(list, resource.Resource)
		if has {
			// Discovery lists a kind for some time after its CRD was deleted.
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
				s.log.Warn("querying the API server for the "+kind.Kind+" CRD failed; retrying", "error", err)
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

// watchErrors logs why objects can't be read, on each attempt. The reflector retries with
// growing intervals.
func watchErrors(log *slog.Logger) toolscache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, r *toolscache.Reflector, err error) {
		switch {
		case ctx.Err() != nil, err == io.EOF, err == io.ErrUnexpectedEOF,
			apierrors.IsResourceExpired(err), apierrors.IsGone(err):
			// Watches end regularly and are restarted. A broken connection wraps one of
			// the two EOF errors.
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			log.Error("the API server denies reading objects; retrying; allow the control plane's service account to get, list and watch them, as the chart's roles do",
				"kind", r.TypeDescription(), "error", err)
		default:
			log.Warn("reading objects from the API server failed; retrying; the last known state is used until then", "kind", r.TypeDescription(), "error", err)
		}
	}
}
