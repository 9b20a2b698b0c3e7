package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// ErrNoPodCertificates means that kubelets of the cluster cannot request certificates for pods.
var ErrNoPodCertificates = errors.New("the cluster does not serve PodCertificateRequests and ClusterTrustBundles; that needs Kubernetes 1.37, or 1.36 with the feature gates PodCertificateRequest, ClusterTrustBundle and ClusterTrustBundleProjection and both kinds of certificates.k8s.io/v1beta1 switched on")

// PodCertificates returns the version of the API group certificates.k8s.io by which a cluster
// serves PodCertificateRequests and ClusterTrustBundles, the newer one if there are several. The
// error wraps ErrNoPodCertificates if there is none.
func PodCertificates(ctx context.Context, client discovery.DiscoveryInterface) (string, error) {
	const group = "certificates.k8s.io"
	for _, version := range []string{"v1", "v1beta1"} {
		of := schema.GroupVersion{Group: group, Version: version}
		list, err := discovery.ToDiscoveryInterfaceWithContext(client).ServerResourcesForGroupVersionWithContext(ctx, of.String())
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("asking the API server what it serves of %s: %w", of, err)
		}
		found := make(map[string]bool)
		for _, resource := range list.APIResources {
			found[resource.Name] = true
		}
		if found["podcertificaterequests"] && found["clustertrustbundles"] {
			return version, nil
		}
	}
	return "", ErrNoPodCertificates
}

// podCertificatesKept is how long an answer of PodCertificates is used.
const podCertificatesKept = time.Minute

// podCertificates is an answer to the question whether the cluster serves them.
type podCertificates struct {
	served bool
	at     time.Time
}

// PodCertificates reports whether kubelets of the cluster can request certificates for pods, as
// the API server has said within the last minute.
func (s *Source) PodCertificates(ctx context.Context) (bool, error) {
	if known := s.podCertificates.Load(); known != nil && time.Since(known.at) < podCertificatesKept {
		return known.served, nil
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	_, err := PodCertificates(ctx, s.discovery)
	if err != nil && !errors.Is(err, ErrNoPodCertificates) {
		return false, err
	}
	s.podCertificates.Store(&podCertificates{err == nil, time.Now()})
	return err == nil, nil
}
