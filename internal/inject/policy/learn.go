package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// change is what injection adds to a pod.
type change struct {
	class string
	// before and after are the init containers that come before and after the pod's own.
	before, after []any
	// containers and volumes come after the pod's own.
	containers, volumes []any
	// labels and annotations are set if the pod has none of these names.
	labels, annotations map[string]string
	// status is the status annotation of a pod without probes, labels and annotations.
	status map[string]any
	// marks are those in the values.
	marks marks
	// image is the image of the sidecar for pods that name none.
	image string
	// base is the redirection of pods that set nothing of it, and redirection the JSON of that of the
	// pod with the marks.
	base        agentspec.Redirection
	redirection string
	// levels are the parts of OUTRIGGER_AGENT by which log levels differ, by the value of the
	// annotation, and level that of pods that set none; beforeLevel is what comes before. Levels is nil
	// if more than this depends on the level.
	levels             map[string]string
	level, beforeLevel string
	// agent is the value of OUTRIGGER_AGENT without probes, and what comes before and after the
	// probes in the value with some.
	agent, agentBefore, agentAfter string
}

// marks are what a pod has of its own, as texts that occur nowhere else.
type marks struct {
	namespace, account, workload, image string
	// more are fields that the pod has besides, after which a comma stands, and moreContainers
	// further containers, before which one stands.
	moreMetadata, more, moreContainers string
}

// by replaces the marks by expressions.
func (m marks) by(text string) string { return m.replace(text, "variables.image") }

// byJSON is by for a JSON text, in whose texts the marks are. All but an image in the MeshConfig
// are of characters that JSON does not escape.
func (m marks) byJSON(text string) string {
	image := jsonText("variables.image")
	return m.replace(text, image+".substring(1, size("+image+") - 1)")
}

func (m marks) replace(text, image string) string {
	for _, r := range []struct{ mark, expression string }{
		{m.namespace, "request.namespace"}, {m.account, "variables.account"}, {m.workload, "variables.workload"}, {m.image, image},
	} {
		if before, after, ok := strings.Cut(text, r.mark); ok {
			parts := slices.DeleteFunc([]string{m.replace(before, image), r.expression, m.replace(after, image)}, func(s string) bool { return s == `""` })
			return strings.Join(parts, " + ")
		}
	}
	return quote(text)
}

// probed is the probe of the pod with which the place of probes is found.
var probed = agentspec.Probe{Path: "/app-health/app/readyz", Kind: agentspec.HTTP, Port: 1, Scheme: "HTTP", URL: "/the-place-of-probes", TimeoutSeconds: 1}

const (
	ownProbe = `"readinessProbe":{"httpGet":{"path":"/the-place-of-probes","port":1,"scheme":"HTTP"}},`
	ownPod   = `{"apiVersion":"v1","kind":"Pod","metadata":{%s"name":%q,"annotations":{%q:"enabled",%q:%q%s}},"spec":{%s"serviceAccountName":%q,
"initContainers":[{"name":"app-init","image":"app"}],"containers":[{%s"name":"app","image":"app"}%s],"volumes":[{"name":"app-volume","emptyDir":{}}]}}`
)

// learn returns what injection adds to pods of a class. The error says why a policy cannot add it.
func learn(ctx context.Context, model *inject.Model, class string) (*change, error) {
	if name := model.ReadsPods(class); name != "" {
		return nil, fmt.Errorf("the template %s depends on more of a pod than a policy can write into its output", name)
	}
	if model.Proxyless(class) {
		return nil, errors.New("its sidecar changes the containers of the application")
	}
	first, err := observe(ctx, model, class, marks{namespace: "outrigger-model-namespace", account: "outrigger-model-account", workload: "outrigger-model-workload", image: "outrigger.model/image:mark"})
	if err != nil {
		return nil, err
	}
	// What is computed from the marks, or read from the pod by a driver's code, differs in a way that
	// the marks do not explain.
	second, err := observe(ctx, model, class, marks{
		namespace: "another-outrigger-space", account: "some-outrigger-account-q", workload: "the-outrigger-workload-zz", image: "outrigger.another/proxy:marked",
		moreMetadata:   `"labels":{"outrigger.model/one":"x"},`,
		more:           `"terminationGracePeriodSeconds":90,"restartPolicy":"Never","hostname":"x","securityContext":{"runAsUser":7,"fsGroup":8},`,
		moreContainers: `,{"name":"outrigger-model-second","image":"x:2","ports":[{"name":"http","containerPort":8080}],"env":[{"name":"A","value":"b"}],"resources":{"limits":{"cpu":"1","memory":"1Gi"}}}`,
	})
	if err != nil {
		return nil, err
	}
	if first.patch("") != second.patch("") || !slices.Equal(first.variables(), second.variables()) {
		return nil, errors.New("its sidecar contains something read from the pod, or computed from its namespace, service account, workload or image")
	}
	return first, nil
}

