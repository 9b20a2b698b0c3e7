// Package metadata has the names of the labels and annotations that users set on their objects
// for the mesh. docs/labels.md is the page about them. Open Service Mesh and osm-edge use the
// same names where they have the same setting.
package metadata

// Labels and annotations of namespaces, and of pods where that is said.
const (
	// MonitoredBy is a label with the name of the mesh that the namespace belongs to.
	MonitoredBy = "openservicemesh.io/monitored-by"
	// Ignore is a label that excludes the namespace from every mesh, whatever its value.
	Ignore = "openservicemesh.io/ignore"
	// Revision is a label, also of a pod, with the revision of the injector.
	Revision = "openservicemesh.io/rev"
	// Injection is a label or an annotation, also of a pod, that is enabled or disabled.
	Injection = "openservicemesh.io/sidecar-injection"
	// AccessMode is an annotation, also of a TrafficTarget, that is Audit: count what the
	// policies would refuse, before they are enforced.
	AccessMode = "openservicemesh.io/access-mode"
	// DefaultAccess is an annotation of a namespace that says what happens to calls of its pods
	// about which no policy decides: allow, deny, or audit, which allows and counts them.
	DefaultAccess = "openservicemesh.io/default-access"
)

// Annotations of pods, and of namespaces for all of their pods.
const (
	// Class is the name of the sidecar's driver.
	Class = "openservicemesh.io/sidecar-class"
	// GatewayPods says, on a Gateway, that its user has pods for it ("own").
	GatewayPods = "openservicemesh.io/gateway-pods"
	// Image is the proxy's image, or the agent's for a pod without a proxy.
	Image = "openservicemesh.io/sidecar-image"
	// LogLevel is the level of the proxy's own log.
	LogLevel = "openservicemesh.io/sidecar-log-level"
	// Concurrency is the number of the proxy's worker threads.
	Concurrency = "openservicemesh.io/sidecar-concurrency"
	// LimitPrefix and RequestPrefix, with the name of a resource such as cpu, are the
	// sidecar's resources.
	LimitPrefix   = "openservicemesh.io/sidecar-resource-limits-"
	RequestPrefix = "openservicemesh.io/sidecar-resource-requests-"
	// NativeSidecar says whether the sidecar is an init container that keeps running.
	NativeSidecar = "openservicemesh.io/native-sidecar"
	// HoldApplication says whether the application waits for the proxy.
	HoldApplication = "openservicemesh.io/hold-application-until-ready"
	// DrainSeconds is how long open connections may continue when the pod is stopped.
	DrainSeconds = "openservicemesh.io/sidecar-drain-seconds"
	// PreStopSeconds is how long the sidecar works normally after the pod is told to stop.
	PreStopSeconds = "openservicemesh.io/sidecar-pre-stop-seconds"
	// RewriteProbes is disabled for pods whose probes and hooks stay as they are.
	RewriteProbes = "openservicemesh.io/rewrite-probes"
	// InterceptionMode says how the pod's traffic is redirected.
	InterceptionMode = "openservicemesh.io/interception-mode"
	// ConnectionsPerSource limits the connections from one address to the pod.
	ConnectionsPerSource = "openservicemesh.io/inbound-connections-per-source"
	// Templates are the names of the injection templates.
	Templates = "openservicemesh.io/inject-templates"
	// Metrics is enabled for pods that get the annotations by which Prometheus finds them.
	Metrics = "openservicemesh.io/metrics"
	// InboundTLSMode is Strict or Permissive: whether traffic without mesh TLS is accepted.
	InboundTLSMode = "openservicemesh.io/inbound-tls-mode"
	// OutboundServices lists the services that the sidecar knows, of those that the pod may
	// call.
	OutboundServices = "openservicemesh.io/outbound-services"
	// AccessLog says which requests and connections get a line in the access log. Its values
	// are those of the MeshConfig's spec.observability.accessLog.
	AccessLog = "openservicemesh.io/access-log"
)

// Annotations of pods.
const (
	// InboundPortExclusion and the following lists are what is not redirected to the proxy.
	InboundPortExclusion   = "openservicemesh.io/inbound-port-exclusion-list"
	OutboundPortExclusion  = "openservicemesh.io/outbound-port-exclusion-list"
	OutboundRangeExclusion = "openservicemesh.io/outbound-ip-range-exclusion-list"
	InterfaceExclusion     = "openservicemesh.io/network-interface-exclusion-list"
	// InboundPortInclusion and the following lists are all that is redirected.
	InboundPortInclusion   = "openservicemesh.io/inbound-port-inclusion-list"
	OutboundPortInclusion  = "openservicemesh.io/outbound-port-inclusion-list"
	OutboundRangeInclusion = "openservicemesh.io/outbound-ip-range-inclusion-list"
	// ProxyProtocolPorts has the ports whose application gets the caller's address by the
	// PROXY protocol.
	ProxyProtocolPorts = "openservicemesh.io/proxy-protocol-port-list"
)
