package policy

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Limit is a kind of pods that a policy does not inject.
type Limit struct {
	// Name is the word for it in the message of a denial.
	Name string
	// When says which pods they are, as a clause.
	When string
	// is the expression that is true for them.
	is string
}

// prefix begins the names of the mesh's annotations.
const prefix = "openservicemesh.io/"

// known are the mesh's annotations with which a policy injects, because it reads them or because
// injection does not.
var known = []string{
	metadata.Injection, metadata.Class, metadata.AccessMode, metadata.DefaultAccess, metadata.InboundTLSMode,
	metadata.OutboundServices, metadata.AccessLog, metadata.ProxyProtocolPorts,
	metadata.Image, metadata.Metrics, metadata.HoldApplication, metadata.NativeSidecar,
	metadata.InboundPortExclusion, metadata.OutboundPortExclusion, metadata.InboundPortInclusion, metadata.OutboundPortInclusion,
	metadata.OutboundRangeExclusion, metadata.OutboundRangeInclusion, metadata.InterfaceExclusion,
}

// maxContainers bounds the containers of a pod for a policy, far below the API server's limits on
// the cost of expressions.
const maxContainers = 64

// Limits returns the kinds of pods that no policy injects, in the order in which a denial names
// them.
func Limits() []Limit { return limitsOf() }

// limitsOf returns the Limits for sidecars with the containers, volumes and times of the changes.
func limitsOf(of ...*change) []Limit {
	containers, volumes := []string{driver.InitContainer, driver.ProxyContainer}, []string{}
	for _, c := range of {
		containers, volumes = append(containers, c.names()...), append(volumes, names(c.volumes)...)
	}
	containers, volumes = sortedSet(containers), sortedSet(volumes)
	known := append([]string{inject.StatusAnnotation}, known...)
	if !slices.ContainsFunc(of, func(c *change) bool { return c.levels == nil }) {
		known = append(known, metadata.LogLevel)
	}
	setting := fmt.Sprintf("k.startsWith(%s) && !(k in %s)", quote(prefix), list(known))
	foreign := `t.kind == "HTTP" && ` + isSet("scheme") + ` && !(t.a.scheme in ["HTTP", "HTTPS"]) || ` +
		isSet("protocol") + ` && !(t.a.protocol in ["HTTP1", "HTTP2"]) || "protocol" in t.a && t.a.protocol == "HTTP2" && ` + isSet("scheme") + ` && t.a.scheme == "HTTPS" || ` +
		isSet("mode") + ` && !(t.a.mode in ["Plaintext", "TLS"]) || ` +
		`t.a.exists(k, !(k in ["path", "port", "host", "scheme", "protocol", "httpHeaders", "service", "mode"])) || ` +
		`"httpHeaders" in t.a && t.a.httpHeaders.exists(h, h.exists(k, !(k in ["name", "value"])))`
	text := func(of string) string { return fmt.Sprintf("string(%s).matches(%s)", of, quote(controls)) }
	limits := []Limit{
		{"settings", "the pod or its namespace has one of the annotations about the sidecar's resources, threads, times, redirection mode, connections, templates or `" + metadata.RewriteProbes + "`",
			fmt.Sprintf("variables.podAnnotations.exists(k, %[1]s) || variables.namespaceAnnotations.exists(k, %[1]s)", setting)},
		{"invalid_annotation", fmt.Sprintf("the pod or its namespace has an annotation with a value that cannot be used, with a list of more than %d bytes, or `%s` with another value than `true`", maxList, metadata.NativeSidecar),
			badSettings()},
		{"own_container", "the pod has a container with the name of one of the sidecar's, by which it sets fields of the sidecar, or as a copy of an injected pod",
			fmt.Sprintf("variables.all.exists(e, e.c.name in %s)", list(containers))},
		{"own_volume", "the pod has a volume with the name of one of the sidecar's",
			fmt.Sprintf("has(object.spec.volumes) && object.spec.volumes.exists(v, v.name.startsWith('outrigger-') || v.name in %s)", list(volumes))},
		{"windows", "the pod may be for Windows nodes: `spec.os`, a node selector or a required node affinity says so",
			fmt.Sprintf("has(object.spec.os) && has(object.spec.os.name) ? object.spec.os.name != 'linux' : "+
				"has(object.spec.nodeSelector) && object.spec.nodeSelector.exists(k, k in %[1]s && object.spec.nodeSelector[k] != 'linux') || "+
				"has(object.spec.affinity) && has(object.spec.affinity.nodeAffinity) && has(object.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution) && "+
				"object.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.exists(t, has(t.matchExpressions) && t.matchExpressions.exists(m, m.key in %[1]s))",
				list([]string{corev1.LabelOSStable, "beta.kubernetes.io/os"}))},
		{"pod_resources", "the pod has resources of its own (`spec.resources`), in which the sidecar must fit",
			"has(object.spec.resources)"},
		{"uid_conflict", fmt.Sprintf("the pod or one of its containers runs as user %d, the proxy's", driver.ProxyUID),
			fmt.Sprintf("has(object.spec.securityContext) && has(object.spec.securityContext.runAsUser) && object.spec.securityContext.runAsUser == %[1]d || "+
				`variables.all.exists(e, "securityContext" in e.c && "runAsUser" in e.c.securityContext && e.c.securityContext.runAsUser == %[1]d)`, driver.ProxyUID)},
		{"probe_unsupported", "the pod has a probe or HTTP hook with a field or a value that the agent does not know",
			"variables.taken.exists(t, " + foreign + ")"},
		{"probe_to_agent", "the pod has a probe or HTTP hook for the agent's port, as the copy of an injected pod has",
			fmt.Sprintf("variables.taken.exists(t, t.port[0] == %d)", driver.AgentPort)},
		{"probe_text", "the pod has a probe or HTTP hook with control characters other than tabs and line ends",
			`variables.taken.exists(t, ["path", "host", "service"].exists(f, f in t.a && t.a[f] != null && ` + text("t.a[f]") + `) || ` +
				`"httpHeaders" in t.a && t.a.httpHeaders.exists(h, ` + text("h.name") + ` || ` + text("h.value") + `))`},
		{"too_large", fmt.Sprintf("the pod has more than %d containers, init containers included", maxContainers),
			fmt.Sprintf("size(variables.all) > %d", maxContainers)},
	}
	for _, c := range of {
		if wait := c.preStop(); wait != "" {
			// The sidecars of all classes have the same.
			return append(limits, Limit{"grace_period", "the pod has a `terminationGracePeriodSeconds` below the sidecar's pre-stop time",
				"has(object.spec.terminationGracePeriodSeconds) && object.spec.terminationGracePeriodSeconds < " + wait})
		}
	}
	return limits
}