// observe injects pods with the marks and compares.
func observe(ctx context.Context, model *inject.Model, class string, m marks) (*change, error) {
	unset, err := injectOwn(ctx, model, m, ownPodOf(class, m, "", ""))
	if err != nil {
		return nil, err
	}
	settings := fmt.Sprintf(",%q:%q,%q:%q", metadata.Image, m.image, metadata.InboundPortExclusion, markPorts)
	marked, err := injectOwn(ctx, model, m, ownPodOf(class, m, settings, ""))
	if err != nil {
		return nil, err
	}
	plain, own, err := patched(marked, ownPodOf(class, m, settings, ""))
	if err != nil {
		return nil, err
	}
	probing, err := injectOwn(ctx, model, m, ownPodOf(class, m, settings, ownProbe))
	if err != nil {
		return nil, err
	}
	with, _, err := patched(probing, ownPodOf(class, m, settings, ownProbe))
	if err != nil {
		return nil, err
	}
	c := &change{class: class, marks: m, image: unset.Image, base: unset.Redirection}
	if c.redirection, err = agentspec.EnvValue(marked.Redirection); err != nil {
		return nil, err
	}
	if err := c.placeOfProbes(plain, with); err != nil {
		return nil, err
	}
	if err := c.learnLevels(ctx, model, m, settings, plain); err != nil {
		return nil, err
	}
	return c, c.compare(own, plain)
}

// logLevels are the values of the annotation for the sidecar's log.
var logLevels = []string{"trace", "debug", "info", "warning", "warn", "error", "critical", "off"}

// learnLevels compares the pod with those of all log levels.
func (c *change) learnLevels(ctx context.Context, model *inject.Model, m marks, settings string, plain map[string]any) error {
	values := make(map[string]string)
	for _, level := range logLevels {
		raw := ownPodOf(c.class, m, settings+fmt.Sprintf(",%q:%q", metadata.LogLevel, level), "")
		r, err := injectOwn(ctx, model, m, raw)
		if err != nil {
			return err
		}
		pod, _, err := patched(r, raw)
		if err != nil {
			return err
		}
		was, is := []any{}, []any{}
		for _, list := range []string{"initContainers", "containers"} {
			was, is = append(was, items(plain, "spec", list)...), append(is, items(pod, "spec", list)...)
		}
		values[level] = variable(is)
		if !sameBut(was, is) || !reflect.DeepEqual(at(plain, "spec", "volumes"), at(pod, "spec", "volumes")) {
			return nil
		}
	}
	before, after := c.agentBefore, c.agent
	for _, v := range values {
		before, after = before[:common(before, v)], after[len(after)-commonEnd(after, v):]
	}
	// What differs must be one part, before the place of probes.
	if end := len(c.agent) - len(after); end < len(before) {
		after = c.agent[len(before):]
	}
	c.level = c.agent[len(before) : len(c.agent)-len(after)]
	if !strings.HasPrefix(c.agentBefore, before+c.level) {
		return nil
	}
	c.beforeLevel, c.levels = before, make(map[string]string)
	for level, v := range values {
		if len(v) < len(before)+len(after) || !strings.HasPrefix(v, before) || !strings.HasSuffix(v, after) {
			c.levels = nil
			return nil
		}
		c.levels[level] = v[len(before) : len(v)-len(after)]
	}
	return nil
}

