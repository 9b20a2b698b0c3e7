package cli

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/check"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// TestDayTwo runs commands of operators against a cluster without a running control plane.
func TestDayTwo(t *testing.T) {
	c := newControllerTest(t)
	admin, err := c.server.Kubeconfig("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, admin, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", kubeconfig)
	t.Run("check before", c.testCheckBefore)
	t.Run("namespace", c.testNamespace)
	t.Run("completion", c.testCompletion)
	t.Run("check after", c.testCheckAfter)
}

// findings runs 'outrigger check' and returns the findings by check.
func findings(t *testing.T, args ...string) (map[string][]check.Finding, error) {
	t.Helper()
	var out strings.Builder
	cmd := NewRootCommand()
	cmd.SetArgs(append([]string{"check", "-o", "json"}, args...))
	cmd.SetOut(&out)
	cmd.SetErr(t.Output())
	failed := cmd.ExecuteContext(t.Context())
	var output struct{ Findings []check.Finding }
	if err := json.Unmarshal([]byte(out.String()), &output); err != nil {
		t.Fatalf("%v, and then %v: %s", failed, err, out.String())
	}
	by := make(map[string][]check.Finding)
	for _, f := range output.Findings {
		by[f.Check] = append(by[f.Check], f)
		if f.Level != check.OK && f.Fix == "" {
			t.Errorf("%s has no fix: %s", f.Check, f.Message)
		}
	}
	return by, failed
}

// expectFinding fails the test unless a finding of the check has the level and the object, and
// the text in its message.
func expectFinding(t *testing.T, in map[string][]check.Finding, name string, level check.Level, object, text string) {
	t.Helper()
	for _, f := range in[name] {
		if f.Level == level && strings.Contains(f.Object, object) && strings.Contains(f.Message, text) {
			return
		}
	}
	t.Errorf("%s finds %+v, want %s about %q with %q", name, in[name], level, object, text)
}

func (c *controllerTest) testCheckBefore(t *testing.T) {
	found, err := findings(t, "--pre")
	if err != nil {
		t.Errorf("an empty cluster: %v: %+v", err, found)
	}
	for _, name := range []string{"kubernetes/version", "kubernetes/clock", "install/rights", "install/pod-security", "install/other-meshes", "install/crds"} {
		expectFinding(t, found, name, check.OK, "", "")
	}

	newcomer := c.userWith(t, "newcomer")
	found, err = findings(t, "--pre", "--kubeconfig", newcomer)
	if !errors.Is(err, errReported) {
		t.Errorf("somebody without rights: %v", err)
	}
	expectFinding(t, found, "install/rights", check.Error, "", "create clusterroles")
	expectFinding(t, found, "nodes/kernel", check.Error, "", "cannot be read")

	old := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "old"}}
	c.create(t, old)
	old.Status.NodeInfo = corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64", KernelVersion: "4.19.0-25-cloud"}
	if err := c.Status().Update(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	none := admissionv1.SideEffectClassNone
	rights, err := client.New(c.server.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	osm := &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "osm-webhook-osm"},
		Webhooks: []admissionv1.MutatingWebhook{{
			Name: "a.example.com", SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "a", Name: "a"}},
		}},
	}
	if err := rights.Create(t.Context(), osm); err != nil {
		t.Fatal(err)
	}
	found, err = findings(t, "--pre")
	if !errors.Is(err, errReported) {
		t.Errorf("a cluster with Open Service Mesh: %v", err)
	}
	expectFinding(t, found, "install/other-meshes", check.Error, "osm-webhook-osm", "Open Service Mesh")
	expectFinding(t, found, "nodes/kernel", check.Warning, "Node/old", "4.19.0-25-cloud")
}

func (c *controllerTest) testNamespace(t *testing.T) {
	c.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "store"}})
	c.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "foreign", Labels: map[string]string{metadata.MonitoredBy: "another"}}})
	yes := true
	c.createPod(t, "store", "web-6d4cf-x2x4z", func(p *corev1.Pod) {
		p.Labels = map[string]string{"pod-template-hash": "6d4cf"}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-6d4cf", UID: "a", Controller: &yes}}
	})
	text := runCommand(t, "namespace", "add", "store", "--class", "haproxy", "--revision", "canary")
	if !strings.Contains(text, "namespace/store added to mesh osm\n") || !strings.Contains(text, "deployment/web: 1 running without a sidecar") || !strings.Contains(text, "kubectl rollout restart -n store deployment/web") {
		t.Errorf("'namespace add' says %s", text)
	}
	if got := runCommand(t, "namespace", "list", "-o", "name"); got != "namespace/store\n" {
		t.Errorf("'namespace list' prints %q", got)
	}
	wide := strings.Join(strings.Fields(runCommand(t, "ns", "list", "-o", "wide")), " ")
	if want := "NAME MESH INJECTION WITH WITHOUT CLASS REVISION store osm enabled 0 1 haproxy canary"; wide != want {
		t.Errorf("'namespace list -o wide' prints %q, want %q", wide, want)
	}
	for args, want := range map[string]string{
		"add store --class haproxi": `did you mean "haproxy"?`,
		"add foreign":               "is in mesh another",
		"add kube-system":           "cannot be in a mesh",
		"add osm-system":            "cannot be in a mesh",
		"add nowhere":               "not found",
		"ad store":                  `did you mean "add"?`,
		"remove foreign":            "--mesh-name",
	} {
		if err := tryCommand(t, append([]string{"namespace"}, strings.Fields(args)...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("namespace %s: error %v, want one with %q", args, err, want)
		}
	}
	runCommand(t, "namespace", "ignore", "store")
	if got := runCommand(t, "namespace", "list"); !strings.Contains(got, "ignored") {
		t.Errorf("an ignored namespace is listed as %s", got)
	}
	runCommand(t, "namespace", "remove", "store")
	var ns corev1.Namespace
	if err := c.Get(t.Context(), client.ObjectKey{Name: "store"}, &ns); err != nil {
		t.Fatal(err)
	}
	if len(ns.Annotations) > 0 || ns.Labels[metadata.MonitoredBy] != "" || ns.Labels[metadata.Revision] != "" {
		t.Errorf("what is left of the mesh is %v %v", ns.Labels, ns.Annotations)
	}
	runCommand(t, "namespace", "add", "store")
}

