package cli

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/internal/registry"
)

// plantedSecret must not be in an archive.
const plantedSecret = "Zq7fPlantedR41n"

// plantedLog has plantedSecret in every form that a log may have.
const plantedLog = `{"level":"info","msg":"KEEP-log","authorization":"Bearer ` + plantedSecret + `"}
fetched https://user:` + plantedSecret + `@example.com/x?y=` + plantedSecret + ` with password=` + plantedSecret + `
cookie: a=b; c=` + plantedSecret + `
-----BEGIN PRIVATE KEY-----
` + plantedSecret + `
-----END PRIVATE KEY-----
eyJhbGciOiJub25lIn0.` + plantedSecret + `
`

// TestBugReport checks that secrets anywhere in the cluster are removed.
func TestBugReport(t *testing.T) {
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
	t.Chdir(t.TempDir())
	c.plant(t)

	files := c.bugReport(t, "--pod", "shop/web-0", "--since", "1h", "--timeout", "10s", "-o", "a.tar.gz")
	for name, text := range files {
		if strings.Contains(text, plantedSecret) {
			t.Errorf("a secret is left in %s: %s", name, text)
		}
	}
	for name, shown := range map[string]string{
		"versions.json": `"client"`,
		"check.json":    "control-plane/mesh-config",
		"nodes.json":    "5.15.0-KEEP",
		"mesh/meshconfigs.config.openservicemesh.io.yaml":        "KEEP-collector",
		"mesh/httproutegroups.specs.smi-spec.io.yaml":            "keep-route",
		"mesh/namespaces.yaml":                                   "name: shop",
		"control-plane/pods.yaml":                                "--KEEP-flag",
		"control-plane/deployments.yaml":                         "KEEP-image",
		"control-plane/services.yaml":                            "items: []",
		"control-plane/mutatingwebhookconfigurations.yaml":       "keep-hook",
		"control-plane/events.yaml":                              "KEEP-event",
		"control-plane/logs/controller-0/outrigger.log":          "KEEP-log",
		"control-plane/logs/controller-0/outrigger.previous.log": "KEEP-previous",
		"pod/pod.yaml":                         "KEEP-variable",
		"pod/events.yaml":                      "statuscode: 503",
		"pod/logs/web-0/outrigger-proxy.log":   "KEEP-log",
		"pod/logs/web-0/outrigger-proxy-2.log": "KEEP-later",
		"errors.txt":                           "outrigger proxy get shop/web-0",
	} {
		if !strings.Contains(files[name], shown) {
			t.Errorf("%s has no %q: %s", name, shown, files[name])
		}
	}
	for name := range files {
		if strings.Contains(name, "secret") || strings.HasPrefix(name, "pod/logs/web-0/app") || strings.HasPrefix(name, "pod/logs/web-0/debugger") {
			t.Errorf("%s is in the archive", name)
		}
	}

	if err := tryCommand(t, "bug-report", "-o", "a.tar.gz"); err == nil || !strings.Contains(err.Error(), "-o") {
		t.Errorf("a file that is there already: %v", err)
	}
	listed := runCommand(t, "bug-report", "--dry-run", "--timeout", "10s", "--pod", "pod/web-0", "-n", "shop")
	if _, err := os.Stat("outrigger-bug-report"); !strings.Contains(listed, "  pod/pod.yaml\n") || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("--dry-run lists %s", listed)
	}
	if found, _ := filepath.Glob("*"); len(found) != 1 {
		t.Errorf("beside the archive there are %v", found)
	}
	for args, want := range map[string]string{
		"--pod shop/nobody":       "not found",
		"-n shop":                 "--pod",
		"-o no/such/place.tar.gz": "-o",
		"--since -1h":             "--since",
	} {
		if err := tryCommand(t, append([]string{"bug-report", "--timeout", "10s"}, strings.Fields(args)...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("bug-report %s: error %v, want one with %q", args, err, want)
		}
	}

	// For a user without rights the archive lists what could not be read.
	files = c.bugReport(t, "--kubeconfig", c.userWith(t, "nobody"), "--timeout", "10s", "-o", "b.tar.gz")
	if text := files["errors.txt"]; !strings.Contains(text, "control-plane/pods.yaml: ") || !strings.Contains(text, "nodes: ") || files["versions.json"] == "" {
		t.Errorf("somebody without rights has %v", files)
	}
}