// common returns the length of the common beginning of two texts, and commonEnd that of the end.
func common(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func commonEnd(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	return n
}

// sameBut reports whether containers differ only in OUTRIGGER_AGENT.
func sameBut(a, b []any) bool {
	without := func(list []any) string {
		text, err := json.Marshal(list)
		if err != nil {
			return ""
		}
		value, err := json.Marshal(variable(list))
		if err != nil {
			return ""
		}
		return strings.Replace(string(text), string(value), "", 1)
	}
	return without(a) == without(b)
}

// agentText is the expression of a text that begins as OUTRIGGER_AGENT.
func (c *change) agentText(text string) string {
	rest, ok := strings.CutPrefix(text, c.beforeLevel+c.level)
	if !ok || c.levels == nil {
		return c.marks.byJSON(text)
	}
	return c.marks.byJSON(c.beforeLevel) + " + variables.level + " + c.marks.byJSON(rest)
}

// markPorts are ports by which the redirection of the pod with the marks is recognized.
const markPorts = "60001,60013,60027"

// ownPodOf returns the pod with the marks, with more annotations and a probe.
func ownPodOf(class string, m marks, annotations, probe string) []byte {
	return fmt.Appendf(nil, ownPod, m.moreMetadata, m.workload, metadata.Injection, metadata.Class, class, annotations, m.more, m.account, probe, m.moreContainers)
}

// injectOwn injects the pod with the marks.
func injectOwn(ctx context.Context, model *inject.Model, m marks, raw []byte) (*inject.Result, error) {
	rules := model.Rules()
	// The pod is of this revision, whatever that is.
	namespace := inject.Namespace{Name: m.namespace, Labels: map[string]string{metadata.MonitoredBy: rules.MeshName, metadata.Revision: rules.Revisions[0]}}
	r := model.Inject(ctx, namespace, inject.Request{Pod: raw})
	if r.Decision.Outcome != inject.Inject {
		return nil, fmt.Errorf("%s: %s", r.Decision.Reason, r.Decision.Message)
	}
	return &r, nil
}

// patched returns a pod after and before its injection.
func patched(r *inject.Result, raw []byte) (after, before map[string]any, err error) {
	operations, err := json.Marshal(r.Patch)
	if err != nil {
		return nil, nil, err
	}
	patch, err := jsonpatch.DecodePatch(operations)
	if err != nil {
		return nil, nil, err
	}
	text, err := patch.Apply(raw)
	if err != nil {
		return nil, nil, err
	}
	if after, err = decode(text); err != nil {
		return nil, nil, err
	}
	before, err = decode(raw)
	return after, before, err
}

func decode(text []byte) (map[string]any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v map[string]any
	return v, d.Decode(&v)
}

// at returns a part of a JSON object, or nil.
func at(v any, path ...string) any {
	for _, key := range path {
		m, _ := v.(map[string]any)
		v = m[key]
	}
	return v
}

// items returns a list in a JSON object, or nil.
func items(v any, path ...string) []any {
	l, _ := at(v, path...).([]any)
	return l
}

func (c *change) placeOfProbes(plain, with map[string]any) error {
	var was, is string
	for _, lists := range []string{"initContainers", "containers"} {
		was, is = was+variable(items(plain, "spec", lists)), is+variable(items(with, "spec", lists))
	}
	if was == "" {
		return errors.New("its sidecar has no variable " + agentspec.EnvSpec + " for the probes of the application")
	}
	probe, err := agentspec.EnvValue([]agentspec.Probe{probed})
	if err != nil {
		return err
	}
	if strings.Count(is, probe) != 1 {
		return errors.New("the place of probes in the variable " + agentspec.EnvSpec + " of its sidecar was not found")
	}
	c.agent = was
	c.agentBefore, c.agentAfter, _ = strings.Cut(is, probe)
	return nil
}

// variable returns the value of OUTRIGGER_AGENT in the containers.
func variable(containers []any) string {
	for _, container := range containers {
		for _, entry := range items(container, "env") {
			if at(entry, "name") == agentspec.EnvSpec {
				text, _ := at(entry, "value").(string)
				return text
			}
		}
	}
	return ""
}

// compare fills c with the difference between the pod before and after injection.
func (c *change) compare(own, pod map[string]any) error {
	split := func(list string) (before, after []any, err error) {
		was, is := items(own, "spec", list), items(pod, "spec", list)
		i := slices.IndexFunc(is, func(v any) bool { return reflect.DeepEqual(v, was[0]) })
		if i < 0 || len(is) < i+len(was) || !reflect.DeepEqual(is[i:i+len(was)], was) {
			return nil, nil, fmt.Errorf("its templates change the pod's own %s", list)
		}
		return is[:i], is[i+len(was):], nil
	}
	var err error
	if c.before, c.after, err = split("initContainers"); err != nil {
		return err
	}
	var first []any
	if first, c.containers, err = split("containers"); err != nil {
		return err
	}
	if len(first) > 0 {
		return errors.New("its templates put a container before the pod's own")
	}
	if first, c.volumes, err = split("volumes"); err != nil {
		return err
	}
	if len(first) > 0 {
		return errors.New("its templates put a volume before the pod's own")
	}
	for _, container := range slices.Concat(c.before, c.after, c.containers) {
		if image, _ := at(container, "image").(string); image == "" {
			return fmt.Errorf("its templates only add fields to the container %v", at(container, "name"))
		}
	}
	wasSpec, isSpec := own["spec"].(map[string]any), pod["spec"].(map[string]any)
	for _, spec := range []map[string]any{wasSpec, isSpec} {
		for _, list := range []string{"initContainers", "containers", "volumes"} {
			delete(spec, list)
		}
	}
	for key := range isSpec {
		if !reflect.DeepEqual(wasSpec[key], isSpec[key]) {
			return fmt.Errorf("its templates set the field spec.%s", key)
		}
	}
	if c.labels, err = added(own, pod, "labels"); err != nil {
		return err
	}
	if c.annotations, err = added(own, pod, "annotations"); err != nil {
		return err
	}
	status, err := decode([]byte(c.annotations[inject.StatusAnnotation]))
	if err != nil {
		return fmt.Errorf("reading the status of its injection: %w", err)
	}
	delete(c.annotations, inject.StatusAnnotation)
	for _, key := range []string{"labels", "annotations"} {
		delete(status, key)
	}
	c.status = status
	return nil
}

// added returns the labels or annotations that the pod has and its own do not.
func added(own, pod map[string]any, which string) (map[string]string, error) {
	more := make(map[string]string)
	was, _ := at(own, "metadata", which).(map[string]any)
	is, _ := at(pod, "metadata", which).(map[string]any)
	for key, v := range is {
		text, _ := v.(string)
		switch {
		case was[key] == nil:
			more[key] = text
		case was[key] != v:
			return nil, fmt.Errorf("its templates change %s of the pod", which)
		}
	}
	return more, nil
}
