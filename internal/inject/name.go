package inject

import "strings"

// Labels and annotations that users set. Open Service Mesh and osm-edge use the same
// names.
const (
	// MonitoredByLabel, on a namespace, holds the name of its mesh.
	MonitoredByLabel = "openservicemesh.io/monitored-by"
	// IgnoreLabel, on a namespace, excludes it from every mesh.
	IgnoreLabel = "openservicemesh.io/ignore"
	// RevisionLabel, on a namespace or a pod, chooses the injector's revision.
	RevisionLabel = "openservicemesh.io/rev"
	// InjectionKey, a label or an annotation on a namespace or a pod, switches
	// injection.
	InjectionKey = "openservicemesh.io/sidecar-injection"
	// MetricsAnnotation, on a namespace or a pod, asks for metrics annotations.
	MetricsAnnotation = "openservicemesh.io/metrics"
	// ProxyUUIDLabel, on an injected pod, shows its ProxyUUID.
	ProxyUUIDLabel = "osm-proxy-uuid"
	// StatusAnnotation, on an injected pod, records the changes of injection.
	StatusAnnotation = "openservicemesh.io/sidecar-status"
	// ClassAnnotation, on a namespace or a pod, chooses the sidecar class.
	ClassAnnotation = "openservicemesh.io/sidecar-class"

	imageAnnotation        = "openservicemesh.io/sidecar-image"
	logLevelAnnotation     = "openservicemesh.io/sidecar-log-level"
	concurrencyAnnotation  = "openservicemesh.io/sidecar-concurrency"
	holdAnnotation         = "openservicemesh.io/hold-application-until-ready"
	nativeAnnotation       = "openservicemesh.io/native-sidecar"
	templatesAnnotation    = "openservicemesh.io/inject-templates"
	limitsAnnotation       = "openservicemesh.io/sidecar-resource-limits-"
	requestsAnnotation     = "openservicemesh.io/sidecar-resource-requests-"
	inboundExclusion       = "openservicemesh.io/inbound-port-exclusion-list"
	outboundExclusion      = "openservicemesh.io/outbound-port-exclusion-list"
	inboundInclusion       = "openservicemesh.io/inbound-port-inclusion-list"
	outboundInclusion      = "openservicemesh.io/outbound-port-inclusion-list"
	interfaceExclusion     = "openservicemesh.io/network-interface-exclusion-list"
	rangeExclusion         = "openservicemesh.io/outbound-ip-range-exclusion-list"
	connectionsEach        = "openservicemesh.io/inbound-connections-per-source"
	rangeInclusion         = "openservicemesh.io/outbound-ip-range-inclusion-list"
	interceptionAnnotation = "openservicemesh.io/interception-mode"
	probesAnnotation       = "openservicemesh.io/rewrite-probes"
	drainAnnotation        = "openservicemesh.io/sidecar-drain-seconds"
	preStopAnnotation      = "openservicemesh.io/sidecar-pre-stop-seconds"
	defaultContainer       = "kubectl.kubernetes.io/default-container"
	prometheusScrape       = "prometheus.io/scrape"
	prometheusPort         = "prometheus.io/port"
	prometheusPath         = "prometheus.io/path"
	agentMetrics           = "/metrics"
	enforceLabel           = "pod-security.kubernetes.io/enforce"
	istioInjectionLabel    = "istio-injection"
	istioRevisionLabel     = "istio.io/rev"
	istioInject            = "sidecar.istio.io/inject"
	istioTrafficPrefix     = "traffic.sidecar.istio.io/"
	defaultRevision        = "default"
	sidecarTemplate        = "sidecar"
	healthPathPrefix       = "/app-health/"
	lifecyclePathPrefix    = "/app-lifecycle/"
	defaultServiceAccount  = "default"
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