// bugReport makes an archive and returns its files.
func (c *controllerTest) bugReport(t *testing.T, args ...string) map[string]string {
	t.Helper()
	output := runCommand(t, append([]string{"bug-report"}, args...)...)
	name := args[len(args)-1]
	if !strings.Contains(output, "wrote "+name) || !strings.Contains(output, "before you send it") {
		t.Errorf("the output is %q", output)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("the archive has mode %v, %v", info.Mode(), err)
	}
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	files, r := make(map[string]string), tar.NewReader(unzipped)
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		inside, ok := strings.CutPrefix(header.Name, strings.TrimSuffix(name, ".tar.gz")+"/")
		if !ok {
			t.Errorf("%s is outside of the archive's directory", header.Name)
		}
		files[inside] = string(text)
	}
}

// plant creates a control plane and an application that are full of secrets.
func (c *controllerTest) plant(t *testing.T) {
	t.Helper()
	kubelet := startKubelet(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Annotations: map[string]string{"a": plantedSecret}}}
	c.create(t, node)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(kubelet.port)
	node.Status.NodeInfo = corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64", KernelVersion: "5.15.0-KEEP"}
	if err := c.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	applied := map[string]string{"kubectl.kubernetes.io/last-applied-configuration": plantedSecret, "example.com/any": plantedSecret}
	ours := map[string]string{"app.kubernetes.io/name": "outrigger"}
	c.apply(t, decode(t, `
apiVersion: v1
kind: Namespace
metadata:
  name: shop
  labels: {openservicemesh.io/monitored-by: osm}
  annotations: {example.com/any: `+plantedSecret+`}
---
apiVersion: v1
kind: Secret
metadata: {name: a, namespace: osm-system, labels: {app.kubernetes.io/name: outrigger}}
stringData: {a: `+plantedSecret+`}
---
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec:
  observability:
    remoteLogging: {enable: true, address: KEEP-collector, authorization: `+plantedSecret+`}
    tracing: {enable: true, address: "a.example.com", endpoint: "/x?key=`+plantedSecret+`"}
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: keep-route, namespace: shop}
spec:
  matches:
    - name: a
      methods: [GET]
      headers: [{authorization: "`+plantedSecret+`"}, {x-api-key: "`+plantedSecret+`"}]
`)...)
	rights, err := client.New(c.server.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := rights.Create(t.Context(), &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "keep-hook", Labels: ours, Annotations: applied},
	}); err != nil {
		t.Fatal(err)
	}
	app := corev1.Container{
		Name: "app", Image: "KEEP-image", Command: []string{"sh", plantedSecret}, Args: []string{plantedSecret},
		Env:           []corev1.EnvVar{{Name: "KEEP-variable", Value: plantedSecret}},
		Lifecycle:     &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{plantedSecret}}}},
		LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/x?y=" + plantedSecret, Port: intstr.FromInt32(80), HTTPHeaders: []corev1.HTTPHeader{{Name: "X-Any", Value: plantedSecret}}}}},
	}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: ours, Annotations: applied}, Spec: corev1.PodSpec{Containers: []corev1.Container{app}}}
	if err := rights.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: controlPlane, Name: "outrigger-controller", Labels: ours, Annotations: applied},
		Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: ours}, Template: template},
	}); err != nil {
		t.Fatal(err)
	}
	control := c.createPod(t, controlPlane, "controller-0", func(p *corev1.Pod) {
		p.Labels, p.Annotations, p.Spec.NodeName = ours, applied, "node"
		p.Spec.Containers = []corev1.Container{app, {
			Name: "outrigger", Image: "a", Args: []string{"--KEEP-flag", "--token", plantedSecret},
			Env: []corev1.EnvVar{{Name: "VAULT_TOKEN", Value: plantedSecret}, {Name: "HTTPS_PROXY", Value: "http://a:" + plantedSecret + "@example.com"}},
		}}
	})
	control.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "outrigger", RestartCount: 1}, {
		Name: "app", LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: plantedSecret}},
	}}
	web := c.createPod(t, "shop", "web-0", func(p *corev1.Pod) {
		p.Spec.NodeName = "node"
		p.Annotations = map[string]string{"example.com/any": plantedSecret, "openservicemesh.io/sidecar-status": "{}"}
		p.Spec.Containers = []corev1.Container{app, {Name: "outrigger-proxy", Image: "a", Env: []corev1.EnvVar{
			{Name: "SPEC", Value: `{"probes":[{"headers":[{"name":"x","value":"` + plantedSecret + `"}]}]}`},
		}}}
	})
	web.Spec.EphemeralContainers = []corev1.EphemeralContainer{
		{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "outrigger-proxy-2", Image: "a", TerminationMessagePolicy: "File", ImagePullPolicy: "Always"}},
		{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debugger", Image: "a", TerminationMessagePolicy: "File", ImagePullPolicy: "Always"}},
	}
	if err := c.SubResource("ephemeralcontainers").Update(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	for _, pod := range []*corev1.Pod{control, web} {
		if err := c.Status().Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	for i, e := range []corev1.Event{
		{InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: controlPlane, Name: "controller-0"}, Reason: "Failed", Message: "KEEP-event token=" + plantedSecret},
		{InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "web-0"}, Reason: "Unhealthy", Message: "Readiness probe failed: I say " + plantedSecret},
		{InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "web-0"}, Reason: "Unhealthy", Message: "Liveness probe failed: HTTP probe failed with statuscode: 503"},
	} {
		e.Namespace, e.Name = e.InvolvedObject.Namespace, "e"+string(rune('a'+i))
		c.create(t, &e)
	}
	kubelet.logs.Store(controlPlane+"/controller-0/outrigger", plantedLog)
	kubelet.logs.Store(controlPlane+"/controller-0/outrigger/previous", "KEEP-previous\n"+plantedLog)
	kubelet.logs.Store("shop/web-0/outrigger-proxy", plantedLog)
	kubelet.logs.Store("shop/web-0/outrigger-proxy-2", "KEEP-later\n"+plantedLog)
	kubelet.logs.Store("shop/web-0/app", plantedSecret)
	kubelet.logs.Store("shop/web-0/debugger", plantedSecret)
}

