package policy

import (
	"fmt"
	"strings"

	admission "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// expressions are what all policies of a configuration have in common.
type expressions struct {
	rules        inject.Rules
	defaultClass string
}

// conditions leave out pods of which the pod alone shows that the class's policy has nothing to do. An injected
// pod has the status annotation, so a pod is injected once, however many policies there are and
// however often they are called.
func (e *expressions) conditions(class string) []admission.MatchCondition {
	return []admission.MatchCondition{
		{Name: "not-injected", Expression: fmt.Sprintf("!has(object.metadata.annotations) || !(%s in object.metadata.annotations)", quote(inject.StatusAnnotation))},
		{Name: "class", Expression: fmt.Sprintf("!has(object.metadata.annotations) || !(%[1]s in object.metadata.annotations) || object.metadata.annotations[%[1]s].lowerAscii() == %[2]s", quote(metadata.Class), quote(class))},
		{Name: "own-network", Expression: "!has(object.spec.hostNetwork) || !object.spec.hostNetwork"},
	}
}

// decide returns the variables with the pod's and the namespace's labels and annotations, the
// decision, which is inject, skip or deny, and the class. They are the table of
// docs/injection.md. The match constraints are its first rules.
func (e *expressions) decide() []admission.Variable {
	containers := "(has(object.spec.initContainers) ? object.spec.initContainers : []) + (has(object.spec.containers) && object.spec.containers != null ? object.spec.containers : [])"
	rules := []string{
		fmt.Sprintf("!((%[1]s in variables.podLabels ? variables.podLabels[%[1]s] : %[1]s in variables.namespaceLabels ? variables.namespaceLabels[%[1]s] : 'default') in %[2]s) ? 'skip'",
			quote(metadata.Revision), list(e.rules.Revisions)),
		"has(object.spec.hostNetwork) && object.spec.hostNetwork ? 'skip'",
		quote(corev1.MirrorPodAnnotationKey) + " in variables.podAnnotations ? 'skip'",
		fmt.Sprintf("(%s).exists(c, c.name in %s) ? 'skip'", containers, list(inject.ForeignSidecars())),
		// Every injection begins its status so.
		fmt.Sprintf("%[1]s in variables.podAnnotations && !string(variables.podAnnotations[%[1]s]).startsWith('{\"version\":1,') ? 'deny'", quote(inject.StatusAnnotation)),
		switched("variables.podLabels"),
		switched("variables.podAnnotations"),
	}
	for _, s := range e.rules.Never {
		rules = append(rules, selected(s)+" ? 'skip'")
	}
	for _, s := range e.rules.Always {
		rules = append(rules, selected(s)+" ? 'inject'")
	}
	last := "'skip'"
	if e.rules.Enabled {
		last = "'inject'"
	}
	rules = append(rules, switched("variables.namespaceLabels"), switched("variables.namespaceAnnotations"), last)
	return []admission.Variable{
		{Name: "podLabels", Expression: "has(object.metadata.labels) ? object.metadata.labels : {}"},
		{Name: "podAnnotations", Expression: "has(object.metadata.annotations) ? object.metadata.annotations : {}"},
		{Name: "namespaceLabels", Expression: "has(namespaceObject.metadata.labels) ? namespaceObject.metadata.labels : {}"},
		{Name: "namespaceAnnotations", Expression: "has(namespaceObject.metadata.annotations) ? namespaceObject.metadata.annotations : {}"},
		{Name: "decision", Expression: strings.Join(rules, " : ")},
		{Name: "class", Expression: fmt.Sprintf("string(%[1]s in variables.podAnnotations ? variables.podAnnotations[%[1]s] : %[1]s in variables.namespaceAnnotations ? variables.namespaceAnnotations[%[1]s] : %[2]s).lowerAscii()",
			quote(metadata.Class), quote(e.defaultClass))},
	}
}

// switched decides by a label or an annotation that is on or off.
func switched(in string) string {
	value := fmt.Sprintf("string(%s[%s]).lowerAscii()", in, quote(metadata.Injection))
	return fmt.Sprintf("%[1]s in %[2]s ? (%[3]s in ['enabled', 'yes', 'true'] ? 'inject' : %[3]s in ['disabled', 'no', 'false'] ? 'skip' : 'deny')", quote(metadata.Injection), in, value)
}

// selected reports whether a selector matches the pod's labels.
func selected(s metav1.LabelSelector) string {
	all := make([]metav1.LabelSelectorRequirement, 0, len(s.MatchLabels)+len(s.MatchExpressions))
	for _, key := range sortedKeys(s.MatchLabels) {
		all = append(all, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{s.MatchLabels[key]}})
	}
	terms := make([]string, 0, cap(all))
	for _, r := range append(all, s.MatchExpressions...) {
		has := quote(r.Key) + " in variables.podLabels"
		in := fmt.Sprintf("%s && variables.podLabels[%s] in %s", has, quote(r.Key), list(r.Values))
		switch r.Operator {
		case metav1.LabelSelectorOpIn:
			terms = append(terms, in)
		case metav1.LabelSelectorOpNotIn:
			terms = append(terms, "!("+in+")")
		case metav1.LabelSelectorOpExists:
			terms = append(terms, has)
		case metav1.LabelSelectorOpDoesNotExist:
			terms = append(terms, "!("+has+")")
		}
	}
	return strings.Join(terms, " && ")
}

