package inject_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// TestProbesAsTheyAre disables the rewriting of probes.
func TestProbesAsTheyAre(t *testing.T) {
	const pod = `{"metadata":{"name":"app","annotations":%s},"spec":{"containers":[{"name":"app","image":"app",
		"livenessProbe":{"tcpSocket":{"port":80}},"readinessProbe":{"exec":{"command":["ready"]}},"lifecycle":{"preStop":{"httpGet":{"port":80}}}}]}}`
	for annotations, want := range map[string]int{
		`{"openservicemesh.io/rewrite-probes":"disabled"}`:                                                          1,
		`{"openservicemesh.io/rewrite-probes":"disabled","openservicemesh.io/inbound-port-exclusion-list":"80"}`:    0,
		`{"openservicemesh.io/rewrite-probes":"disabled","openservicemesh.io/inbound-port-inclusion-list":"81"}`:    0,
		`{"openservicemesh.io/rewrite-probes":"disabled","openservicemesh.io/inbound-port-inclusion-list":"80,81"}`: 1,
		`{"openservicemesh.io/rewrite-probes":"disabled","openservicemesh.io/interception-mode":"none"}`:            0,
		`{"sidecar.istio.io/rewriteAppHTTPProbers":"false","traffic.sidecar.istio.io/includeInboundPorts":""}`:      0,
		`{"sidecar.istio.io/rewriteAppHTTPProbers":"false"}`:                                                        1,
		`{"openservicemesh.io/rewrite-probes":"enabled","sidecar.istio.io/rewriteAppHTTPProbers":"false","a":"b"}`:  -1,
	} {
		t.Run(annotations, func(t *testing.T) {
			w := ofIstio()
			i := w.injector(t)
			raw := []byte(fmt.Sprintf(pod, annotations))
			r := i.Inject(t.Context(), w.request(string(raw)))
			app := container(decode(t, patched(t, raw, r.Patch)), "app")
			rewritten := app.LivenessProbe.HTTPGet != nil && app.Lifecycle.PreStop.HTTPGet.Port.IntVal == driver.AgentPort
			kept := app.LivenessProbe.TCPSocket != nil && app.Lifecycle.PreStop.HTTPGet.Port.IntVal == 80
			if want < 0 {
				if !rewritten {
					t.Errorf("the probes are %+v and the hooks %+v", app.LivenessProbe, app.Lifecycle)
				}
				return
			}
			if !kept || len(r.Warnings) != want || want > 0 && r.Warnings[0].Code != "probe_redirected" {
				t.Errorf("the probe is %+v, the warnings are %v", app.LivenessProbe, r.Warnings)
			}
		})
	}
}

// TestInitContainerImage checks the precedence of the init container's image: the mesh's
// configuration, then the injection config, then the program.
func TestInitContainerImage(t *testing.T) {
	image := func(mesh, config string) string {
		w := ordinary()
		w.config = config
		loaded, err := inject.NewConfig(config, "")
		if err != nil {
			t.Fatal(err)
		}
		opts := w.options()
		opts.InitImage = "built/in"
		opts.Configurator = func() driver.Configurator { return withInitImage{w.configurator, mesh} }
		pod := []byte(podAnnotated(nil))
		r := inject.New(opts, loaded).Inject(t.Context(), w.request(string(pod)))
		return container(decode(t, patched(t, pod, r.Patch)), driver.InitContainer).Image
	}
	for _, test := range []struct{ mesh, config, want string }{
		{"", "", "built/in"}, {"", "initContainerImage: a/b:c", "a/b:c"}, {"mesh/init", "initContainerImage: a/b:c", "mesh/init"},
	} {
		if got := image(test.mesh, test.config); got != test.want {
			t.Errorf("with %q and %q the image is %q, want %q", test.mesh, test.config, got, test.want)
		}
	}
}

type withInitImage struct {
	driver.Configurator
	image string
}

func (c withInitImage) GetInitContainerImage(string) string { return c.image }

// TestAutoImage checks that the image auto is replaced by the sidecar's image.
func TestAutoImage(t *testing.T) {
	const pod = `{"metadata":{"name":"app","annotations":%s},"spec":{"initContainers":[{"name":"outrigger-init","image":"auto"}],
		"containers":[{"name":"app","image":"auto"},{"name":"outrigger-proxy","image":"auto","env":[{"name":"A","value":"b"}]}]}}`
	for _, classic := range []bool{false, true} {
		w := ordinary()
		w.classic = classic
		i := w.injector(t)
		raw := []byte(fmt.Sprintf(pod, "{}"))
		injected := once(t, i, w, raw)
		unchanged(t, i, w, injected)
		got := decode(t, injected)
		if proxy(t, got).Image != ofEnvoy().Image || variable(proxy(t, got), "A") != "b" || container(got, driver.InitContainer).Image != "outrigger/init:test" {
			t.Errorf("the sidecar is %+v", proxy(t, got))
		}
		if container(got, "app").Image != "auto" {
			t.Errorf("the app's image is %s", container(got, "app").Image)
		}
		restored(t, raw, injected)
	}
	w := ordinary()
	w.config = "templates: {label: \"metadata: {labels: {a: b}}\"}"
	alone := fmt.Sprintf(pod, `{"openservicemesh.io/inject-templates":"label"}`)
	if d := w.injector(t).Inject(t.Context(), w.request(alone)).Decision; d.Reason != "image_missing" {
		t.Errorf("without a template of the sidecar the decision is %+v", d)
	}
}

// TestOperatingSystem checks by which fields a pod is known to be for Windows nodes, which get no
// init container.
func TestOperatingSystem(t *testing.T) {
	required := func(terms string) string {
		return `"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[` + terms + `]}}}`
	}
	const windows = `{"matchExpressions":[{"key":"disk","operator":"Exists"},{"key":"kubernetes.io/os","operator":"In","values":["windows"]}]}`
	for spec, want := range map[string]bool{
		`"os":{"name":"windows"}`:                                                                           true,
		`"os":{"name":"linux"},` + required(windows):                                                        false,
		`"nodeSelector":{"kubernetes.io/os":"windows"}`:                                                     true,
		`"nodeSelector":{"beta.kubernetes.io/os":"windows"}`:                                                true,
		`"nodeSelector":{"kubernetes.io/os":"linux"}`:                                                       false,
		required(windows):                                                                                   true,
		required(windows + "," + windows):                                                                   true,
		required(windows + `,{"matchExpressions":[]}`):                                                      false,
		required(strings.Replace(windows, `"In"`, `"NotIn"`, 1)):                                            false,
		required(strings.Replace(windows, `["w`, `["linux","w`, 1)):                                         false,
		required(`{"matchExpressions":[{"key":"kubernetes.io/os","operator":"NotIn","values":["linux"]}]}`): true,
		required(`{"matchFields":[{"key":"metadata.name","operator":"In","values":["windows"]}]}`):          false,
		`"affinity":{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"preference":` + windows + `}]}}`: false,
	} {
		w := shape{"envoy", false}.environment()
		pod := `{"metadata":{"name":"app"},"spec":{"containers":[{"name":"app","image":"app"}],` + spec + `}}`
		injected := decode(t, once(t, w.injector(t), w, []byte(pod)))
		if got := container(injected, driver.InitContainer) == nil && proxy(t, injected).Image == "shop/proxy:windows"; got != want {
			t.Errorf("%s: the pod is for Windows: %t, want %t", spec, got, want)
		}
	}
}