// TestBugReportPage checks that secrets in a controller's page about a proxy are removed.
func TestBugReportPage(t *testing.T) {
	r := &report{}
	page := &proxyPage{controller: "a"}
	page.answer.Proxy = &registry.Proxy{Class: "KEEP-class"}
	page.answer.View = []byte(`{"inbound":[{"headers":[{"name":"authorization","exact":"` + plantedSecret + `"},{"name":"x-version","exact":"KEEP-version"}]}]}`)
	page.answer.Configuration = map[string]string{
		"clusters.yaml":       "a:\n  name: cookie\n  string_match:\n    exact: " + plantedSecret + "\nb: KEEP-yaml\n---\ntoken: " + plantedSecret + "\n",
		"haproxy.cfg":         "backend KEEP-haproxy\n  http-request deny if { req.hdr(cookie) -m str " + plantedSecret + " }\n",
		"../../../etc/x.json": `{"password":"` + plantedSecret + `","a":"KEEP-json"}`,
	}
	r.addPage(page)
	all := ""
	for _, file := range r.files {
		if !strings.HasPrefix(file.name, "pod/proxy/") || strings.Contains(file.name, "..") {
			t.Errorf("a file is named %s", file.name)
		}
		all += string(file.content)
	}
	for _, shown := range []string{"class", "version", "yaml", "haproxy", "json"} {
		if !strings.Contains(all, "KEEP-"+shown) {
			t.Errorf("%s is gone: %s", shown, all)
		}
	}
	if strings.Contains(all, plantedSecret) {
		t.Errorf("a secret is left: %s", all)
	}
}

// TestBugReportTail reports the end of a log that is too long.
func TestBugReportTail(t *testing.T) {
	var log tail
	for range 3 * reportLog / 100 {
		if _, err := log.Write([]byte(strings.Repeat("x", 99) + "\n")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := log.Write([]byte("end\n")); err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(log.String(), "\n")
	if text := log.String(); len(text) > reportLog+100 || !strings.HasSuffix(text, "\nend\n") || !strings.Contains(head, "left out") || len(rest)%100 != len("end\n") {
		t.Errorf("%d bytes of the log are left, after %q", len(text), head)
	}
}
