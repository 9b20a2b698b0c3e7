package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// running are proxies of one class and version.
type running struct {
	class, version string
	// image is that of the first one, and pods are the names of all.
	image string
	pods  []string
}

// text names the proxies, in the singular or plural.
func (r *running) text() string {
	if others := len(r.pods) - 1; others > 0 {
		return fmt.Sprintf("this pod and %d more run %s", others, r.version)
	}
	return "this pod runs " + r.version
}

// runningProxies groups the proxies by class and version, those with the most pods first.
// Proxies that are not connected, or whose agent is older than this program, do not report
// their version; it may be the tag of their image.
func (f *Facts) runningProxies() []*running {
	images := make(map[string]string)
	for i := range f.pods.value {
		pod := &f.pods.value[i]
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			if c.Name == driver.ProxyContainer {
				images[string(pod.UID)] = c.Image
			}
		}
	}
	groups := make(map[[2]string]*running)
	var all []*running
	for _, p := range f.proxies.value {
		if p.Class == "" {
			continue
		}
		image := images[p.UID]
		version := cmp.Or(p.Version, "the image "+image)
		group := groups[[2]string{p.Class, version}]
		if group == nil {
			group = &running{class: p.Class, version: version, image: image}
			groups[[2]string{p.Class, version}] = group
			all = append(all, group)
		}
		group.pods = append(group.pods, p.Name.String())
	}
	slices.SortFunc(all, func(a, b *running) int {
		return cmp.Or(cmp.Compare(len(b.pods), len(a.pods)), cmp.Compare(a.class, b.class), cmp.Compare(a.version, b.version))
	})
	return all
}

// proxyVersions compares the versions of the proxies with what their drivers know.
func proxyVersions(f *Facts, r *report) {
	if r.lost("the list of proxies and pods", cmp.Or(f.proxies.err, f.pods.err)) {
		return
	}
	var fine []string
	for _, group := range f.runningProxies() {
		known := f.options.Releases(group.class)
		if known == nil {
			continue
		}
		object, bad := "Pod/"+group.pods[0], false
		fix := fmt.Sprintf("use the default image of class %s, %s %s, or a newer one: remove other images from the MeshConfig and the annotation %s from pods, then kubectl rollout restart",
			group.class, known.Proxy, known.Default, metadata.Image)
		version, err := group.version, known.Check(group.version)
		if strings.HasPrefix(version, "the image ") {
			version, err = version[strings.LastIndex(version, ":")+1:], known.CheckImage(group.image)
		}
		if err != nil {
			r.add(Error, object, fix, "%s: %v", group.text(), err)
			continue
		}
		for _, warning := range known.Warnings(version, f.now) {
			bad = true
			r.add(Warning, object, fix, "%s: %s", group.text(), warning)
		}
		if !bad {
			fine = append(fine, fmt.Sprintf("%s of class %s: %s", count(len(group.pods), "proxy connection"), group.class, group.version))
		}
	}
	switch {
	case len(fine) > 0:
		r.ok("no fault is known of %s", strings.Join(fine, ", "))
	case len(r.findings) == 0:
		r.ok("no proxy is connected whose versions are known")
	}
}

// keyExchanges says which key exchange the proxies use with each other.
func keyExchanges(f *Facts, r *report) {
	if r.lost("the list of proxies", f.proxies.err) || !apierrors.IsNotFound(f.meshConfig.err) && r.lost("the MeshConfig", f.meshConfig.err) {
		return
	}
	var allowed []string
	if f.meshConfig.value != nil {
		allowed, _, _ = unstructured.NestedStringSlice(f.meshConfig.value.Object, "spec", "sidecar", "ecdhCurves")
	}
	if len(allowed) > 0 && !slices.Contains(allowed, driver.KeyExchangeHybrid) {
		r.add(Warning, "MeshConfig/"+f.options.Namespace+"/"+f.options.MeshConfig, "add "+driver.KeyExchangeHybrid+" to spec.sidecar.ecdhCurves as the first one, or remove the field",
			"spec.sidecar.ecdhCurves allows only %s: what proxies send now could be recorded, and read with a later quantum computer", strings.Join(allowed, ", "))
		return
	}
	by := make(map[string][]string)
	for _, group := range f.runningProxies() {
		if known := f.options.Releases(group.class); known != nil {
			own := cmp.Or(known.KeyExchange(group.version), "an unknown one")
			by[own] = append(by[own], fmt.Sprintf("%d of class %s (%s)", len(group.pods), group.class, group.version))
		}
	}
	if len(by) == 0 {
		r.ok("no proxy is connected whose key exchange is known")
		return
	}
	var parts []string
	for _, own := range slices.Sorted(maps.Keys(by)) {
		parts = append(parts, own+": "+strings.Join(by[own], ", "))
	}
	slices.Reverse(parts)
	r.ok("two proxies use the strongest key exchange that both have. %s", strings.Join(parts, "; "))
}
