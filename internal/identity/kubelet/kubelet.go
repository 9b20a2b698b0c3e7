// Package kubelet answers the certificate requests of kubelets: it signs the
// PodCertificateRequests of the mesh's signer, and publishes the trusted roots as a
// ClusterTrustBundle. The kubelet makes a pod's key and writes key, certificate and roots into
// the pod's volume, so that its agent asks for nothing.
//
// Package identity decides what is signed. A cluster serves both kinds from release 1.37, and
// as version v1beta1 earlier, with the feature gates PodCertificateRequest and
// ClusterTrustBundle.
package kubelet

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
)

const (
	group    = "certificates.k8s.io"
	requests = "podcertificaterequests"
	bundles  = "clustertrustbundles"
)

// The names of the conditions and of what they refer to are those of the API.
const (
	issued = "Issued"
	denied = "Denied"

	reasonUnsupportedKeyType = "UnsupportedKeyType"
	reasonAnnotations        = "InvalidUnverifiedUserAnnotations"
	reasonOtherPod           = "OtherPod"
)

// Options configure the signer.
type Options struct {
	// Manager signs, and has the roots.
	Manager *identity.Manager
	// Member returns an error that wraps identity.ErrNotMember if a workload is not in the
	// mesh.
	Member func(context.Context, identity.Workload) error
	// Signer is the name of the signer, and Bundle that of the ClusterTrustBundle.
	Signer, Bundle string
	// Wanted reports whether new pods get their certificates from the kubelet. Others may have
	// been created while they did, so requests are signed in any case.
	Wanted func() bool
	Log    *slog.Logger
}

// Add makes a manager run the signer while it is the leader. Its user needs the rights that the
// chart grants to the controller with spec.certificate.podCertificates.
func Add(mgr manager.Manager, options Options) error {
	objects, err := dynamic.NewForConfig(mgr.GetConfig())
	if err != nil {
		return fmt.Errorf("creating a client for certificate requests of kubelets: %w", err)
	}
	client, err := kubernetes.NewForConfig(mgr.GetConfig())
	if err != nil {
		return fmt.Errorf("creating a client for certificate requests of kubelets: %w", err)
	}
	return mgr.Add(manager.RunnableFunc((&signer{Options: options, objects: objects, client: client}).run))
}

// signer is Outrigger as a signer of PodCertificateRequests.
type signer struct {
	Options
	objects dynamic.Interface
	client  kubernetes.Interface
}

// again is how often the signer checks whether it can serve, and restores the bundle; soon is
// how often it does if that is needed and fails.
const (
	again = time.Minute
	soon  = 5 * time.Second
)

// run serves until ctx ends. Without the kinds or the rights there is nothing to sign, so that
// is only logged if new pods need it.
func (s *signer) run(ctx context.Context) error {
	logged := ""
	for {
		err := s.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if s.Wanted() && err.Error() != logged {
			logged = err.Error()
			s.Log.Error("cannot sign the certificate requests of kubelets", "signer", s.Signer, "error", err)
		}
		for tried := time.Now(); time.Since(tried) < again; {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(soon):
			}
			if s.Wanted() {
				break
			}
		}
	}
}

// serve signs requests and publishes the roots until ctx ends. It returns an error if it cannot
// begin.
func (s *signer) serve(ctx context.Context) error {
	version, err := kube.PodCertificates(ctx, s.client.Discovery())
	if err != nil {
		return err
	}
	of := schema.GroupVersion{Group: group, Version: version}
	_, err = s.objects.Resource(of.WithResource(requests)).List(ctx, metav1.ListOptions{FieldSelector: s.selector(), Limit: 1})
	if err != nil {
		return fmt.Errorf("listing PodCertificateRequests: %w; the chart grants the rights with meshConfig.spec.certificate.podCertificates", err)
	}
	s.Log.Info("signing the certificate requests of kubelets", "signer", s.Signer, "version", of.String())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go s.publish(ctx, s.objects.Resource(of.WithResource(bundles)), of)
	s.sign(ctx, of.WithResource(requests))
	return ctx.Err()
}

func (s *signer) selector() string {
	return fields.OneTermEqualSelector("spec.signerName", s.Signer).String()
}

// lifetimes that the API server accepts, from the certificate's begin to its end.
const (
	minLife = time.Hour
	// backdate is how long before now a certificate is valid. The API server accepts less than
	// five minutes.
	backdate = 4 * time.Minute
	// margin is the minimum time between a certificate's renewal and its begin or end.
	margin = 10 * time.Minute
)

// lifeOf returns how long from now a certificate is valid. most is the request's limit from the
// certificate's begin to its end.
func lifeOf(wanted, most time.Duration) time.Duration {
	return max(min(wanted, most-backdate), minLife-backdate)
}

// refreshAt returns when the kubelet renews a certificate, about when an agent would.
func refreshAt(leaf *x509.Certificate, due time.Time) time.Time {
	due = due.Truncate(time.Second)
	if earliest := leaf.NotBefore.Add(margin); due.Before(earliest) {
		return earliest
	}
	if latest := leaf.NotAfter.Add(-margin); due.After(latest) {
		return latest
	}
	return due
}
