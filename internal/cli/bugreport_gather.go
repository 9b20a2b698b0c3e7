package cli

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/check"
	"github.com/outrigger-mesh/outrigger/internal/page"
	"github.com/outrigger-mesh/outrigger/internal/redact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/upgrade"
	"github.com/outrigger-mesh/outrigger/internal/version"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

const (
	// reportLog and reportLines limit each log to its last bytes and lines.
	reportLog, reportLines = 1 << 20, 20000
	// reportPods is the number of pods of the control plane whose logs are added.
	reportPods = 20
)

var (
	// sidecarContainers are the injector's containers, and controlContainers the chart's.
	sidecarContainers = []string{driver.InitContainer, driver.ProxyContainer}
	controlContainers = []string{"outrigger", "outrigger-cni"}
)

// gather adds everything that can be read, and records the rest.
func (r *report) gather(ctx context.Context) {
	r.gatherAnswers(ctx)
	r.gatherNodes(ctx)
	r.gatherMesh(ctx)
	r.gatherControlPlane(ctx)
	if r.pod != nil {
		r.gatherPod(ctx)
	}
}

// gatherAnswers adds the output of other commands.
func (r *report) gatherAnswers(ctx context.Context) {
	f := r.flags
	r.part(ctx, func(ctx context.Context) {
		found := versions{Client: version.Get()}
		r.fail("versions", found.ask(ctx, f.kube, f.mesh.Namespace))
		r.addJSON("versions.json", found)
	})
	r.part(ctx, func(ctx context.Context) {
		checks := checkFlags{kube: f.kube, mesh: f.mesh, timeout: f.timeout}
		findings, err := checks.run(ctx)
		r.fail("outrigger check", err)
		if err == nil {
			r.addJSON("check.json", map[string]any{"level": check.Worst(findings), "findings": findings})
		}
	})
	r.part(ctx, func(ctx context.Context) {
		proxies := r.proxies()
		listed, err := proxies.list(ctx)
		r.fail("outrigger proxy list", err)
		if err == nil || len(listed) > 0 {
			r.addJSON("proxies.json", append([]listedProxy{}, listed...))
		}
	})
}

func (r *report) proxies() *proxyFlags {
	return &proxyFlags{kube: r.flags.kube, mesh: r.flags.mesh, timeout: r.flags.timeout}
}

// part calls ask with the timeout of one request.
func (r *report) part(ctx context.Context, ask func(ctx context.Context)) {
	ctx, cancel := r.limited(ctx)
	defer cancel()
	ask(ctx)
}

// gatherNodes adds the parts of nodes that matter to a mesh.
func (r *report) gatherNodes(ctx context.Context) {
	nodes, err := r.list(ctx, schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, "", metav1.ListOptions{})
	if err != nil {
		r.fail("nodes", err)
		return
	}
	summaries := make([]map[string]any, 0, len(nodes))
	for i := range nodes {
		var node corev1.Node
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(nodes[i].Object, &node); err != nil {
			r.fail("node "+nodes[i].GetName(), err)
			continue
		}
		conditions := make(map[string]any)
		for _, c := range node.Status.Conditions {
			conditions[string(c.Type)] = string(c.Status)
		}
		info := node.Status.NodeInfo
		summaries = append(summaries, map[string]any{
			"name": node.Name, "created": node.CreationTimestamp, "unschedulable": node.Spec.Unschedulable, "conditions": conditions,
			"kubelet": info.KubeletVersion, "runtime": info.ContainerRuntimeVersion, "kernel": info.KernelVersion, "os": info.OSImage,
			"platform": info.OperatingSystem + "/" + info.Architecture, "capacity": node.Status.Capacity, "allocatable": node.Status.Allocatable,
		})
	}
	r.addJSON("nodes.json", summaries)
}

// gatherMesh adds the namespaces, the configuration and the policies of the mesh.
func (r *report) gatherMesh(ctx context.Context) {
	r.addList(ctx, "mesh/namespaces.yaml", schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, "", metav1.ListOptions{LabelSelector: metadata.MonitoredBy})
	seen := make(map[string]bool)
	for _, kind := range source.Kinds() {
		group := kind.Group
		if kind.Role == source.Cluster || seen[group] {
			continue
		}
		seen[group] = true
		resources, err := r.resources(group)
		r.fail("the kinds of "+group, err)
		for _, resource := range resources {
			r.addList(ctx, "mesh/"+resource.Resource+"."+resource.Group+".yaml", resource, "", metav1.ListOptions{})
		}
	}
}

