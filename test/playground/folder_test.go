package playground

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestFolder(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.yaml":        "# kept\nkind: Namespace\napiVersion: v1\nmetadata: {name: shop}\n---\nkind: Service # kept\n",
		"below/b.yml":   "kind: Namespace\napiVersion: v1\nmetadata: {name: out, annotations: {openservicemesh.io/sidecar-injection: disabled}}\n",
		"c.json":        `{"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "json"}}`,
		"notes.txt":     "kind: [",
		".hidden.yaml":  "kind: [",
		".git/d.yaml":   "kind: [",
		"mesh/m.yaml":   "kind: MeshConfig\napiVersion: config.openservicemesh.io/v1alpha2\nmetadata: {name: m, namespace: osm-system}\nspec: {sidecar: {sidecarClass: envoy}, observability: {enableDebugServer: false}}\n",
		"broken/e.yaml": "kind: Namespace: [\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f := folder{paths: []string{dir}, class: "haproxy"}
	got, notes, err := f.read()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{
		"a.yaml":        {"# kept", "openservicemesh.io/monitored-by: osm", "openservicemesh.io/sidecar-injection: enabled", "---\nkind: Service # kept\n"},
		"below/b.yml":   {"disabled"},
		"c.json":        {`"openservicemesh.io/monitored-by":"osm"`},
		"mesh/m.yaml":   {"sidecarClass: haproxy", "enableDebugServer: true"},
		"broken/e.yaml": {"kind: Namespace: [\n"},
	} {
		for _, text := range want {
			if !strings.Contains(got[name], text) {
				t.Errorf("%s lacks %q:\n%s", name, text, got[name])
			}
		}
	}
	if len(got) != 5 || len(notes) != 2 {
		t.Errorf("%d files, notes %q", len(got), notes)
	}

	// Without a MeshConfig there is the chart's.
	f = folder{paths: []string{filepath.Join(dir, "a.yaml"), filepath.Join(dir, "below")}, class: "pipy"}
	got, notes, err = f.read()
	if err != nil || len(got) != 3 || !strings.Contains(got[ownManifest], "sidecarClass: pipy") || len(notes) != 2 {
		t.Errorf("%q, %q, %v", got, notes, err)
	}
	for _, paths := range [][]string{{filepath.Join(dir, "notes.txt")}, {filepath.Join(dir, "none")}, {filepath.Join(dir, ".git", "..", ".none")}} {
		f := folder{paths: paths}
		if _, _, err := f.read(); err == nil {
			t.Errorf("%s: no error", paths)
		}
	}
}

func TestSplit(t *testing.T) {
	for text, want := range map[string][]string{
		"":                            nil,
		"a b  c ":                     {"a", "b", "c"},
		`nginx -g 'daemon off;'`:      {"nginx", "-g", "daemon off;"},
		`sh -c "echo \"a\" $X \\ \n"`: {"sh", "-c", `echo "a" $X \ \n`},
		`a\ b '' "c"d`:                {"a b", "", "cd"},
	} {
		if got, err := split(text); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{`a "b`, `a 'b`, `a\`} {
		if got, err := split(text); err == nil {
			t.Errorf("%s: %q", text, got)
		}
	}
}

func TestPrepare(t *testing.T) {
	pod := func() *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", OwnerReferences: []metav1.OwnerReference{{Kind: "Deployment", Name: "web", Controller: new(true)}}},
			Spec: corev1.PodSpec{
				InitContainers: []corev1.Container{{Name: "first", Image: "first:1", Command: []string{"true"}}},
				Containers:     []corev1.Container{{Name: "web", Image: "nginx"}, {Name: "log", Image: "log:1", Args: []string{"-f"}}},
			},
		}
	}
	commands := new(Commands)
	for _, text := range []string{"shop/web/web=nginx -x", "shop/other=true"} {
		if err := commands.AddCommand(text); err != nil {
			t.Fatal(err)
		}
	}
	err := commands.prepare(pod())
	if want := "container log of shop/web: the manifest has no command, and the lab does not run the image log:1, which has its own; give it with --command shop/web/log='PROGRAM ARGUMENTS'"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	for _, add := range []func() error{
		func() error { return commands.AddCommand("shop/web/log=logger") },
		func() error { return commands.AddRoot("/all") },
		func() error { return commands.AddRoot("shop/web/log=/log") },
	} {
		if err := add(); err != nil {
			t.Fatal(err)
		}
	}
	got := pod()
	if err := commands.prepare(got); err != nil {
		t.Fatal(err)
	}
	web, log := got.Spec.Containers[0], got.Spec.Containers[1]
	if strings.Join(web.Command, " ") != "nginx -x" || web.Image != "lab/root//all" || log.Image != "lab/root//log" || log.Args != nil {
		t.Errorf("%+v, %+v", web, log)
	}
	if got := commands.unused(); !cmp.Equal(got, []string{"shop/other"}) {
		t.Errorf("without a container is %q", got)
	}
	set := pod()
	set.OwnerReferences[0].Kind = "StatefulSet"
	set.Spec.Volumes = []corev1.Volume{{Name: "claim", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: new(corev1.PersistentVolumeClaimVolumeSource)}}}
	set.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "claim"}, {Name: "template"}}
	if err := commands.prepare(set); err != nil || len(set.Spec.Volumes) != 2 || set.Spec.Volumes[0].EmptyDir == nil || set.Spec.Volumes[0].PersistentVolumeClaim != nil || set.Spec.Volumes[1].Name != "template" {
		t.Errorf("%v, volumes %+v", err, set.Spec.Volumes)
	}
	hidden := new(Commands)
	hidden.images([]string{"/tmp/shop"})
	for program, want := range map[string]bool{"/tmp/app": true, "/tmp/shop/app": false, "/tmp/shopping/app": true, "/usr/bin/app": false, "app": false} {
		if got := hidden.hides(program); got != want {
			t.Errorf("%s is hidden: %t, want %t", program, got, want)
		}
	}
	for _, text := range []string{"web", "web=x", "a/b/c/d=x", "shop/web=", "/web=x"} {
		if err := commands.AddCommand(text); err == nil {
			t.Errorf("--command %s: no error", text)
		}
	}
}