// unable is the expression of a list with the names of the Limits that hold for the pod.
func (e *expressions) unable(limits []Limit) string {
	if e.rules.Istio {
		istio := "k.contains('istio')"
		limits = append(limits, Limit{Name: "istio", is: fmt.Sprintf("[variables.podLabels, variables.podAnnotations, variables.namespaceLabels].exists(m, m.exists(k, %s))", istio)})
	}
	parts := make([]string, len(limits))
	for i, l := range limits {
		parts[i] = fmt.Sprintf("((%s) ? [%s] : [])", l.is, quote(l.Name))
	}
	return strings.Join(parts, " + ")
}

// late is the expression of a list with the containers that have probes for the app in a pod that a
// policy has injected: another webhook has added them later.
func (e *expressions) late() string {
	return fmt.Sprintf(`%[1]s in variables.podAnnotations && string(variables.podAnnotations[%[1]s]).contains("\"policy\":\"") ? variables.taken.filter(t, t.port[0] != %[2]d).map(t, string(t.t.c.name)) : []`,
		quote(inject.StatusAnnotation), driver.AgentPort)
}

// message is the expression of the guard's message.
func (e *expressions) message(made []*change) string {
	classes := make([]string, len(made))
	for i, c := range made {
		classes[i] = c.class
	}
	return fmt.Sprintf(`"outrigger: " + (variables.decision == "deny" ? (%[3]s in variables.podAnnotations ? "the annotation %[4]s of the pod cannot be read" : "the value of %[1]s on the pod or its namespace must be enabled, yes, true, disabled, no or false") : `+
		`size(variables.late) > 0 ? "a webhook has added probes after the sidecar was injected, and the mesh has no injector that could take them over; they are of: " + variables.late.join(", ") : `+
		`!(variables.class in %[2]s) ? "the mesh has no admission policy for the class " + variables.class + ", and no injector" : `+
		`"the pod needs a sidecar, which an admission policy cannot add: " + (size(variables.unable) > 0 ? variables.unable.join(", ") : "its policy is missing") + "; the mesh has no injector (injector.mode: policy)")`,
		metadata.Injection, list(classes), quote(inject.StatusAnnotation), inject.StatusAnnotation)
}
