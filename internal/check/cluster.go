package check

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	semver "k8s.io/apimachinery/pkg/util/version"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

func version(f *Facts, r *report) {
	v, err := semver.ParseGeneric(f.version.value)
	switch {
	case err != nil:
		r.add(Warning, "", "find out whether it is 1.30 or newer", "the API server's version %q cannot be read", f.version.value)
	case v.LessThan(semver.MajorMinor(1, 30)):
		r.add(Error, "", "upgrade Kubernetes to 1.30 or newer", "the API server's version is %s", f.version.value)
	default:
		r.ok("the API server's version is %s", f.version.value)
	}
}

// Clocks that differ by skewWarn deserve attention. With skewFail, certificates and tokens
// are rejected.
const (
	skewWarn = 10 * time.Second
	skewFail = 2 * time.Minute
)

func clock(f *Facts, r *report) {
	if f.skew.err != nil {
		r.add(Warning, "", "compare the clocks by hand, with 'date -u' on this machine and on a node of the control plane", "the clocks cannot be compared: the API server does not send its time")
		return
	}
	apart(r, "this machine", f.skew.value)
}

func apart(r *report, who string, ahead time.Duration) {
	level, fix := OK, ""
	if ahead.Abs() > skewWarn {
		level, fix = Warning, "synchronize both clocks with NTP"
	}
	if ahead.Abs() > skewFail {
		level = Error
	}
	switch {
	case level == OK:
		r.ok("the clock of %s agrees with the API server's", who)
	case ahead > 0:
		r.add(level, "", fix, "the clock of %s is %s ahead of the API server's", who, ahead.Round(time.Second))
	default:
		r.add(level, "", fix, "the clock of %s is %s behind the API server's", who, (-ahead).Round(time.Second))
	}
}

// clocks reads the controller's clock from its lease, which the controller renews every few
// seconds with its own time.
func clocks(f *Facts, r *report) {
	clock(f, r)
	if f.renewed.err != nil {
		r.add(Warning, "Lease/"+f.options.Namespace+"/outrigger-controller", "find out whether the controller is running", "the controller's clock is not known, because no controller is the leader: %v", f.renewed.err)
		return
	}
	const renewal = 30 * time.Second
	ahead := f.renewed.value.Sub(f.now.Add(-f.skew.value))
	if ahead < 0 {
		ahead = min(ahead+renewal, 0)
	}
	apart(r, "the controller", ahead)
}

var kernelVersion = regexp.MustCompile(`^(\d+)\.(\d+)`)

func kernels(f *Facts, r *report) {
	if r.lost("the list of nodes", f.nodes.err) {
		return
	}
	var wrong []problem
	for i := range f.nodes.value {
		node := &f.nodes.value[i]
		info := node.Status.NodeInfo
		var why string
		var major, minor int
		if m := kernelVersion.FindString(info.KernelVersion); m != "" {
			_, _ = fmt.Sscanf(m, "%d.%d", &major, &minor)
		}
		switch {
		case info.OperatingSystem != "" && info.OperatingSystem != "linux":
			why = "it runs " + info.OperatingSystem + ", where sidecars do not work"
		case info.Architecture != "" && info.Architecture != "amd64" && info.Architecture != "arm64":
			why = "its architecture is " + info.Architecture + ", for which no images exist"
		case major > 0 && (major < 5 || major == 5 && minor < 2):
			why = "its kernel is " + info.KernelVersion + ", older than 5.2"
		default:
			continue
		}
		wrong = append(wrong, problem{"Node/" + node.Name, why})
	}
	r.each(Warning, wrong, func(string) string { return "upgrade this node, or run no pods of the mesh on it" })
	if len(wrong) == 0 {
		r.ok("%s can run sidecars", count(len(f.nodes.value), "node"))
	}
}

func limits(f *Facts, r *report) {
	if r.lost("the list of nodes and pods", cmp.Or(f.nodes.err, f.pods.err)) {
		return
	}
	on := make(map[string]int64)
	for i := range f.pods.value {
		on[f.pods.value[i].Spec.NodeName]++
	}
	wrong := 0
	for i := range f.nodes.value {
		node := &f.nodes.value[i]
		for _, c := range node.Status.Conditions {
			switch {
			case c.Status != corev1.ConditionTrue:
			case c.Type == corev1.NodeMemoryPressure || c.Type == corev1.NodePIDPressure || c.Type == corev1.NodeDiskPressure:
				wrong++
				r.add(Warning, "Node/"+node.Name, "free some, or move pods to other nodes; the kubelet evicts whole pods, with their sidecars", "it has %s: %s", c.Type, c.Message)
			}
		}
		if most := node.Status.Allocatable.Pods().Value(); most > 0 && on[node.Name] > most*9/10 {
			wrong++
			r.add(Warning, "Node/"+node.Name, "raise the kubelet's maxPods, or add nodes", "%d pods of the mesh run on it, and it accepts %d pods in total", on[node.Name], most)
		}
	}
	if wrong == 0 {
		r.ok("no node is short of memory, processes, disk or pods")
	}
}

