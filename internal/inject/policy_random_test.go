package inject_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/policy"
)

// hostileTexts are texts that break out of quotes of JSON, YAML, CEL, shells or templates.
var hostileTexts = []string{
	`"`, `\`, `\"`, `'`, "a\nb", "a\tb\r\n", `${POD_UID}`, `$(POD_UID)`, `$$`, `$`, `$${x`, `{{ .Image }}`, `</script>&amp;`, "\u2028\u2029", "\u0085", "\u007f",
	`" + object.metadata.name + "`, `') || true || ('`, `\u0041\x41`, `","path":"/x"`, `"policy":"x"`, "ünï\U0001F9ED", "~1/~0", "%s%n", strings.Repeat("long ", 800), "",
}

// randomPods makes pods with all that a policy has to rewrite.
type randomPods struct{ *rand.Rand }

func (r randomPods) text() string {
	return hostileTexts[r.IntN(len(hostileTexts))] + hostileTexts[r.IntN(len(hostileTexts))]
}

func (r randomPods) maybe() bool { return r.IntN(2) == 0 }

func (r randomPods) port(c *corev1.Container) intstr.IntOrString {
	switch {
	case len(c.Ports) > 0 && r.maybe():
		return intstr.FromString(c.Ports[r.IntN(len(c.Ports))].Name)
	case r.IntN(6) == 0:
		return intstr.FromString("nowhere")
	}
	return intstr.FromInt32(1 + r.Int32N(65535))
}

func (r randomPods) get(c *corev1.Container) *corev1.HTTPGetAction {
	get := &corev1.HTTPGetAction{Path: "/" + r.text(), Port: r.port(c)}
	if r.maybe() {
		get.Scheme = []corev1.URIScheme{corev1.URISchemeHTTP, corev1.URISchemeHTTPS}[r.IntN(2)]
	}
	if r.maybe() {
		get.Host = r.text()
	}
	for range r.IntN(3) {
		get.HTTPHeaders = append(get.HTTPHeaders, corev1.HTTPHeader{Name: fmt.Sprintf("X-%d", r.IntN(9)), Value: r.text()})
	}
	return get
}

func (r randomPods) probe(c *corev1.Container) *corev1.Probe {
	p := &corev1.Probe{TimeoutSeconds: r.Int32N(5), PeriodSeconds: r.Int32N(20)}
	switch r.IntN(6) {
	case 0:
		return nil
	case 1:
		p.Exec = &corev1.ExecAction{Command: []string{r.text()}}
	case 2:
		p.TCPSocket = &corev1.TCPSocketAction{Port: r.port(c)}
		if r.maybe() {
			p.TCPSocket.Host = r.text()
		}
	case 3:
		p.GRPC = &corev1.GRPCAction{Port: 1 + r.Int32N(65535)}
		if r.maybe() {
			service := r.text()
			p.GRPC.Service = &service
		}
	default:
		p.HTTPGet = r.get(c)
	}
	return p
}

func (r randomPods) hook(c *corev1.Container) *corev1.LifecycleHandler {
	switch r.IntN(4) {
	case 0:
		return nil
	case 1:
		return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}
	}
	return &corev1.LifecycleHandler{HTTPGet: r.get(c)}
}

func (r randomPods) container(name string) corev1.Container {
	c := corev1.Container{Name: name, Image: "shop/app:1"}
	for i := range r.IntN(3) {
		c.Ports = append(c.Ports, corev1.ContainerPort{Name: fmt.Sprintf("p-%d", i), ContainerPort: 1 + r.Int32N(15000)})
	}
	if r.maybe() {
		c.Env = []corev1.EnvVar{{Name: "TEXT", Value: r.text()}}
	}
	c.LivenessProbe, c.ReadinessProbe = r.probe(&c), r.probe(&c)
	if c.LivenessProbe != nil {
		c.LivenessProbe.SuccessThreshold = 1
	}
	if r.maybe() {
		if c.StartupProbe = r.probe(&c); c.StartupProbe != nil {
			c.StartupProbe.SuccessThreshold = 1
		}
	}
	if r.maybe() {
		c.Lifecycle = &corev1.Lifecycle{PostStart: r.hook(&c), PreStop: r.hook(&c)}
	}
	return c
}

