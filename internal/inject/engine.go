package inject

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/podtemplate"
)

// Inject decides whether a pod is injected and builds its patch. It never panics;
// every failure is a denial with a reason.
func (i *Injector) Inject(ctx context.Context, req Request) Result {
	return i.inject(ctx, req, false)
}

// Explain is Inject that records every step of the decision.
func (i *Injector) Explain(ctx context.Context, req Request) Result {
	return i.inject(ctx, req, true)
}

func (i *Injector) inject(ctx context.Context, req Request, steps bool) (r Result) {
	defer func() {
		if v := recover(); v != nil {
			i.opts.Log.Error("injecting a pod panicked", "namespace", req.Namespace, "panic", v, "stack", string(debug.Stack()))
			r = denied(deny("internal_error", fmt.Errorf("injecting the pod panicked: %v; see the injector's log", v)))
		}
	}()
	pod, err := req.decoded, error(nil)
	if pod == nil {
		pod, err = decodePod(req.Pod)
	} else {
		err = checkKind(pod)
	}
	if err != nil {
		return denied(deny("pod_invalid", err))
	}
	namespace, err := i.opts.Namespace(ctx, req.Namespace)
	if err != nil {
		return denied(deny("namespace_unknown", fmt.Errorf("namespace %s: %w", req.Namespace, err)))
	}
	config := i.config.Load()
	if config == nil {
		return denied(deny("not_configured", errors.New("the injection config cannot be read; see the injector's log")))
	}
	c := &candidate{opts: &i.opts, config: config, namespace: namespace, pod: pod}
	r = Result{Decision: decide(c, steps)}
	if r.Decision.Outcome != Inject {
		return r
	}
	if err := i.patch(ctx, &req, c, &r); err != nil {
		refused := denied(err)
		refused.Decision.Steps = r.Decision.Steps
		return refused
	}
	return r
}

func denied(err error) Result {
	d := denial{reason: "internal_error"}
	errors.As(err, &d)
	return Result{Decision: Decision{Outcome: Deny, Reason: d.reason, Message: err.Error()}}
}

// decodePod reads a pod as an API server would: field names are case-sensitive and
// unknown fields are ignored.
func decodePod(raw []byte) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := unmarshal(raw, pod); err != nil {
		return nil, fmt.Errorf("reading the pod: %w", err)
	}
	if string(bytes.TrimSpace(raw)) == "null" {
		return nil, errors.New("reading the pod: it is null")
	}
	return pod, checkKind(pod)
}

func checkKind(pod *corev1.Pod) error {
	if pod.Kind != "" && (pod.Kind != "Pod" || pod.APIVersion != "v1") {
		return fmt.Errorf("reading the pod: it is a %s of %s, not a Pod of v1", pod.Kind, pod.APIVersion)
	}
	return nil
}

// checkNames rejects pods with duplicate container or volume names: the status
// identifies both by name.
func checkNames(pod *corev1.Pod) error {
	containers := make(map[string]bool, len(pod.Spec.InitContainers)+len(pod.Spec.Containers))
	for c := range containersOf(pod) {
		if containers[c.Name] {
			return fmt.Errorf("two containers of the pod are called %q", c.Name)
		}
		containers[c.Name] = true
	}
	volumes := make(map[string]bool, len(pod.Spec.Volumes))
	for i := range pod.Spec.Volumes {
		if name := pod.Spec.Volumes[i].Name; volumes[name] {
			return fmt.Errorf("two volumes of the pod are called %q", name)
		}
		volumes[pod.Spec.Volumes[i].Name] = true
	}
	return nil
}

