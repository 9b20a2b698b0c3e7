package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// stage is an API server with an installed mesh and running injectors.
type stage struct {
	t      *testing.T
	server *apiserver.Server
	client client.Client
	pods   kubernetes.Interface

	mu       sync.Mutex
	warnings []string
}

func newStage(t *testing.T) *stage {
	s := &stage{t: t, server: apiserver.StartServer(t)}
	config := rest.CopyConfig(s.server.Config)
	config.WarningHandler = s
	var err error
	if s.client, err = client.New(s.server.Config, client.Options{}); err != nil {
		t.Fatal(err)
	}
	if s.pods, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	return s
}

// HandleWarningHeader keeps the warnings of the API server.
func (s *stage) HandleWarningHeader(_ int, _, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.warnings = append(s.warnings, text)
}

func (s *stage) takeWarnings() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.warnings
	s.warnings = nil
	return taken
}

// outrigger runs the program in this process and returns its output.
func outrigger(t *testing.T, args ...string) string {
	t.Helper()
	root := allCommands()
	var stdout, stderr bytes.Buffer
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetArgs(args)
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("outrigger %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return stdout.String()
}

// install applies the output of 'outrigger manifests', with a webhook at the address.
func (s *stage) install(address string, args ...string) {
	s.t.Helper()
	objects, err := apiserver.Decode([]byte(outrigger(s.t, append([]string{"manifests"}, args...)...)))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, obj := range objects {
		if obj.GetKind() == "MutatingWebhookConfiguration" {
			webhooks, _, err := unstructured.NestedSlice(obj.Object, "webhooks")
			if err != nil {
				s.t.Fatal(err)
			}
			for _, w := range webhooks {
				w.(map[string]any)["clientConfig"] = map[string]any{"url": "https://" + address + "/inject"}
			}
			if err := unstructured.SetNestedSlice(obj.Object, webhooks, "webhooks"); err != nil {
				s.t.Fatal(err)
			}
		}
		if err := apiserver.Apply(s.t.Context(), s.client, obj); err != nil {
			s.t.Fatal(err)
		}
	}
}

// runInjector runs 'outrigger injector' until the test ends, with the chart's rights, and waits
// until it is ready.
func (s *stage) runInjector(account, address string, args ...string) (health string) {
	s.t.Helper()
	kubeconfig, err := s.server.Kubeconfig("system:serviceaccount:osm-system:"+account,
		"system:serviceaccounts", "system:serviceaccounts:osm-system", "system:authenticated")
	if err != nil {
		s.t.Fatal(err)
	}
	file := filepath.Join(s.t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, kubeconfig, 0o600); err != nil {
		s.t.Fatal(err)
	}
	health = freeAddress(s.t)
	root := NewRootCommand()
	var log syncBuffer
	root.SetErr(&log)
	root.SetArgs(append([]string{"injector", "--kubeconfig", file, "--listen", address, "--health-listen", health,
		"--extra-names", "127.0.0.1", "--shutdown-delay", "0s", "--template-dir", ""}, args...))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- root.ExecuteContext(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("the injector ended with: %v", err)
		}
		if s.t.Failed() {
			s.t.Logf("the injector's log:\n%s", &log)
		}
	})
	eventually(s.t, "the injector is ready", func() error {
		select {
		case err := <-done:
			done <- err
			s.t.Fatalf("the injector ended: %v\n%s", err, &log)
		default:
		}
		_, err := get("http://" + health + "/health/ready")
		return err
	})
	return health
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func get(url string) (string, error) {
	response, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %s", url, response.Status, body)
	}
	return string(body), err
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *stage) namespace(name string, labels map[string]string) {
	s.t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels,
		Annotations: map[string]string{metadata.Injection: "enabled"}}}
	if err := s.client.Create(s.t.Context(), ns); err != nil {
		s.t.Fatal(err)
	}
}

// create creates a pod and returns the names of its containers, init containers first. It sets
// status, if given, to the status annotation.
func (s *stage) create(namespace string, change func(*corev1.Pod), status ...*string) ([]string, error) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "app-", Namespace: namespace},
		Spec:       corev1.PodSpec{ServiceAccountName: "app", Containers: []corev1.Container{{Name: "app", Image: "app"}}},
	}
	if change != nil {
		change(pod)
	}
	made, err := s.pods.CoreV1().Pods(namespace).Create(s.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	for _, into := range status {
		*into = made.Annotations[inject.StatusAnnotation]
	}
	var names []string
	for _, c := range slices.Concat(made.Spec.InitContainers, made.Spec.Containers) {
		names = append(names, c.Name)
	}
	return names, nil
}

func (s *stage) wantContainers(namespace string, change func(*corev1.Pod), want ...string) {
	s.t.Helper()
	names, err := s.create(namespace, change)
	if err != nil || !slices.Equal(names, want) {
		s.t.Errorf("a pod in %s has the containers %v (%v), want %v", namespace, names, err, want)
	}
}

// wantRevision creates pods until one has the revision, since the API server adopts a new
// webhook configuration with a delay.
func (s *stage) wantRevision(namespace, label, want string) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("a pod in %s with the label %q is of revision %s", namespace, label, want), func() error {
		var status string
		_, err := s.create(namespace, func(p *corev1.Pod) {
			if label != "" {
				p.Labels = map[string]string{metadata.Revision: label}
			}
		}, &status)
		if err == nil && !strings.Contains(status, `"revision":"`+want+`"`) {
			err = fmt.Errorf("its status is %s", status)
		}
		return err
	})
}