// pod returns a pod of a workload of some kind.
func (r randomPods) pod() *corev1.Pod {
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	controller := true
	owner := func(kind, version, name string) {
		pod.GenerateName = name + "-"
		pod.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: "first", UID: "0"},
			{APIVersion: version, Kind: kind, Name: name, UID: "8f1c5a4e-59b8-4ac0-9c6f-6a6a5b1f1a11", Controller: &controller},
		}
	}
	switch r.IntN(8) {
	case 0:
		pod.Name = "single"
	case 1:
		pod.GenerateName = "generated-"
	case 2:
		pod.GenerateName = "generated--"
	case 3:
		owner("ReplicaSet", "apps/v1", "cart-7d9f5")
		pod.Labels = map[string]string{"pod-template-hash": "7d9f5"}
	case 4:
		owner("ReplicaSet", "apps/v1", "cart-7d9f5")
		pod.Labels = map[string]string{"pod-template-hash": []string{"", "other"}[r.IntN(2)]}
	case 5:
		owner("Job", "batch/v1", []string{"report-29384756", "report", "report-123", "report-29384756-29384757"}[r.IntN(4)])
	case 6:
		owner("StatefulSet", "apps/v1", "db-29384756")
		pod.Name, pod.GenerateName = "db-29384756-0", ""
	case 7:
		owner("DaemonSet", "apps/v1", "agent-7d9f5")
		pod.Labels = map[string]string{"pod-template-hash": "7d9f5"}
	}
	if r.maybe() {
		pod.Annotations = map[string]string{"note": r.text(), metadata.AccessLog: "errors"}
	}
	for key, values := range map[string][]string{
		metadata.InboundPortExclusion: {"80, 0443,80", "1", " ", ""}, metadata.OutboundPortExclusion: {"3306,5432", "65535"},
		metadata.InboundPortInclusion: {"8080\t, 9090"}, metadata.OutboundPortInclusion: {"10,9"},
		metadata.OutboundRangeExclusion: {"10.1.2.3/8, fd00::1/16", "0.0.0.0/0,::/0"}, metadata.OutboundRangeInclusion: {"192.168.1.1/32,10.0.0.0/8,10.0.0.0/8"},
		metadata.InterfaceExclusion: {"eth1, net<1&", `a\b`}, metadata.Image: {"example.com:5000/envoy@sha256:1", "x"}, metadata.Metrics: {"yes", "Enabled", "no"},
		metadata.HoldApplication: {"no"}, metadata.NativeSidecar: {"TRUE"}, metadata.LogLevel: {"debug", "WARN", "off", "trace"}, "prometheus.io/port": {"80"},
	} {
		if r.IntN(6) == 0 {
			if pod.Annotations == nil {
				pod.Annotations = map[string]string{}
			}
			pod.Annotations[key] = values[r.IntN(len(values))]
		}
	}
	if r.maybe() {
		pod.Spec.ServiceAccountName = []string{"cart", "dotted.account"}[r.IntN(2)]
	}
	always := corev1.ContainerRestartPolicyAlways
	for i := range r.IntN(3) {
		c := r.container(fmt.Sprintf("init-%d", i))
		if c.RestartPolicy = &always; r.maybe() {
			c = corev1.Container{Name: c.Name, Image: c.Image, Env: c.Env}
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	for i := range 1 + r.IntN(4) {
		pod.Spec.Containers = append(pod.Spec.Containers, r.container(fmt.Sprintf("app-%d", i)))
	}
	for i := range r.IntN(3) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("data-%d", i), VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	}
	return pod
}