// testCompletion completes names of the cluster and values of flags.
func (c *controllerTest) testCompletion(t *testing.T) {
	c.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shelf"}})
	for name, annotations := range map[string]map[string]string{"cart": {inject.StatusAnnotation: "{}"}, "bare": nil} {
		c.createPod(t, "shelf", name, func(p *corev1.Pod) { p.Annotations = annotations })
	}
	labels := map[string]string{"app": "shop"}
	_, err := kubernetes.NewForConfigOrDie(c.server.Config).AppsV1().Deployments("shelf").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shelf", Name: "shop"},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"namespace add she|":           "shelf",
		"namespace add shelf she|":     "",
		"namespace add s --class h|":   "haproxy",
		"proxy get -n she|":            "shelf",
		"proxy get -n shelf |":         "cart",
		"proxy get -n shelf pod/|":     "pod/cart",
		"proxy logs -n shelf deploy/|": "deploy/shop",
		"proxy list -o js|":            "json",
		"namespace rem|":               "remove",
	} {
		words := strings.Fields(strings.TrimSuffix(args, "|"))
		if strings.HasSuffix(args, " |") {
			words = append(words, "")
		}
		var got []string
		for line := range strings.Lines(runCommand(t, append([]string{"__complete"}, words...)...)) {
			if value, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); value != "" && value[0] != ':' {
				got = append(got, value)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q completes to %q, want %q", args, got, want)
		}
	}
}

// TestSuggestions checks the suggestions for misspelled commands and flags.
func TestSuggestions(t *testing.T) {
	for args, want := range map[string]string{
		"chekc":                       `unknown command "chekc"; did you mean "check"?`,
		"proxy gett cart":             `did you mean "get"?`,
		"proxy list --namespcae shop": `unknown flag: --namespcae; did you mean "--namespace"?`,
		"check --outptu json":         `did you mean "--output"?`,
		"check --zzz":                 "unknown flag: --zzz",
	} {
		err := tryCommand(t, strings.Fields(args)...)
		if wrong := (usage.Error{}); !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) {
			t.Errorf("outrigger %s: error %v, want one of usage with %q", args, err, want)
		}
		if want == "unknown flag: --zzz" && strings.Contains(err.Error(), "did you mean") {
			t.Errorf("outrigger %s: %v", args, err)
		}
	}
}

// testCheckAfter checks a mesh in which everything is broken.
func (c *controllerTest) testCheckAfter(t *testing.T) {
	c.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "strict", Labels: map[string]string{metadata.MonitoredBy: "osm", "pod-security.kubernetes.io/enforce": "restricted"},
	}})
	c.createPod(t, controlPlane, "outrigger-controller-0", func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "outrigger-controller", "app.kubernetes.io/name": "outrigger"}
	})
	found, err := findings(t, "--timeout", "30s")
	if !errors.Is(err, errReported) {
		t.Errorf("the check ends with %v", err)
	}
	for _, want := range []struct {
		name         string
		level        check.Level
		object, text string
	}{
		{"control-plane/crds", check.OK, "", "13 CRDs"},
		{"control-plane/rbac", check.Error, "outrigger-controller", "watch pods"},
		{"control-plane/deployments", check.Error, "outrigger-controller", "does not exist"},
		{"control-plane/drivers", check.Error, "", "no controller is running"},
		{"control-plane/mesh-config", check.Error, "osm-mesh-config", "does not exist"},
		{"webhook/ca", check.Error, "outrigger-injector", "does not exist"},
		{"webhook/answers", check.Error, "Namespace/store", ""},
		{"certificates/trust-bundle", check.Error, "ConfigMap/store/outrigger-ca", ""},
		{"proxies/connected", check.Error, "", "cannot be read"},
		{"pods/sidecar", check.Error, "Pod/store/web-6d4cf-x2x4z", "namespace_annotation_enabled"},
		{"pods/security", check.Error, "Namespace/strict", "restricted"},
		{"nodes/kernel", check.Warning, "Node/old", "4.19"},
	} {
		expectFinding(t, found, want.name, want.level, want.object, want.text)
	}
	c.allow(t, "")
	found, _ = findings(t, "--timeout", "30s")
	expectFinding(t, found, "control-plane/rbac", check.OK, "", "")
}

// TestCheckPage checks the tables of docs/check.md; UPDATE=1 writes them.
func TestCheckPage(t *testing.T) {
	const page = "../../docs/check.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for mark, checks := range map[string][]check.Check{"before": check.Before(), "after": check.After(), "strict": check.Strict()} {
		head, rest, _ := strings.Cut(want, "<!-- "+mark+" -->\n")
		_, tail, found := strings.Cut(rest, "<!-- end -->\n")
		if !found {
			t.Fatalf("%s has no place for the checks %s", page, mark)
		}
		table := "| check | what is looked at |\n|---|---|\n"
		for _, c := range checks {
			table += "| `" + c.Name + "` | " + c.Meaning + " |\n"
		}
		want = head + "<!-- " + mark + " -->\n" + table + "<!-- end -->\n" + tail
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(text) {
		t.Errorf("%s is out of date; run the test with UPDATE=1", page)
	}
}