func TestInjectorOnAPIServer(t *testing.T) {
	s := newStage(t)
	address := freeAddress(t)
	s.install(address)
	health := s.runInjector("outrigger-injector", address)
	monitored := map[string]string{metadata.MonitoredBy: "osm"}
	s.namespace("shop", monitored)
	s.namespace("elsewhere", nil)

	t.Run("decisions", func(t *testing.T) {
		s.t = t
		s.wantContainers("shop", nil, "outrigger-init", "outrigger-proxy", "app")
		if w := s.takeWarnings(); len(w) != 0 {
			t.Errorf("an injected pod has the warnings %q", w)
		}
		s.wantContainers("shop", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, "app")
		if w := s.takeWarnings(); len(w) != 1 || !strings.HasPrefix(w[0], "outrigger: host_network: not injected: ") {
			t.Errorf("a pod on the host's network has the warnings %q", w)
		}
		_, err := s.create("shop", func(p *corev1.Pod) { p.Annotations = map[string]string{metadata.Injection: "perhaps"} })
		if err == nil || !strings.Contains(err.Error(), `outrigger: annotation_invalid: pod annotation openservicemesh.io/sidecar-injection is "perhaps"`) {
			t.Errorf("a pod with an illegal annotation is answered with %v", err)
		}
		s.takeWarnings()
		s.wantContainers("elsewhere", nil, "app")
		if w := s.takeWarnings(); len(w) != 0 {
			t.Errorf("a pod of an unmonitored namespace has reached the webhook: %q", w)
		}
	})

	t.Run("metrics", func(t *testing.T) {
		text, err := get("http://" + health + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{
			`outrigger_injector_decisions_total{class="envoy",outcome="inject",reason="namespace_annotation_enabled"} 1`,
			`outrigger_injector_decisions_total{class="",outcome="skip",reason="host_network"} 1`,
			`outrigger_injector_decisions_total{class="",outcome="deny",reason="annotation_invalid"} 1`,
			`outrigger_injector_config_last_reload_successful 1`,
		} {
			if !strings.Contains(text, line+"\n") {
				t.Errorf("the metrics lack %s", line)
			}
		}
		if strings.Contains(text, "namespace_exempt") {
			t.Error("the injector counts the reviews that it asks of itself")
		}
	})

	t.Run("templates are taken up and a broken one is not", func(t *testing.T) {
		s.t = t
		logger := func(p *corev1.Pod) {
			p.Annotations = map[string]string{"openservicemesh.io/inject-templates": "logger"}
		}
		setTemplates := func(config string) {
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "outrigger-injector", Namespace: "osm-system"}}
			if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(cm), cm); err != nil {
				t.Fatal(err)
			}
			cm.Data = map[string]string{"config": config, "values": "image: log:1"}
			if err := s.client.Update(t.Context(), cm); err != nil {
				t.Fatal(err)
			}
		}
		setTemplates("templates:\n  logger: |\n    spec:\n      containers:\n      - {name: logger, image: \"{{ .Values.image }}\"}\n")
		eventually(t, "the template is used", func() error {
			names, err := s.create("shop", logger)
			if err == nil && !slices.Equal(names, []string{"app", "logger"}) {
				err = fmt.Errorf("the containers are %v", names)
			}
			return err
		})
		setTemplates("templates: {logger: '{{'}")
		eventually(t, "the metric reports the broken template", func() error {
			text, err := get("http://" + health + "/metrics")
			if err == nil && !strings.Contains(text, "outrigger_injector_config_last_reload_successful 0\n") {
				err = fmt.Errorf("it does not")
			}
			return err
		})
		s.wantContainers("shop", logger, "app", "logger")
	})

	t.Run("the caBundle is put right", func(t *testing.T) {
		configs := s.pods.AdmissionregistrationV1().MutatingWebhookConfigurations()
		config, err := configs.Get(t.Context(), "outrigger-injector", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		right := config.Webhooks[0].ClientConfig.CABundle
		for i := range config.Webhooks {
			config.Webhooks[i].ClientConfig.CABundle = nil
		}
		if _, err := configs.Update(t.Context(), config, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the caBundle is back", func() error {
			config, err := configs.Get(t.Context(), "outrigger-injector", metav1.GetOptions{})
			for i := 0; err == nil && i < len(config.Webhooks); i++ {
				if !bytes.Equal(config.Webhooks[i].ClientConfig.CABundle, right) {
					err = fmt.Errorf("webhook %s has another", config.Webhooks[i].Name)
				}
			}
			return err
		})
	})

	t.Run("two revisions side by side", func(t *testing.T) {
		s.t = t
		address := freeAddress(t)
		s.install(address, "--revision", "canary")
		s.runInjector("outrigger-injector-canary", address, "--revision", "canary")
		s.namespace("canary", map[string]string{metadata.MonitoredBy: "osm", metadata.Revision: "canary"})
		for _, tt := range []struct{ namespace, label, want string }{
			{"shop", "", "default"}, {"shop", "canary", "canary"}, {"canary", "", "canary"}, {"canary", "default", "default"},
		} {
			s.wantRevision(tt.namespace, tt.label, tt.want)
		}
	})
}

func TestInjectorThatIsOff(t *testing.T) {
	s := newStage(t)
	health := s.runInjector("outrigger-injector", freeAddress(t), "--template-configmap", "")
	if _, err := get("http://" + health + "/health/alive"); err != nil {
		t.Error(err)
	}
}
