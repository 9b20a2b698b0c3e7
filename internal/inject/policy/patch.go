package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	admission "k8s.io/api/admissionregistration/v1"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// sortedSet sorts the texts and removes duplicates.
func sortedSet(texts []string) []string {
	slices.Sort(texts)
	return slices.Compact(texts)
}

// names returns the names of the containers or volumes.
func names(list []any) []string {
	found := make([]string, 0, len(list))
	for _, v := range list {
		name, _ := at(v, "name").(string)
		found = append(found, name)
	}
	return found
}

// names returns the names of the added containers.
func (c *change) names() []string { return names(slices.Concat(c.before, c.after, c.containers)) }

// preStop returns the pre-stop time of the sidecar in seconds, or "".
func (c *change) preStop() string {
	for _, container := range slices.Concat(c.before, c.after, c.containers) {
		if at(container, "name") == driver.ProxyContainer {
			seconds, _ := at(container, "lifecycle", "preStop", "sleep", "seconds").(json.Number)
			return seconds.String()
		}
	}
	return ""
}

// text returns a text of the change as an expression.
func (c *change) text(text string) string {
	if text == c.agent && text != "" {
		return "variables.agent"
	}
	if text == c.redirection {
		return "variables.redirection"
	}
	return c.marks.by(text)
}

func (c *change) value(v any) string { return value(v, c.text) }

// variables are what the patch is made of.
func (c *change) variables() []admission.Variable {
	vs := []admission.Variable{
		{Name: "account", Expression: `has(object.spec.serviceAccountName) && object.spec.serviceAccountName != "" ? string(object.spec.serviceAccountName) : "default"`},
		{Name: "owners", Expression: "has(object.metadata.ownerReferences) ? object.metadata.ownerReferences.filter(r, has(r.controller) && r.controller) : []"},
		{Name: "name", Expression: `size(variables.owners) > 0 ? string(variables.owners[0].name) : has(object.metadata.name) ? string(object.metadata.name) : ""`},
		// As podtemplate's .Workload.
		{Name: "workload", Expression: `variables.name == "" ? (has(object.metadata.generateName) ? (object.metadata.generateName.endsWith("-") ? object.metadata.generateName.substring(0, size(object.metadata.generateName) - 1) : string(object.metadata.generateName)) : "") : ` +
			`size(variables.owners) == 0 ? variables.name : ` +
			`variables.owners[0].kind == "ReplicaSet" && "pod-template-hash" in variables.podLabels && variables.podLabels["pod-template-hash"] != "" ? ` +
			`(variables.name.endsWith("-" + variables.podLabels["pod-template-hash"]) ? variables.name.substring(0, size(variables.name) - size(variables.podLabels["pod-template-hash"]) - 1) : variables.name) : ` +
			`variables.owners[0].kind == "Job" ? variables.name.substring(0, size(variables.name) - size(variables.name.find("-[0-9]{8,}$"))) : variables.name`},
		{Name: "image", Expression: fmt.Sprintf("string(%s)", lookup(metadata.Image, quote(c.image)))},
		{Name: "redirection", Expression: redirection(&c.base)},
		{Name: "metrics", Expression: fmt.Sprintf("string(%s).lowerAscii() in %s && !%s.exists(k, k in variables.podAnnotations)", lookup(metadata.Metrics, "'no'"), list(on), list(metricsKeys))},
		{Name: "level", Expression: c.levelText()},
		{Name: "agent", Expression: "size(variables.taken) == 0 ? " + c.agentText(c.agent) + " : " + c.agentText(c.agentBefore) + ` + "[" + ` +
			undollared("variables.taken.map(t, "+agentProbe()+`).join(",")`) + ` + "]" + ` + c.marks.byJSON(c.agentAfter)},
	}
	for i, container := range slices.Concat(c.before, c.after, c.containers) {
		vs = append(vs, admission.Variable{Name: fmt.Sprintf("container%d", i), Expression: c.value(container)})
	}
	for i, volume := range c.volumes {
		vs = append(vs, admission.Variable{Name: fmt.Sprintf("volume%d", i), Expression: c.value(volume)})
	}
	return vs
}

// levelText is the expression of the part of OUTRIGGER_AGENT that depends on the log level.
func (c *change) levelText() string {
	if c.levels == nil {
		return "''"
	}
	parts := make([]string, 0, len(c.levels))
	for _, level := range sortedKeys(c.levels) {
		parts = append(parts, quote(level)+": "+quote(c.levels[level]))
	}
	return fmt.Sprintf("[string(%s).lowerAscii()].map(l, l == '' ? %s : {%s}[l])[0]", lookup(metadata.LogLevel, "''"), quote(c.level), strings.Join(parts, ", "))
}

// add is an operation of a JSON patch.
func add(path, value string) string {
	return fmt.Sprintf(`JSONPatch{op: "add", path: %s, value: %s}`, quote(path), value)
}

