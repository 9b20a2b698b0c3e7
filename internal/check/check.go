// Package check implements 'outrigger check': it finds what is wrong with a mesh in a
// cluster, and how to fix it. Each check is a row of a table and a function. All read the
// same Facts, which Gather fetches once; these are unrelated to the facts of package fact.
package check

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Level is the severity of a Finding.
type Level string

// The levels. Error means that something does not work now, Warning that it may not work
// later or could not be checked.
const (
	OK      Level = "ok"
	Warning Level = "warning"
	Error   Level = "error"
)

// Finding is a result of a check, usually about one object.
type Finding struct {
	Check   string `json:"check"`
	Level   Level  `json:"level"`
	Object  string `json:"object,omitempty"`
	Message string `json:"message"`
	// Fix says what to do. It is empty for OK.
	Fix string `json:"fix,omitempty"`
}

// Check is one check of a mesh.
type Check struct {
	// Name is SECTION/NAME.
	Name string
	// Meaning is the statement that is checked, for docs/check.md.
	Meaning string
	run     func(f *Facts, r *report)
}

// report collects the findings of a check.
type report struct {
	name     string
	findings []Finding
}

func (r *report) add(level Level, object, fix, format string, args ...any) {
	r.findings = append(r.findings, Finding{Check: r.name, Level: level, Object: object, Message: fmt.Sprintf(format, args...), Fix: fix})
}

func (r *report) ok(format string, args ...any) { r.add(OK, "", "", format, args...) }

// lost returns whether something could not be read, and reports it. This is an Error, since
// the check was not made.
func (r *report) lost(what string, err error) bool {
	if err == nil {
		return false
	}
	r.add(Error, "", "get the right to read it, or ask somebody who has it to run this check", "%s cannot be read: %v", what, err)
	return true
}

// most is the number of objects that one check names; a mesh may have thousands.
const most = 20

// problem is an object with what is wrong with it.
type problem struct{ object, message string }

// each reports up to most objects, and the number of the others.
func (r *report) each(level Level, problems []problem, fix func(object string) string) {
	for i, p := range problems {
		if i == most {
			r.add(level, "", fix(p.object), "and %d more", len(problems)-most)
			return
		}
		r.add(level, p.object, fix(p.object), "%s", p.message)
	}
}

// Run runs the checks in order.
func Run(checks []Check, f *Facts) []Finding {
	var all []Finding
	for _, c := range checks {
		r := &report{name: c.Name}
		c.run(f, r)
		all = append(all, r.findings...)
	}
	return all
}

// Worst returns the most severe level of the findings.
func Worst(findings []Finding) Level {
	worst := OK
	for _, f := range findings {
		if f.Level == Error || worst == OK {
			worst = f.Level
		}
		if worst == Error {
			break
		}
	}
	return worst
}

// Before returns the checks before an installation.
func Before() []Check {
	return []Check{
		{"kubernetes/version", "The API server's version is supported: 1.30 or newer.", version},
		{"kubernetes/clock", "This machine's clock and the API server's agree.", clock},
		{"nodes/kernel", "Nodes run Linux 5.2 or newer on amd64 or arm64. Older kernels cannot redirect both IPv4 and IPv6 with nftables.", kernels},
		{"install/rights", "You have the right to create each kind of object in an installation.", rights},
		{"install/pod-security", "The control plane's namespace accepts the control plane's pods: it does not belong to a mesh.", targetSecurity},
		{"install/other-meshes", "No other mesh has a webhook that could add its sidecars to the same pods.", otherMeshes},
		{"install/crds", "CRDs that exist already, such as those of Open Service Mesh, store objects only in versions that this mesh serves.", storedVersions},
	}
}

// After returns the checks of an installed mesh.
func After() []Check {
	return []Check{
		{"kubernetes/version", "The API server's version is supported: 1.30 or newer.", version},
		{"kubernetes/clock", "The clocks of this machine, the API server and the controller agree. The validity of certificates and tokens depends on them.", clocks},
		{"nodes/kernel", "Nodes run Linux 5.2 or newer on amd64 or arm64. Older kernels cannot redirect both IPv4 and IPv6 with nftables.", kernels},
		{"nodes/limits", "No node is short of memory, disk, process IDs or room for pods. Each sidecar uses some of them.", limits},
		{"control-plane/crds", "The API server serves the CRDs of the mesh.", crds},
		{"control-plane/rbac", "The controller's service account has the rights that it needs.", rbac},
		{"control-plane/deployments", "All replicas of the controller and the injector are ready.", deployments},
		{"control-plane/drivers", "Each controller reports that it and all its drivers are ready.", drivers},
		{"control-plane/versions", "This program, the control plane and the agents have the same version.", versions},
		{"control-plane/mesh-config", "The MeshConfig exists, and its conditions report that it is accepted.", meshConfig},
		{"webhook/ca", "The CA with which API servers verify the webhook exists, can be read and has not expired.", webhookCA},
		{"webhook/answers", "A pod that is created as a dry run gets a sidecar.", answers},
		{"webhook/policies", "If admission policies inject sidecars, the API server has them, each with its binding.", policies},
		{"certificates/trust-bundle", "Each namespace of the mesh has the trust bundle, and its roots do not expire soon.", bundles},
		{"certificates/kubelet", "If the MeshConfig lets kubelets request certificates, the cluster supports that, and the controller has published the roots for it.", podCertificates},
		{"certificates/proxies", "No connected proxy has an expired certificate.", proxyCertificates},
		{"proxies/connected", "The proxy of each running pod with a sidecar is connected to a controller.", connected},
		{"proxies/state", "No proxy crashes repeatedly, rejects its configuration or fails to acknowledge it.", states},
		{"proxies/versions", "The versions of the connected proxies are supported and the newest that are known, and have no known fault.", proxyVersions},
		{"proxies/key-exchange", "The MeshConfig allows the strongest key exchange of TLS. It also says which one the connected proxies use.", keyExchanges},
		{"gateways/programmed", "Each Gateway of the mesh, and each of its listeners, is accepted and served.", gateways},
		{"pods/sidecar", "Each running pod that should have a sidecar, as the injector decides, has one.", sidecars},
		{"pods/security", "No namespace of the mesh has a Pod Security level that rejects the sidecar.", security},
	}
}

// Strict returns the checks before the inbound TLS mode becomes Strict.
func Strict() []Check {
	return []Check{
		{"strict-ready/counts", "The proxy of each pod with the mesh-wide inbound TLS mode Permissive was read, so that its counts are known.", strictCounts},
		{"strict-ready/plaintext", "No such pod has received requests or connections without mesh TLS.", strictPlaintext},
	}
}

// live reports whether a pod has not ended and is not being deleted.
func live(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}
