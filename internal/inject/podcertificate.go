package inject

import (
	"context"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// SignerName returns the name of a mesh's signer of PodCertificateRequests, and
// TrustBundleName that of the ClusterTrustBundle with its roots. The chart grants rights for
// the same names.
func SignerName(meshName string) string { return "openservicemesh.io/mesh-" + inObjectName(meshName) }
func TrustBundleName(meshName string) string {
	return "openservicemesh.io:mesh-" + inObjectName(meshName) + ":roots"
}

func inObjectName(meshName string) string {
	return strings.ReplaceAll(strings.ToLower(meshName), "_", "-")
}

// Limits of the API server for the time from a certificate's begin to its end. It begins up to
// podCertificateBefore before it is issued.
const (
	minPodCertificate    = time.Hour
	maxPodCertificate    = 91 * 24 * time.Hour
	podCertificateBefore = 5 * time.Minute
)

// podCertificate lets the kubelet request the pod's certificate, if the mesh asks for it and
// the cluster can. Otherwise the agent requests it, which is as safe, so nothing is denied.
func (i *Injector) podCertificate(ctx context.Context, p *plan, configurator driver.Configurator) {
	if !configurator.GetMeshConfig().Spec.Certificate.PodCertificates || p.context.PodOS == "windows" {
		return
	}
	warn := func(why string) {
		p.warnings = append(p.warnings, Warning{"pod_certificates", "the agent requests the pod's certificate, not the kubelet as spec.certificate.podCertificates of the MeshConfig says: " + why})
	}
	if i.opts.PodCertificates == nil {
		warn("it is not known whether the cluster can")
		return
	}
	if err := i.opts.PodCertificates(ctx); err != nil {
		warn(err.Error())
		return
	}
	life := min(max(configurator.GetServiceCertValidityPeriod()+podCertificateBefore, minPodCertificate), maxPodCertificate)
	p.context.Sidecar.PodCertificate = &driver.PodCertificate{
		Signer: SignerName(i.opts.MeshName), Bundle: TrustBundleName(i.opts.MeshName), MaxSeconds: int32(life / time.Second),
	}
}
