package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// SignsLabel is a label of a mesh's ClusterTrustBundle. It is "true" if its controller signs
// PodCertificateRequests, and "false" if its issuer cannot.
const SignsLabel = "openservicemesh.io/signs-pod-certificates"

// podCertificatesKept is how long an answer of PodCertificates is used.
const podCertificatesKept = 10 * time.Second

// podCertificates is an answer of PodCertificates. It is of one bundle, since a program serves
// one mesh.
type podCertificates struct {
	err error
	at  time.Time
}

// PodCertificates returns nil if kubelets can get certificates for pods: the cluster serves
// PodCertificateRequests, and the controller has published the ClusterTrustBundle with that name
// and signs. Otherwise the error says why not. An answer is used for ten seconds.
func (s *Source) PodCertificates(ctx context.Context, bundle string) error {
	if known := s.podCertificates.Load(); known != nil && time.Since(known.at) < podCertificatesKept {
		return known.err
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	err := s.queryPodCertificates(ctx, bundle)
	if ctx.Err() == nil {
		s.podCertificates.Store(&podCertificates{err, time.Now()})
	}
	return err
}

func (s *Source) queryPodCertificates(ctx context.Context, bundle string) error {
	version, err := PodCertificates(ctx, s.discovery)
	if err != nil {
		return err
	}
	text, err := s.discovery.RESTClient().Get().AbsPath("/apis/certificates.k8s.io", version, "clustertrustbundles", bundle).
		SetHeader("Accept", "application/json").DoRaw(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("the controller has not published the ClusterTrustBundle %s; see its log", bundle)
	case err != nil:
		return fmt.Errorf("the ClusterTrustBundle %s: %w", bundle, err)
	}
	var found metav1.PartialObjectMetadata
	if err := json.Unmarshal(text, &found); err != nil {
		return fmt.Errorf("the ClusterTrustBundle %s: %w", bundle, err)
	}
	if found.Labels[SignsLabel] != "true" {
		return errors.New("the mesh's issuer signs only requests with all names of the certificate, which those of kubelets lack")
	}
	return nil
}