// probes returns the variables with the containers, with their places, and with the probes and hooks
// that go to the agent: "t" is the probe or hook as it is found, "a" its action, "kind" the
// action's kind, and "port" a list with its number.
func (e *expressions) probes() []admission.Variable {
	return []admission.Variable{
		{Name: "all", Expression: `(has(object.spec.initContainers) ? object.spec.initContainers : []).transformList(i, c, {"at": dyn("/spec/initContainers/" + string(i)), "c": dyn(c)}) + ` +
			`(has(object.spec.containers) && object.spec.containers != null ? object.spec.containers : []).transformList(i, c, {"at": dyn("/spec/containers/" + string(i)), "c": dyn(c)})`},
		// Requests to hooks have effects, so their paths contain something that only those know who
		// may read the pod's owner or its namespace.
		{Name: "handle", Expression: "has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(r, has(r.controller) && r.controller) ? " +
			"string(object.metadata.ownerReferences.filter(r, has(r.controller) && r.controller)[0].uid) : string(dyn(namespaceObject).metadata.uid)"},
		{Name: "handlers", Expression: `variables.all.map(e, ` +
			`[["livenessProbe", "livez"], ["readinessProbe", "readyz"], ["startupProbe", "startupz"]].filter(f, f[0] in e.c)` +
			`.map(f, {"at": dyn(e.at + "/" + f[0]), "c": dyn(e.c), "field": dyn(f[0]), "hook": dyn(""), "path": dyn("/app-health/" + e.c.name + "/" + f[1]), "h": dyn(e.c[f[0]])}) + ` +
			`("lifecycle" in e.c ? ["postStart", "preStop"].filter(f, f in e.c.lifecycle && "httpGet" in e.c.lifecycle[f])` +
			`.map(f, {"at": dyn(e.at + "/lifecycle/" + f), "c": dyn(e.c), "field": dyn("lifecycle/" + f), "hook": dyn(f), "path": dyn("/app-lifecycle/" + variables.handle + "/" + e.c.name + "/" + f), "h": dyn(e.c.lifecycle[f])}) : [])` +
			`).flatten()`},
		{Name: "taken", Expression: `variables.handlers.filter(t, "httpGet" in t.h || "tcpSocket" in t.h || "grpc" in t.h)` +
			`.map(t, {"t": dyn(t), "kind": dyn("httpGet" in t.h ? "HTTP" : "tcpSocket" in t.h ? "TCP" : "GRPC"), "a": dyn("httpGet" in t.h ? t.h.httpGet : "tcpSocket" in t.h ? t.h.tcpSocket : t.h.grpc)})` +
			`.map(t, {"t": dyn(t.t), "kind": dyn(t.kind), "a": dyn(t.a), "port": dyn(type(t.a.port) == int ? [t.a.port] : "ports" in t.t.c ? t.t.c.ports.filter(p, "name" in p && p.name == t.a.port).map(p, p.containerPort) : [])})` +
			`.filter(t, size(t.port) > 0 && t.port[0] > 0 && t.port[0] <= 65535)`},
	}
}

// isSet is the condition that a text of a probe's action is not empty.
func isSet(field string) string {
	return fmt.Sprintf(`(%q in t.a && t.a.%[2]s != null && t.a.%[2]s != "")`, field, field)
}

// agentProbe is the JSON of an agentspec.Probe.
func agentProbe() string {
	text := func(field, key string) string {
		return fmt.Sprintf(` + (%s ? ",\"%s\":" + %s : "")`, isSet(field), key, jsonText("string(t.a."+field+")"))
	}
	return `"{\"path\":" + ` + jsonText("string(t.t.path)") + ` + ",\"kind\":\"" + t.kind + "\",\"port\":" + string(t.port[0])` +
		text("host", "host") +
		` + (t.kind == "HTTP" ? ",\"scheme\":" + (` + isSet("scheme") + ` ? ` + jsonText("string(t.a.scheme)") + ` : "\"HTTP\"") : "")` +
		text("path", "url") + text("protocol", "protocol") +
		` + ("httpHeaders" in t.a ? ",\"headers\":" + ` + headers() + ` : "")` +
		text("service", "service") + text("mode", "mode") +
		` + (t.t.hook != "" ? ",\"hook\":\"" + t.t.hook + "\"" : ",\"timeoutSeconds\":" + string("timeoutSeconds" in t.t.h && t.t.h.timeoutSeconds > 1 ? t.t.h.timeoutSeconds : 1)) + "}"`
}

func headers() string {
	return `"[" + t.a.httpHeaders.map(h, "{\"name\":" + ` + jsonText("string(h.name)") + ` + ",\"value\":" + ` + jsonText("string(h.value)") + ` + "}").join(",") + "]"`
}

// original is the JSON of the fields of a container that a rewritten probe or hook had.
func original() string {
	text := func(field, key string) string {
		return fmt.Sprintf(` + (%s ? ",\"%s\":" + %s : "")`, isSet(field), key, jsonText("string(t.a."+field+")"))
	}
	action := `("{\"port\":" + (type(t.a.port) == int ? string(t.a.port) : ` + jsonText("string(t.a.port)") + `)` +
		text("path", "path") + text("host", "host") + text("scheme", "scheme") +
		` + ("httpHeaders" in t.a ? ",\"httpHeaders\":" + ` + headers() + ` : "")` +
		text("protocol", "protocol") +
		` + ("service" in t.a && t.a.service != null ? ",\"service\":" + ` + jsonText("string(t.a.service)") + ` : "")` + text("mode", "mode") + ` + "}")`
	return `"\"" + t.t.field + (t.t.hook != "" ? "\":{\"httpGet\":" + ` + action + ` + "}" : ` +
		`t.kind == "HTTP" ? "/httpGet\":" + ` + action + ` : ` +
		`"/httpGet\":null,\"" + t.t.field + (t.kind == "TCP" ? "/tcpSocket\":" : "/grpc\":") + ` + action + `)`
}
