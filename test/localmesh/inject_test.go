package localmesh

import (
	"bytes"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
)

const pods = `
apiVersion: v1
kind: Namespace
metadata:
  name: shop
  labels: {openservicemesh.io/monitored-by: osm}
  annotations: {openservicemesh.io/sidecar-injection: enabled}
---
apiVersion: v1
kind: Namespace
metadata: {name: edge}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: cart, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: cart}}
  template:
    metadata: {labels: {app: cart}}
    spec: {containers: [{name: app, image: cart}]}
---
apiVersion: v1
kind: Pod
metadata: {name: gateway, namespace: edge}
spec: {serviceAccountName: gateway, containers: [{name: app, image: gateway}]}
---
apiVersion: v1
kind: Pod
metadata: {name: done, namespace: shop}
spec: {containers: [{name: app, image: cart}]}
status: {phase: Succeeded}
`

const config = `
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec: {sidecar: {sidecarClass: envoy}}
`

// newUnstarted returns a mesh of manifests without a lab, and its warnings.
func newUnstarted(t *testing.T, manifests map[string]string) (*Mesh, *bytes.Buffer) {
	t.Helper()
	var warnings bytes.Buffer
	m := &Mesh{
		options: Options{
			Dir: t.TempDir(), Manifests: manifests, MeshName: "osm", MeshNamespace: "osm-system",
			Programs: Programs{Outrigger: "/outrigger", Agent: "/agent", Proxies: map[string]string{"envoy": "/envoy"}},
		},
		log: slog.New(slog.NewTextHandler(&warnings, nil)),
	}
	if err := m.prepare(); err != nil {
		t.Fatal(err)
	}
	return m, &warnings
}

// started returns the pods as they would be started.
func started(t *testing.T, m *Mesh) map[string]*corev1.Pod {
	t.Helper()
	w, err := m.read(m.ManifestDir())
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]*corev1.Pod)
	for name, p := range w.pods {
		pod, err := w.inject(t.Context(), p)
		if err == nil {
			err = m.useImages(pod)
		}
		if err != nil {
			t.Fatal(err)
		}
		if pod.UID != p.UID || pod.UID == "" || pod.Status.PodIP != p.Status.PodIP || pod.Status.PodIP == "" {
			t.Errorf("%s: the UID and the address are %q and %q, want %q and %q", name, pod.UID, pod.Status.PodIP, p.UID, p.Status.PodIP)
		}
		all[name] = pod
	}
	return all
}

func TestInject(t *testing.T) {
	m, warnings := newUnstarted(t, map[string]string{"pods.yaml": pods, "config.yaml": config})
	all := started(t, m)
	if len(all) != 3 {
		t.Errorf("%d pods, want 3, without the one that has finished", len(all))
	}
	for _, name := range []string{"shop/cart-0", "shop/cart-1"} {
		pod := all[name]
		if pod == nil {
			t.Fatalf("there is no pod %s", name)
		}
		images := make(map[string]string)
		for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
			images[c.Name] = c.Image
		}
		if images["app"] != "cart" || images["outrigger-init"] != initImage || images["outrigger-proxy"] != proxyImage+"envoy" {
			t.Errorf("%s: the images are %v", name, images)
		}
		if pod.Spec.ServiceAccountName != "default" {
			t.Errorf("%s: the service account is %q, want default", name, pod.Spec.ServiceAccountName)
		}
		if len(pod.Spec.InitContainers) != 2 {
			t.Errorf("%s: %d init containers, want 2 with a native sidecar", name, len(pod.Spec.InitContainers))
		}
	}
	if gateway := all["edge/gateway"]; gateway == nil || len(gateway.Spec.InitContainers) != 0 || len(gateway.Spec.Containers) != 1 {
		t.Error("the pod outside of the mesh is injected, or not there")
	}
	if warnings.Len() > 0 {
		t.Errorf("warnings: %s", warnings)
	}

	m.options.ClassicSidecars = true
	if pod := started(t, m)["shop/cart-0"]; len(pod.Spec.InitContainers) != 1 || len(pod.Spec.Containers) != 2 {
		t.Error("the sidecar is no classic one")
	}
}

func TestInjectRefused(t *testing.T) {
	m, _ := newUnstarted(t, map[string]string{"pods.yaml": pods})
	if _, err := m.read(m.ManifestDir()); err == nil || !strings.Contains(err.Error(), "MeshConfig") {
		t.Errorf("got %v, want that there is no MeshConfig", err)
	}

	m, warnings := newUnstarted(t, map[string]string{"pods.yaml": pods, "config.yaml": config, "broken.yaml": "a: [\n"})
	w, err := m.read(m.ManifestDir())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(warnings.String(), "broken.yaml") {
		t.Errorf("there is no warning of the broken file: %s", warnings)
	}
	m.options.Programs.Proxies = nil
	pod, err := w.inject(t.Context(), w.pods["shop/cart-0"])
	if err != nil {
		t.Fatal(err)
	}
	if err := m.useImages(pod); err == nil || !strings.Contains(err.Error(), "envoy") || !strings.Contains(err.Error(), "shop/cart-0") {
		t.Errorf("got %v, want that pod shop/cart-0 lacks the program of class envoy", err)
	}

	bad := `
apiVersion: v1
kind: Pod
metadata: {name: twice, namespace: shop}
spec: {hostNetwork: true, containers: [{name: app, image: cart}, {name: outrigger-proxy, image: own}]}
`
	m, _ = newUnstarted(t, map[string]string{"pods.yaml": pods, "config.yaml": config, "bad.yaml": bad})
	if got := started(t, m)["shop/twice"]; len(got.Spec.InitContainers) != 0 {
		t.Error("a pod with the network of its host is injected")
	}
}

func TestFiles(t *testing.T) {
	m, _ := newUnstarted(t, map[string]string{"pods.yaml": pods, "folder/config.yaml": config})
	for _, name := range []string{"../out.yaml", "/out.yaml", "a.txt", ".a.yaml", "", "folder/../../out.yaml"} {
		if err := m.write(name, "a: b"); err == nil {
			t.Errorf("%q is written", name)
		}
	}
	err := filepath.WalkDir(m.options.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has the mode %s", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.read(m.ManifestDir()); err != nil {
		t.Errorf("a manifest in a folder of its own is not read: %v", err)
	}
}