// resources returns the API server's resources of a group, in the preferred version.
func (r *report) resources(group string) ([]schema.GroupVersionResource, error) {
	groups, err := r.client.Discovery().ServerGroups()
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == group })
	if at < 0 {
		return nil, errors.New("the API server serves none; are the CRDs installed?")
	}
	var found []schema.GroupVersionResource
	seen := make(map[string]bool)
	versions := append([]metav1.GroupVersionForDiscovery{groups.Groups[at].PreferredVersion}, groups.Groups[at].Versions...)
	for _, version := range versions {
		list, err := r.client.Discovery().ServerResourcesForGroupVersion(version.GroupVersion)
		if err != nil {
			return found, err
		}
		for i := range list.APIResources {
			name := list.APIResources[i].Name
			if seen[name] || strings.Contains(name, "/") {
				continue
			}
			seen[name] = true
			found = append(found, schema.GroupVersionResource{Group: group, Version: version.Version, Resource: name})
		}
	}
	return found, nil
}

// gatherControlPlane adds the control plane's objects and logs.
func (r *report) gatherControlPlane(ctx context.Context) {
	home := r.flags.mesh.Namespace
	ours := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=outrigger"}
	for _, kind := range []schema.GroupVersionResource{
		{Group: "apps", Version: "v1", Resource: "deployments"}, {Group: "apps", Version: "v1", Resource: "daemonsets"}, {Version: "v1", Resource: "services"},
	} {
		r.addList(ctx, "control-plane/"+kind.Resource+".yaml", kind, home, ours)
	}
	for _, kind := range []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"} {
		r.addList(ctx, "control-plane/"+kind+".yaml", schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: kind}, "", ours)
	}
	r.addList(ctx, "control-plane/events.yaml", schema.GroupVersionResource{Version: "v1", Resource: "events"}, home, metav1.ListOptions{})
	list := r.addList(ctx, "control-plane/pods.yaml", schema.GroupVersionResource{Version: "v1", Resource: "pods"}, home, ours, controlContainers...)
	var pods []corev1.Pod
	for i := range list {
		var pod corev1.Pod
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list[i].Object, &pod); err != nil {
			r.fail("pod "+list[i].GetName(), err)
			continue
		}
		pods = append(pods, pod)
	}
	// If there are too many, such as those of a plug-in on each node, failing pods come first.
	slices.SortStableFunc(pods, func(a, b corev1.Pod) int { return cmp.Compare(faults(&b), faults(&a)) })
	for i := range pods {
		if i == reportPods {
			r.fail("logs", fmt.Errorf("the control plane has %d pods; the archive has the logs of %d, those with errors first", len(pods), reportPods))
			break
		}
		r.addLogs(ctx, "control-plane/logs", &pods[i], controlContainers)
	}
}

// faults ranks pods by how much their state deserves attention. The controller and the
// injector come before pods that run on every node.
func faults(pod *corev1.Pod) int {
	n := 0
	if !slices.ContainsFunc(pod.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "DaemonSet" }) {
		n += 1000
	}
	for _, s := range pod.Status.ContainerStatuses {
		n += int(min(s.RestartCount, 100))
		if !s.Ready {
			n += 100
		}
	}
	return n
}

// gatherPod adds the pod of --pod, without the output of its application.
func (r *report) gatherPod(ctx context.Context) {
	pod := r.pod
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		r.fail("pod "+pod.Name, err)
		return
	}
	containers := sidecarContainers
	for _, c := range upgrade.Successors(pod) {
		containers = append(slices.Clip(containers), c.Name)
	}
	r.addYAML("pod/pod.yaml", redact.Object(object, containers...))
	r.addList(ctx, "pod/events.yaml", schema.GroupVersionResource{Version: "v1", Resource: "events"}, pod.Namespace, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.kind": "Pod", "involvedObject.name": pod.Name}.String(),
	})
	r.addLogs(ctx, "pod/logs", pod, containers)
	r.part(ctx, func(ctx context.Context) {
		page, err := r.proxies().get(ctx, pod.Namespace+"/"+pod.Name)
		if err != nil {
			r.fail("outrigger proxy get "+pod.Namespace+"/"+pod.Name, err)
			return
		}
		r.addPage(page)
	})
}

// addPage adds the parts of 'outrigger proxy get' as files.
func (r *report) addPage(page *proxyPage) {
	r.addJSON("pod/proxy/state.json", map[string]any{"controller": page.controller, "proxy": page.answer.Proxy, "note": page.answer.Note})
	if len(page.answer.View) > 0 && string(page.answer.View) != "null" {
		r.addJSON("pod/proxy/view.json", page.answer.View)
	}
	for _, name := range slices.Sorted(maps.Keys(page.answer.Configuration)) {
		r.add("pod/proxy/configuration"+path.Clean("/"+name), redactDocument(page.answer.Configuration[name]))
	}
}

// redactDocument removes secrets from YAML or JSON documents, or from other text.
func redactDocument(text string) string {
	documents := strings.Split(text, "\n---\n")
	for i, document := range documents {
		var parsed any
		if yaml.Unmarshal([]byte(document), &parsed) != nil {
			return redact.Text(text)
		}
		switch parsed.(type) {
		case map[string]any, []any:
		default:
			return redact.Text(text)
		}
		// This drops comments, which are not part of the parsed document.
		out, err := yaml.Marshal(redact.Value(parsed))
		if err != nil {
			return redact.Mark
		}
		documents[i] = string(out)
	}
	return strings.Join(documents, "---\n")
}