// injectsRandomPods compares many pods with hostile texts, and large ones.
func (c *cluster) injectsRandomPods(t *testing.T) {
	r := randomPods{rand.New(rand.NewPCG(1, 2))}
	var pods []sample
	for i := range 150 {
		pods = append(pods, sample{fmt.Sprintf("pod-%d", i), encode(t, r.pod())})
	}
	var refused []sample
	left := map[string]string{}
	for _, n := range []int{30, 64, 65} {
		large := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "large"}}
		for i := range n {
			one := corev1.Container{Name: fmt.Sprintf("app-%d", i), Image: "app"}
			get := func() *corev1.HTTPGetAction {
				return &corev1.HTTPGetAction{Path: "/" + strings.Repeat("a", 100), Port: intstr.FromInt32(80), HTTPHeaders: []corev1.HTTPHeader{{Name: "X-A", Value: strings.Repeat(`"`, 50)}, {Name: "X-B", Value: "b"}}}
			}
			for _, p := range []**corev1.Probe{&one.LivenessProbe, &one.ReadinessProbe, &one.StartupProbe} {
				*p = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: get()}}
			}
			one.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{HTTPGet: get()}, PreStop: &corev1.LifecycleHandler{HTTPGet: get()}}
			large.Spec.Containers = append(large.Spec.Containers, one)
		}
		pods = append(pods, sample{fmt.Sprintf("containers-%d", n), encode(t, large)})
	}
	left["containers-65"] = "too_large"
	for name, annotations := range map[string]string{
		"port": `"openservicemesh.io/inbound-port-exclusion-list":"80,http"`, "port-0": `"openservicemesh.io/inbound-port-exclusion-list":"0"`,
		"port-empty": `"openservicemesh.io/inbound-port-exclusion-list":"80,"`, "port-large": `"openservicemesh.io/inbound-port-exclusion-list":"70000"`,
		"range": `"openservicemesh.io/outbound-ip-range-exclusion-list":"10.0.0.1"`, "interface": `"openservicemesh.io/network-interface-exclusion-list":"a b"`,
		"image": `"openservicemesh.io/sidecar-image":"a b"`, "no-image": `"openservicemesh.io/sidecar-image":""`, "metrics": `"openservicemesh.io/metrics":"perhaps"`,
		"hold": `"openservicemesh.io/hold-application-until-ready":""`, "level": `"openservicemesh.io/sidecar-log-level":"loud"`, "no-level": `"openservicemesh.io/sidecar-log-level":""`,
		"native": `"openservicemesh.io/native-sidecar":"maybe"`,
	} {
		refused = append(refused, sample{name, []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","annotations":{` + annotations + `}},"spec":{"containers":[{"name":"app","image":"app"}]}}`)})
	}
	pods = append(pods, sample{"control", []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"control"},"spec":{"containers":[{"name":"app","image":"app","readinessProbe":{"httpGet":{"path":"/\u0001","port":80}}}]}}`)})
	left["control"] = "probe_text"
	w := ordinary()
	// The namespace's annotations are those of all its pods that set none, and lists on it mean nothing.
	w.namespace.Annotations[metadata.Metrics], w.namespace.Annotations[metadata.OutboundPortExclusion] = "enabled", "none"
	w.configurator.mesh.Spec.Traffic.OutboundPortExclusionList = []int32{3306, 9}
	w.configurator.mesh.Spec.Traffic.OutboundIPRangeExclusionList = []string{"172.16.0.0/12"}
	w.configurator.mesh.Spec.Traffic.NetworkInterfaceExclusionList = []string{"zz"}
	if made := c.sameByPolicy(t, w, pods, left); made < 100 {
		t.Errorf("policies have injected only %d pods", made)
	}
	for _, s := range refused {
		if _, err := c.dryRun(t, s.raw); err == nil || !strings.Contains(err.Error(), "cannot add: invalid_annotation;") {
			t.Errorf("%s: the API server says %v", s.name, err)
		}
	}
}

// injectsByMeshConfig has settings of the mesh that change what is injected.
func (c *cluster) injectsByMeshConfig(t *testing.T) {
	pods := []sample{
		{"small", []byte(smallPod)},
		{"lists", []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"lists","annotations":{"openservicemesh.io/outbound-port-exclusion-list":"10, 9"}},"spec":{"containers":[{"name":"app","image":"app"}]}}`)},
		{"short", []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"short"},"spec":{"terminationGracePeriodSeconds":9,"containers":[{"name":"app","image":"app"}]}}`)},
		{"enough", []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"enough"},"spec":{"terminationGracePeriodSeconds":10,"containers":[{"name":"app","image":"app"}]}}`)},
		{"own-redirection", []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"own","annotations":{"openservicemesh.io/redirection":"{}"}},"spec":{"containers":[{"name":"app","image":"app"}]}}`)},
	}
	for name, set := range map[string]func(*environment){
		"cni":        func(w *environment) { w.config = "cni: true" },
		"privileged": func(w *environment) { w.configurator.mesh.Spec.Sidecar.EnablePrivilegedInitContainer = true },
		"nothing":    func(w *environment) { w.configurator.mesh.Spec.Traffic.InterceptionMode = "none" },
		"plaintext":  func(w *environment) { w.configurator.disabledMTLS = true },
		"times": func(w *environment) {
			drain := int32(7)
			w.configurator.mesh.Spec.Sidecar.PreStopSeconds, w.configurator.mesh.Spec.Sidecar.DrainSeconds = new(int32(10)), &drain
		},
		"resources": func(w *environment) {
			w.configurator.mesh.Spec.Sidecar.Resources.Limits = corev1.ResourceList{"cpu": resource.MustParse("1.5"), "memory": resource.MustParse("1Gi")}
			w.configurator.mesh.Spec.Sidecar.Concurrency = 3
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := ordinary()
			set(w)
			left := map[string]string{"own-redirection": "settings"}
			list := pods
			switch name {
			case "times":
				left["short"] = "grace_period"
			case "cni":
				// The webhook denies it.
				list = pods[:4]
			}
			if made := c.sameByPolicy(t, w, list, left); made < 3 {
				t.Errorf("policies have injected only %d pods", made)
			}
		})
	}
}

// injectsHostileSettings has hostile texts in all that the operator sets.
func (c *cluster) injectsHostileSettings(t *testing.T) {
	var values, templates strings.Builder
	annotations := map[string]string{}
	for i, text := range hostileTexts {
		annotations[fmt.Sprintf("example.com/a-%d", i)] = text
		fmt.Fprintf(&values, "v%d: %s\n", i, strconv.QuoteToASCII(text))
		if strings.ContainsAny(text, "\u0085\u007f") {
			// toJson does not escape what YAML has only as escapes.
			continue
		}
		fmt.Fprintf(&templates, "      - name: V%d\n        value: {{ toJson .Values.v%d }}\n", i, i)
	}
	w := ordinary()
	w.values = values.String()
	config := encode(t, map[string]any{
		"injectedAnnotations": annotations, "defaultTemplates": []string{"more", "sidecar"},
		"templates": map[string]string{"more": "metadata:\n  labels:\n    example.com/region: north\n    app: fallback\n  annotations:\n    of: {{ .Namespace }}/{{ .ServiceAccount }}/{{ .Workload }}\nspec:\n" +
			"  containers:\n    - name: more\n      image: {{ .InitImage }}\n      args: [\"${HOME} $(POD_NAME)\", {{ .Workload | quote }}]\n      env:\n" + templates.String() +
			"    - name: outrigger-proxy\n      env: [{name: MORE, value: {{ .Namespace }}}]\n"},
	})
	// YAML has these only as escapes.
	w.config = strings.NewReplacer("\u0085", `\u0085`, "\u007f", `\u007f`).Replace(string(config))
	w.configurator.images = map[string]string{"envoy": "registry/\"x\\\"<&>${A}$(B)"}
	pods := []sample{
		{"small", []byte(smallPod)},
		{"no-maps", []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"plain"},"spec":{"containers":[{"name":"app","image":"app"}]}}`)},
		{"has-some", []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"plain","labels":{"example.com/region":"south"},"annotations":{"example.com/a-3":"mine","of":"me"}},"spec":{"containers":[{"name":"app","image":"app"}]}}`)},
		{"own-more", []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"plain"},"spec":{"containers":[{"name":"more","image":"app"}]}}`)},
	}
	if made := c.sameByPolicy(t, w, pods, map[string]string{"own-more": "own_container"}); made != 3 {
		t.Errorf("policies have injected %d pods", made)
	}
}

