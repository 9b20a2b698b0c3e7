package inject

import "strings"

// Labels and annotations that the injector sets, and those of other projects that it reads.
const (
	// ProxyUUIDLabel, on an injected pod, shows its ProxyUUID.
	ProxyUUIDLabel = "osm-proxy-uuid"
	// StatusAnnotation, on an injected pod, records the changes of injection.
	StatusAnnotation = "openservicemesh.io/sidecar-status"

	defaultContainer      = "kubectl.kubernetes.io/default-container"
	prometheusScrape      = "prometheus.io/scrape"
	prometheusPort        = "prometheus.io/port"
	prometheusPath        = "prometheus.io/path"
	agentMetrics          = "/metrics"
	enforceLabel          = "pod-security.kubernetes.io/enforce"
	istioInjectionLabel   = "istio-injection"
	istioRevisionLabel    = "istio.io/rev"
	istioInject           = "sidecar.istio.io/inject"
	istioTrafficPrefix    = "traffic.sidecar.istio.io/"
	defaultRevision       = "default"
	sidecarTemplate       = "sidecar"
	healthPathPrefix      = "/app-health/"
	lifecyclePathPrefix   = "/app-lifecycle/"
	defaultServiceAccount = "default"
)

// ObjectName is the name of the objects of a revision's injector in the control plane's
// namespace: its Deployment, its Service and the ConfigMap of its injection config. The chart
// uses the same name.
func ObjectName(revision string) string {
	if revision == "" || revision == "default" {
		return "outrigger-injector"
	}
	return "outrigger-injector-" + revision
}

// WebhookName is the name of the MutatingWebhookConfiguration of a revision's injector. It
// is cluster-scoped, so its name includes the mesh's unless that is "osm". The chart uses the
// same name.
func WebhookName(revision, mesh string) string {
	name := ObjectName(revision)
	if mesh != "osm" {
		name += "." + strings.ReplaceAll(strings.ToLower(mesh), "_", "-")
	}
	return name
}