// list reads all pages of a list.
func (r *report) list(ctx context.Context, kind schema.GroupVersionResource, namespace string, options metav1.ListOptions) ([]unstructured.Unstructured, error) {
	ctx, cancel := r.limited(ctx)
	defer cancel()
	return page.All[unstructured.Unstructured](ctx, r.objects.Resource(kind).Namespace(namespace).List, options)
}

// addList adds a list of objects, and returns it.
func (r *report) addList(ctx context.Context, name string, kind schema.GroupVersionResource, namespace string, options metav1.ListOptions, ours ...string) []unstructured.Unstructured {
	if len(ours) == 0 && kind.Group == "apps" {
		ours = controlContainers
	}
	objects, err := r.list(ctx, kind, namespace, options)
	if err != nil {
		r.fail(name, err)
		if len(objects) == 0 {
			return nil
		}
	}
	items := make([]any, 0, len(objects))
	for i := range objects {
		items = append(items, redact.Object(objects[i].Object, ours...))
	}
	r.addYAML(name, map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	return objects
}

// addLogs adds the logs of some containers of a pod, and of their previous instances.
func (r *report) addLogs(ctx context.Context, dir string, pod *corev1.Pod, containers []string) {
	statuses := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	for _, c := range pod.Spec.EphemeralContainers {
		all = append(all, corev1.Container(c.EphemeralContainerCommon))
	}
	for _, of := range all {
		if !slices.Contains(containers, of.Name) {
			continue
		}
		name := path.Join(dir, pod.Name, of.Name)
		options := &corev1.PodLogOptions{Container: of.Name, TailLines: new(int64(reportLines))}
		if r.flags.since > 0 {
			options.SinceSeconds = new(int64(max(r.flags.since.Seconds(), 1)))
		}
		r.addLog(ctx, name+".log", pod, options)
		if slices.ContainsFunc(statuses, func(s corev1.ContainerStatus) bool { return s.Name == of.Name && s.RestartCount > 0 }) {
			r.addLog(ctx, name+".previous.log", pod, &corev1.PodLogOptions{Container: of.Name, TailLines: options.TailLines, Previous: true})
		}
	}
}

func (r *report) addLog(ctx context.Context, name string, pod *corev1.Pod, options *corev1.PodLogOptions) {
	ctx, cancel := r.limited(ctx)
	defer cancel()
	var log tail
	err := copyLog(ctx, r.client, pod, options, &log)
	if err == nil {
		err = context.Cause(ctx)
	}
	r.fail(name, err)
	if err == nil || len(log.text) > 0 {
		r.add(name, redact.Text(log.String()))
	}
}

// tail is a writer that keeps the end of the text.
type tail struct {
	text []byte
	cut  bool
}

func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p...)
	// Shortening copies the text, so it is not done for every line.
	if len(t.text) > 2*reportLog {
		t.shorten()
	}
	return len(p), nil
}

func (t *tail) shorten() {
	if len(t.text) > reportLog {
		t.text = append([]byte(nil), t.text[len(t.text)-reportLog:]...)
		t.cut = true
	}
}

// String returns the text from the beginning of a line: a secret might not be recognized in
// the rest of a line.
func (t *tail) String() string {
	t.shorten()
	if !t.cut {
		return string(t.text)
	}
	_, whole, _ := bytes.Cut(t.text, []byte("\n"))
	return "... earlier lines are left out\n" + string(whole)
}

// addJSON adds a value, of which it removes secrets.
func (r *report) addJSON(name string, value any) {
	text, err := json.Marshal(value)
	var parsed any
	if err == nil {
		err = json.Unmarshal(text, &parsed)
	}
	if err == nil {
		text, err = json.MarshalIndent(redact.Value(parsed), "", "  ")
	}
	if err != nil {
		r.fail(name, err)
		return
	}
	r.add(name, string(text)+"\n")
}

// addYAML adds an object, from which secrets were removed.
func (r *report) addYAML(name string, value any) {
	text, err := yaml.Marshal(value)
	if err != nil {
		r.fail(name, err)
		return
	}
	r.add(name, string(text))
}

func (r *report) add(name, content string) {
	r.files = append(r.files, reportFile{name, []byte(content)})
}

// archive writes a compressed archive with the files in the directory dir.
func archive(out io.Writer, dir string, files []reportFile, now time.Time) error {
	compressed := gzip.NewWriter(out)
	w := tar.NewWriter(compressed)
	for _, file := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: path.Join(dir, file.name), Mode: 0o600, Size: int64(len(file.content)), ModTime: now, Format: tar.FormatPAX}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write(file.content); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), compressed.Close())
}