func rights(f *Facts, r *report) {
	switch {
	case f.refused.err != nil:
		r.lost("your rights", f.refused.err)
	case len(f.refused.value) > 0:
		r.add(Error, "", "ask an administrator to install the mesh, or to give you these rights", "you lack the rights: %s", strings.Join(f.refused.value, ", "))
	default:
		r.ok("you have the right to create all objects of an installation")
	}
}

func targetSecurity(f *Facts, r *report) {
	if r.lost("the namespaces", f.home.err) {
		return
	}
	// Every Pod Security level admits the control plane. But its namespace must not be a
	// member of a mesh.
	ns := f.home.value
	if ns == nil {
		r.ok("namespace %s does not exist yet; the installation creates it", f.options.Namespace)
		return
	}
	if mesh, ok := ns.Labels[metadata.MonitoredBy]; ok {
		r.add(Error, "Namespace/"+ns.Name, "outrigger namespace remove "+ns.Name, "the control plane is to be installed in it, but it belongs to mesh %s, whose webhook would block the control plane's own pods", mesh)
		return
	}
	r.ok("namespace %s accepts the control plane's pods", ns.Name)
}

// meshes are other meshes with sidecars, recognized by the names of their webhooks.
var meshes = []struct{ part, name string }{
	{"istio", "Istio"}, {"linkerd", "Linkerd"}, {"kuma", "Kuma"}, {"consul", "Consul"}, {"osm-", "Open Service Mesh"}, {"cilium", "Cilium"},
}

func otherMeshes(f *Facts, r *report) {
	if r.lost("the webhook configurations", f.hooks.err) {
		return
	}
	found := 0
	for _, hook := range f.hooks.value {
		if hook.Name == f.options.Webhook || hook.Labels["app.kubernetes.io/name"] == "outrigger" {
			continue
		}
		for _, mesh := range meshes {
			if strings.Contains(hook.Name, mesh.part) {
				found++
				level, fix := Warning, "let no namespace belong to both meshes, so that no pod gets two sidecars"
				if mesh.part == "osm-" {
					level, fix = Error, "remove Open Service Mesh's injector first: both injectors use the same labels (docs/migration.md)"
				}
				r.add(level, "MutatingWebhookConfiguration/"+hook.Name, fix, "%s adds sidecars to pods too", mesh.name)
				break
			}
		}
	}
	if found == 0 {
		r.ok("no other mesh has a webhook")
	}
}

// kinds returns the CRDs of the mesh with their versions, the newest first.
func kinds() map[string][]string {
	versions := make(map[string][]string)
	for _, kind := range source.Kinds() {
		if kind.Role == source.Policy || kind.Role == source.Configuration {
			versions[kind.Resource().String()] = kind.Versions
		}
	}
	return versions
}

func storedVersions(f *Facts, r *report) {
	if r.lost("the CRDs", f.crds.err) {
		return
	}
	kinds, wrong, there := kinds(), 0, 0
	for i := range f.crds.value {
		crd := &f.crds.value[i]
		serves, ours := kinds[crd.GetName()]
		if !ours {
			continue
		}
		there++
		stored, _, _ := unstructured.NestedStringSlice(crd.Object, "status", "storedVersions")
		for _, v := range stored {
			if !slices.Contains(servedVersions(crd, serves), v) {
				wrong++
				r.add(Error, "CustomResourceDefinition/"+crd.GetName(), "write its objects again, so that they are stored in a newer version, and remove "+v+" from its status.storedVersions (docs/migration.md)", "objects are stored in version %s, which this mesh does not serve", v)
			}
		}
	}
	if wrong == 0 {
		r.ok("%s of the mesh %s already, and store only versions that it serves", count(there, "CRD"), map[bool]string{true: "exists", false: "exist"}[there == 1])
	}
}

// servedVersions returns the versions that the mesh uses, and those that the CRD serves
// besides.
func servedVersions(crd *unstructured.Unstructured, used []string) []string {
	all := slices.Clone(used)
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, v := range versions {
		if m, ok := v.(map[string]any); ok && m["served"] == true {
			all = append(all, fmt.Sprint(m["name"]))
		}
	}
	return all
}

func crds(f *Facts, r *report) {
	if r.lost("the CRDs", f.crds.err) {
		return
	}
	kinds, served := kinds(), make(map[string][]string)
	for i := range f.crds.value {
		crd := &f.crds.value[i]
		if _, ours := kinds[crd.GetName()]; ours {
			served[crd.GetName()] = servedVersions(crd, nil)
		}
	}
	wrong := 0
	for _, name := range sorted(kinds) {
		newest := kinds[name][0]
		if !slices.Contains(served[name], newest) {
			wrong++
			r.add(Error, "CustomResourceDefinition/"+name, "outrigger manifests --crds-only | kubectl apply --server-side -f -", "its version %s is not served", newest)
		}
	}
	if wrong == 0 {
		r.ok("all %d CRDs are served", len(kinds))
	}
}

// count returns a number and a noun, such as "2 nodes".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func are(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}