// patch returns the expression of the JSON patch. The policy's name is put into the status.
func (c *change) patch(policy string) string {
	var parts []string
	// The places of probes are those before a container is added.
	parts = append(parts, probePatch())
	var before, after, containers, volumes []string
	n := 0
	for _, list := range []struct {
		from []any
		into *[]string
	}{{c.before, &before}, {c.after, &after}, {c.containers, &containers}} {
		for range list.from {
			*list.into = append(*list.into, fmt.Sprintf("variables.container%d", n))
			n++
		}
	}
	for i := range c.volumes {
		volumes = append(volumes, fmt.Sprintf("variables.volume%d", i))
	}
	parts = append(parts, extend("initContainers", before, after), extend("containers", nil, containers), extend("volumes", nil, volumes))
	for _, m := range []struct {
		name, variable string
		more           map[string]string
	}{{"labels", "variables.podLabels", c.labels}, {"annotations", "variables.podAnnotations", c.annotations}} {
		if len(m.more) > 0 || m.name == "annotations" {
			parts = append(parts, fmt.Sprintf("(has(object.metadata.%s) ? [] : [%s])", m.name, add("/metadata/"+m.name, "{}")))
		}
		for _, key := range sortedKeys(m.more) {
			parts = append(parts, fmt.Sprintf("(%s in %s ? [] : [%s])", quote(key), m.variable, add("/metadata/"+m.name+"/"+pointer(key), c.text(m.more[key]))))
		}
	}
	var scraped []string
	for i, key := range metricsKeys {
		scraped = append(scraped, add("/metadata/annotations/"+pointer(key), quote([]string{"true", fmt.Sprint(driver.MetricsPort), driver.MetricsPath}[i])))
	}
	parts = append(parts, "(variables.metrics ? ["+strings.Join(scraped, ", ")+"] : [])")
	parts = append(parts, "["+add("/metadata/annotations/"+pointer(inject.StatusAnnotation), c.statusText(policy))+"]")
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	return strings.Join(parts, " + ")
}

// extend adds entries before and after those of a list of the pod's spec, which may be missing.
func extend(name string, before, after []string) string {
	if len(before)+len(after) == 0 {
		return ""
	}
	var operations []string
	for i, v := range before {
		operations = append(operations, add(fmt.Sprintf("/spec/%s/%d", name, i), v))
	}
	for _, v := range after {
		operations = append(operations, add("/spec/"+name+"/-", v))
	}
	return fmt.Sprintf("(has(object.spec.%[1]s) ? [%[2]s] : [%[3]s])", name, strings.Join(operations, ", "),
		add("/spec/"+name, "["+strings.Join(slices.Concat(before, after), ", ")+"]"))
}

// probePatch points the probes and hooks at the agent.
func probePatch() string {
	get := fmt.Sprintf(`"path": dyn(t.t.path), "port": dyn(%d), "scheme": dyn("HTTP")`, driver.AgentPort)
	value := fmt.Sprintf(`(t.kind == "HTTP" && "httpHeaders" in t.a && !("scheme" in t.a && t.a.scheme == "HTTPS") ? {%[1]s, "httpHeaders": dyn(t.a.httpHeaders)} : {%[1]s})`, get)
	return fmt.Sprintf(`variables.taken.map(t, (t.kind == "HTTP" ? [] : [JSONPatch{op: "remove", path: t.t.at + (t.kind == "TCP" ? "/tcpSocket" : "/grpc")}]) + `+
		`[JSONPatch{op: "add", path: t.t.at + "/httpGet", value: %s}]).flatten()`, value)
}

// statusText is the expression of the status annotation.
func (c *change) statusText(policy string) string {
	status := make(map[string]any, len(c.status)+1)
	maps.Copy(status, c.status)
	status["policy"] = policy
	delete(status, "version")
	text, err := json.Marshal(status)
	if err != nil {
		panic(err) // It was decoded from JSON.
	}
	// As the injector's, it begins with the version.
	version, _ := c.status["version"].(json.Number)
	expression := c.marks.byJSON(fmt.Sprintf(`{"version":%s,%s`, version, strings.TrimSuffix(string(text)[1:], "}")))
	for _, m := range []struct {
		name, variable string
		more           map[string]string
	}{{"labels", "variables.podLabels", c.labels}, {"annotations", "variables.podAnnotations", c.annotations}} {
		entries := fmt.Sprintf("%s.filter(k, !(k in %s))", list(sortedKeys(m.more)), m.variable)
		switch {
		case m.name == "annotations":
			entries = fmt.Sprintf("(%s + (variables.metrics ? %s : [])).distinct().sort()", entries, list(metricsKeys))
		case len(m.more) == 0:
			continue
		}
		expression += fmt.Sprintf(` + (size(%[1]s) > 0 ? ",\"%[2]s\":[" + %[1]s.map(k, %[3]s).join(",") + "]" : "")`, entries, m.name, jsonText("k"))
	}
	fields := fmt.Sprintf(`variables.taken.filter(t, t.t.at.startsWith(e.at + "/")).map(t, %s)`, original())
	expression += fmt.Sprintf(` + (size(variables.taken) > 0 ? ",\"changed\":{" + variables.all.map(e, {"e": dyn(e), "f": dyn(%s)}).filter(x, size(x.f) > 0).map(x, %s + ":{" + x.f.join(",") + "}").join(",") + "}" : "")`,
		fields, jsonText("string(x.e.c.name)"))
	return expression + ` + "}"`
}