// patch injects the sidecar and fills in the rest of the result.
func (i *Injector) patch(ctx context.Context, req *Request, c *candidate, r *Result) error {
	raw := c.pod
	if err := checkNames(raw); err != nil {
		return deny("pod_invalid", err)
	}
	// An earlier injection is undone first, so that this one starts from the
	// original pod.
	c.pod = raw.DeepCopy()
	before, handle := raw, ""
	var earlier *status
	if value, ok := raw.Annotations[StatusAnnotation]; ok {
		var err error
		if earlier, err = parseStatus(value); err != nil {
			return deny("status_invalid", err)
		}
		if err := earlier.undo(c.pod); err != nil {
			return deny("status_invalid", err)
		}
		before, handle = c.pod.DeepCopy(), raw.Labels[ProxyUUIDLabel]
	} else if copied, err := undoCopy(c.pod); err != nil {
		return deny("copy_incomplete", err)
	} else if copied {
		before = c.pod.DeepCopy()
	}

	p, err := i.prepare(ctx, req, c, handle)
	if err != nil {
		return err
	}
	if p.hasMesh {
		if p.warnings, err = i.prepareMesh(c, p, req.Pod); err != nil {
			return err
		}
	}
	for key, value := range c.config.settings.InjectedAnnotations {
		setIfAbsent(&c.pod.Annotations, key, value)
	}
	if err := i.apply(p); err != nil {
		return err
	}
	if p.hasMesh {
		if err := c.istio.addVolumes(c.pod); err != nil {
			return invalid(err)
		}
	}
	if err := checkImages(c.pod); err != nil {
		return deny("image_missing", err)
	}
	if err := checkBudget(before, c.pod); err != nil {
		return err
	}
	s, err := record(before, c.pod)
	if err != nil {
		return deny("driver_error", err)
	}
	s.Revision, s.Class, s.Templates = i.opts.Revision, p.context.Sidecar.Class, p.names
	if p.hasMesh {
		showDefaultContainer(before, c.pod, s)
	}
	if earlier != nil {
		s.Text = earlier.Text
	}
	if earlier != nil && req.KeepForeign && slices.Equal(earlier.Templates, s.Templates) {
		if err := keepForeign(raw, c.pod, earlier, s); err != nil {
			return deny("internal_error", err)
		}
	}
	for container := range containersOf(c.pod) {
		if container.Name == driver.ProxyContainer {
			s.Image = container.Image
		}
	}
	encoded, err := json.Marshal(s)
	if err != nil {
		return deny("internal_error", err)
	}
	setAnnotation(&c.pod.Annotations, StatusAnnotation, string(encoded))

	r.Class, r.Redirection, r.Templates, r.Image = s.Class, p.context.Redirection, s.Templates, s.Image
	for _, list := range [][]added{s.InitContainers, s.Containers} {
		for _, a := range list {
			r.Added = append(r.Added, a.Name)
		}
	}
	r.Warnings = append(append(p.warnings, podSecurity(c.namespace, c.pod, s)...), serviceClass(before, c.pod)...)
	r.Patch = diff(raw, c.pod)
	return nil
}

// prepareMesh makes the changes that every mesh sidecar needs, before the driver is
// called. raw is the pod of the request.
func (i *Injector) prepareMesh(c *candidate, p *plan, raw []byte) ([]Warning, error) {
	inj := p.context
	warnings, err := checkPod(c.pod)
	if err != nil {
		return nil, err
	}
	warnings = append(p.warnings, warnings...)
	rewrite := true
	if f := c.lookup(metadata.RewriteProbes); f.ok {
		if rewrite, err = f.bool(); err != nil {
			return nil, invalid(err)
		}
	}
	switch {
	case inj.PodOS == "windows", sidecar.IsProxyless(inj.Sidecar.Class):
		// Without redirection the kubelet still reaches the app itself.
	case !rewrite:
		warnings = append(warnings, redirectedProbes(c.pod, &inj.Redirection)...)
	default:
		probes := probeRewriter{
			handle: inj.ProxyUUID, redirection: &inj.Redirection, classic: !inj.Sidecar.Native, unread: unreadFields{json: raw},
		}
		if err := probes.rewrite(c.pod); err != nil {
			return nil, err
		}
		inj.OriginalHealthProbes, inj.AppProbes = probes.originals, probes.agent
		warnings = append(warnings, probes.warnings...)
	}
	if err := annotateRedirection(c.pod, inj); err != nil {
		return nil, err
	}
	if inj.ProxyUUID != uuid.Nil {
		setAnnotation(&c.pod.Labels, ProxyUUIDLabel, inj.ProxyUUID.String())
	}
	if f := c.lookup(metadata.Metrics); f.ok {
		on, err := f.bool()
		if err != nil {
			return nil, invalid(err)
		}
		// The three annotations belong together: if the pod sets one, none is added.
		_, scrape := c.pod.Annotations[prometheusScrape]
		_, port := c.pod.Annotations[prometheusPort]
		_, path := c.pod.Annotations[prometheusPath]
		if on && !scrape && !port && !path {
			port, path := driver.MetricsPort, driver.MetricsPath
			if sidecar.IsProxyless(inj.Sidecar.Class) {
				port, path = driver.AgentPort, agentMetrics
			}
			setAnnotation(&c.pod.Annotations, prometheusScrape, "true")
			setAnnotation(&c.pod.Annotations, prometheusPort, fmt.Sprint(port))
			setAnnotation(&c.pod.Annotations, prometheusPath, path)
		}
	}
	return warnings, nil
}