// decidesByPolicy runs the examples of docs/injection.md through policies.
func (c *cluster) decidesByPolicy(t *testing.T) {
	rows := map[string][]row{}
	for section, all := range tables(t) {
		for _, r := range all {
			switch {
			case section == "Warnings":
			case strings.Contains(fmt.Sprint(r.example.Config), "istio"):
				// Policies do not read Istio's labels.
			case r.reason == "probe_unsupported":
				// The API server does not know the field, and drops it.
			default:
				if section != "Who gets a sidecar" {
					r.outcome, r.example.Namespace = "deny", asked.Namespace
				}
				config := string(encode(t, r.example.Config))
				rows[config] = append(rows[config], r)
			}
		}
	}
	n := 0
	for config, rows := range rows {
		w := ordinary()
		if config != "null" {
			w.config = config
		}
		t.Run("config", func(t *testing.T) {
			c.setNamespace(t, ordinary())
			t.Cleanup(func() { c.setNamespace(t, &environment{}) })
			c.usePolicies(t, policies(t, w, policy.ModePolicy, "envoy"))
			for _, r := range rows {
				n++
				name := fmt.Sprintf("row-%d", n)
				t.Run(r.reason, func(t *testing.T) {
					var ns struct {
						Name                string
						Labels, Annotations map[string]string
					}
					text := merge(t, []byte(`{"labels":{"openservicemesh.io/monitored-by":"osm"}}`), r.example.Namespace)
					if err := json.Unmarshal(text, &ns); err != nil {
						t.Fatal(err)
					}
					if ns.Name == "" {
						// One that exists already may be known to the API server as it was.
						created := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: ns.Labels, Annotations: ns.Annotations}}
						if _, err := c.client.CoreV1().Namespaces().Create(t.Context(), created, metav1.CreateOptions{}); err != nil {
							t.Fatal(err)
						}
					} else {
						name = ns.Name
					}
					pod := decode(t, merge(t, []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"app"},"spec":{"containers":[{"name":"app","image":"app"}]}}`), r.example.Pod))
					// The API server asks for more than the examples have.
					for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
						for i := range list {
							list[i].Image = "app"
						}
					}
					if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
						pod.Spec.NodeName = "node"
					}
					pod.APIVersion, pod.Kind = "v1", "Pod"
					taken, err := c.dryRunIn(t, name, encode(t, pod))
					got := "skip"
					switch {
					case err != nil && strings.Contains(err.Error(), "outrigger: "):
						got = "deny"
					case err != nil:
						t.Fatal(err)
					case strings.Contains(decode(t, taken).Annotations[inject.StatusAnnotation], `"policy":"`):
						got = "inject"
					}
					if got != r.outcome {
						t.Errorf("the API server decides %s (%v), want %s", got, err, r.outcome)
					}
				})
			}
		})
	}
	if n < 30 {
		t.Errorf("only %d examples", n)
	}
}
