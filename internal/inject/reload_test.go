package inject_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// reloading is an injector whose configuration comes from a directory or a
// ConfigMap.
type reloading struct {
	*inject.Reloader
	t           *testing.T
	dir         string
	environment *environment
	injector    *inject.Injector
	registry    *prometheus.Registry
}

func newReloading(t *testing.T) *reloading {
	r := &reloading{t: t, environment: ordinary(), registry: prometheus.NewRegistry(), dir: filepath.Join(t.TempDir(), "inject")}
	r.injector = inject.New(r.environment.options(), nil)
	r.Reloader = inject.NewReloader(r.injector, r.dir, inject.NewMetrics(r.registry), slog.New(slog.DiscardHandler))
	return r
}

// template is a config whose one default template adds a container of that name.
func template(name string) string {
	return "policy: enabled\ndefaultTemplates: [extra]\ntemplates:\n  extra: |\n    spec: {containers: [{name: " + name + ", image: \"{{ .Values.image }}\"}]}\n"
}

func (r *reloading) write(files map[string]string) {
	r.t.Helper()
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		r.t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o644); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *reloading) configMap(config string) {
	r.ConfigMap(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "outrigger-injector", Namespace: "osm-system"},
		Data:       map[string]string{"config": config, "values": "image: map"},
	})
}

// want asserts the containers that a pod currently gets, with their images.
func (r *reloading) want(containers ...string) {
	r.t.Helper()
	pod := []byte(`{"metadata":{"name":"app"},"spec":{"containers":[{"name":"app","image":"app"}]}}`)
	result := r.injector.Inject(r.t.Context(), r.environment.request(string(pod)))
	if result.Decision.Outcome != inject.Inject {
		r.t.Errorf("the decision is %+v", result.Decision)
		return
	}
	var got []string
	for _, c := range decode(r.t, patched(r.t, pod, result.Patch)).Spec.Containers[1:] {
		got = append(got, c.Name+"="+c.Image)
	}
	if len(got) == 0 {
		got = result.Added
	}
	if !slices.Equal(got, containers) {
		r.t.Errorf("the pod gets %v, want %v", got, containers)
	}
}

func (r *reloading) wantLoaded(loaded int) {
	r.t.Helper()
	want := fmt.Sprintf("# HELP outrigger_injector_config_last_reload_successful 1 if the newest injection config and values are in use, 0 if older ones had to be kept.\n"+
		"# TYPE outrigger_injector_config_last_reload_successful gauge\noutrigger_injector_config_last_reload_successful %d\n", loaded)
	if err := testutil.GatherAndCompare(r.registry, strings.NewReader(want), "outrigger_injector_config_last_reload_successful"); err != nil {
		r.t.Error(err)
	}
}

func TestReload(t *testing.T) {
	r := newReloading(t)
	r.configMap(template("early"))
	if d := r.injector.Inject(t.Context(), r.environment.request(smallPod)).Decision; d.Reason != "not_configured" {
		t.Errorf("before the first look the decision is %+v, want not_configured", d)
	}
	r.ConfigMap(nil)

	r.Look()
	r.want("outrigger-init", "outrigger-proxy")

	r.configMap(template("late"))
	r.want("late=map")

	r.write(map[string]string{"config": template("file"), "values": "image: one"})
	r.want("late=map")
	r.Look()
	r.want("file=one")
	r.wantLoaded(1)

	r.write(map[string]string{"values": "image: two"})
	r.Look()
	r.want("file=two")

	r.write(map[string]string{"config": "policy: perhaps"})
	r.Look()
	r.want("file=two")
	r.wantLoaded(0)

	r.configMap(template("ignored"))
	r.want("file=two")

	r.write(map[string]string{"config": template("file"), "values": "image: ["})
	r.Look()
	r.want("file=two")
	r.wantLoaded(0)

	r.write(map[string]string{"values": "image: two"})
	r.Look()
	r.want("file=two")
	r.wantLoaded(1)

	if err := os.RemoveAll(r.dir); err != nil {
		t.Fatal(err)
	}
	r.Look()
	r.want("ignored=map")

	r.ConfigMap(nil)
	r.want("outrigger-init", "outrigger-proxy")
}

func TestReloadOfSwappedLink(t *testing.T) {
	r := newReloading(t)
	r.write(nil)
	swap := func(version string) {
		// Like the kubelet: the files are links through ..data, which is replaced by a
		// rename.
		data := filepath.Join(r.dir, version)
		if err := os.Mkdir(data, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"config": template(version), "values": "image: " + version} {
			if err := os.WriteFile(filepath.Join(data, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		next := filepath.Join(r.dir, "..next")
		if err := os.Symlink(version, next); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, filepath.Join(r.dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	swap("v1")
	for _, name := range []string{"config", "values"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(r.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	r.Look()
	r.want("v1=v1")
	swap("v2")
	r.Look()
	r.want("v2=v2")
}

func TestBrokenConfigAtStart(t *testing.T) {
	r := newReloading(t)
	r.write(map[string]string{"config": "templates: {x: '{{'}"})
	r.Look()
	r.wantLoaded(0)
	d := r.injector.Inject(t.Context(), r.environment.request(smallPod)).Decision
	if d.Outcome != inject.Deny || d.Reason != "not_configured" {
		t.Errorf("the decision is %+v, want deny not_configured", d)
	}
	r.write(map[string]string{"config": template("mended"), "values": "image: x"})
	r.Look()
	r.want("mended=x")
}

func TestReloaderRuns(t *testing.T) {
	r := newReloading(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	r.write(map[string]string{"config": template("seen"), "values": "image: x"})
	for r.injector.Inject(ctx, r.environment.request(smallPod)).Templates == nil ||
		r.injector.Inject(ctx, r.environment.request(smallPod)).Templates[0] != "extra" {
		if ctx.Err() != nil {
			t.Fatal("the test has ended")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