// apply calls the driver and renders the templates, in the order of p.names.
func (i *Injector) apply(p *plan) (err error) {
	defer func() {
		if v := recover(); v != nil {
			i.opts.Log.Error("a driver panicked", "class", p.context.Sidecar.Class, "panic", v, "stack", string(debug.Stack()))
			err = deny("driver_error", fmt.Errorf("driver %s panicked: %v", p.context.Sidecar.Class, v))
		}
	}()
	for _, name := range p.names {
		if err := p.context.Err(); err != nil {
			return deny("timeout", fmt.Errorf("injecting %s: %w", name, err))
		}
		if p.hasMesh && name == p.context.Sidecar.Class {
			if err := sidecar.Patch(p.context); err != nil {
				reason := Reason("driver_error")
				if p.context.Err() != nil {
					reason = "timeout"
				}
				return deny(reason, fmt.Errorf("driver %s: %w", name, err))
			}
			continue
		}
		if err := p.context.Templates.Apply(p.context, name, nil); err != nil {
			return deny("template_error", err)
		}
	}
	return nil
}

// showDefaultContainer keeps the app's container kubectl's default when the
// sidecar is the pod's first container.
func showDefaultContainer(before, after *corev1.Pod, s *status) {
	app := slices.IndexFunc(before.Spec.Containers, func(c corev1.Container) bool { return !isOurs(c.Name) })
	if app < 0 || len(after.Spec.Containers) == 0 || after.Spec.Containers[0].Name == before.Spec.Containers[app].Name {
		return
	}
	if setIfAbsent(&after.Annotations, defaultContainer, before.Spec.Containers[app].Name) {
		s.Annotations = append(s.Annotations, defaultContainer)
	}
}

// isOurs reports whether a container's name is one of the sidecar's.
func isOurs(name string) bool { return name == driver.ProxyContainer || name == driver.InitContainer }

// keepForeign keeps third-party changes to the containers and volumes of an earlier
// injection: other webhooks run between two calls of this one, and the API server
// sets defaults. Entries of the earlier injection that this one does not add are
// dropped.
func keepForeign(raw, pod *corev1.Pod, earlier, now *status) error {
	then := earlier.byName()
	ours := now.byName()
	were := locate(raw)
	for c, init := range containersOf(pod) {
		was, ok := were[c.Name]
		if !ok || was.at.Init != init || then[c.Name] == nil || ours[c.Name] == nil {
			continue
		}
		foreign := *was.container
		foreign.RestartPolicy = c.RestartPolicy
		stale := setOf(then[c.Name].Env, ours[c.Name].Env)
		foreign.Env = slices.DeleteFunc(slices.Clone(foreign.Env), func(e corev1.EnvVar) bool { return stale[e.Name] })
		stale = setOf(then[c.Name].VolumeMounts, ours[c.Name].VolumeMounts)
		foreign.VolumeMounts = slices.DeleteFunc(slices.Clone(foreign.VolumeMounts), func(m corev1.VolumeMount) bool { return stale[m.MountPath] })
		merged, err := podtemplate.MergeContainer(foreign, *c)
		if err != nil {
			return err
		}
		*c = merged
	}
	stale := setOf(earlier.Volumes, nil)
	foreign := make(map[string]*corev1.Volume, len(now.Volumes))
	for i := range raw.Spec.Volumes {
		if name := raw.Spec.Volumes[i].Name; stale[name] {
			foreign[name] = &raw.Spec.Volumes[i]
		}
	}
	added := setOf(now.Volumes, nil)
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if !added[v.Name] || foreign[v.Name] == nil {
			continue
		}
		merged, err := podtemplate.MergeVolume(*foreign[v.Name], *v)
		if err != nil {
			return err
		}
		*v = merged
	}
	return nil
}

// setOf returns the names as a set, without the excluded ones.
func setOf(names, excluded []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	for _, name := range excluded {
		delete(set, name)
	}
	return set
}

func setAnnotation(m *map[string]string, key, value string) {
	if *m == nil {
		*m = make(map[string]string)
	}
	(*m)[key] = value
}

func setIfAbsent(m *map[string]string, key, value string) bool {
	if _, ok := (*m)[key]; ok {
		return false
	}
	setAnnotation(m, key, value)
	return true
}
