package monitoring_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	chart "github.com/outrigger-mesh/outrigger/charts/outrigger"
	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/internal/monitoring"
	"github.com/outrigger-mesh/outrigger/samples"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
	"github.com/outrigger-mesh/outrigger/test/compile"
	"github.com/outrigger-mesh/outrigger/test/lab"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

func TestMain(m *testing.M) {
	lab.Enter()
	m.Run()
}

// controlPlane is the namespace of the control plane.
const controlPlane = "osm-system"

// TestQueries runs the bookstore with every proxy that this machine has, lets Prometheus scrape
// it as the chart's monitors say, and runs the queries of all dashboards and alerts.
func TestQueries(t *testing.T) {
	folder := programs(t)
	if err := lab.Available(); errors.Is(err, lab.ErrUnavailable) {
		t.Skip("SKIPPED: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	mesh, built := startMesh(t)
	config := monitors(t, mesh)
	var control *cluster
	if apiserver.Built() {
		control = startCluster(t, built.Outrigger)
		config = append(config, control.jobs(t, mesh.Lab())...)
	} else {
		t.Run("cluster", func(t *testing.T) {
			t.Skip("SKIPPED: the queries about the injector, the leader and the objects of a cluster, because kube-apiserver and etcd are not compiled; run 'make apiserver'")
		})
	}
	text, err := yaml.Marshal(map[string]any{
		"global":         map[string]any{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"scrape_configs": config,
	})
	if err != nil {
		t.Fatal(err)
	}
	server := startPrometheus(t, mesh.Lab(), folder, string(text))
	plant(t, mesh)

	for name, d := range monitoring.Dashboards() {
		for _, q := range d.Queries() {
			if control == nil && needsCluster(q.Expr) {
				continue
			}
			t.Run(q.Where, func(t *testing.T) {
				eventually(t, "data", func() error {
					var err error
					for _, of := range subjects[name] {
						if err = server.hasData(t.Context(), of.Replace(q.Expr)); err == nil {
							return nil
						}
					}
					return err
				})
			})
		}
	}
	t.Run("native histograms", func(t *testing.T) {
		eventually(t, "the same median by native and classic histograms, for each class", func() error {
			return nativeHistograms(t.Context(), server)
		})
	})
	t.Run("alerts", func(t *testing.T) {
		for _, group := range monitoring.Rules() {
			for _, a := range group.Rules {
				if control == nil && needsCluster(a.Expr) {
					continue
				}
				eventually(t, "the planted conditions", func() error { return holds(t.Context(), server, a, control != nil) })
			}
		}
	})
}

// nativeHistograms returns an error unless each class has the same median of all requests by
// the native histogram as by the classic one.
func nativeHistograms(ctx context.Context, s *server) error {
	const native = "histogram_quantile(0.5, sum by (class) (outrigger_request_duration_seconds))"
	const classic = "histogram_quantile(0.5, sum by (class, le) (outrigger_request_duration_seconds_bucket))"
	both, err := s.query(ctx, "("+native+") - ("+classic+")")
	if err != nil {
		return err
	}
	if len(both) == 0 {
		return errors.New("no class has both histograms")
	}
	for _, sample := range both {
		// NaN is no difference either.
		if difference := math.Abs(float64(sample.Value)); !(difference < 1e-6) {
			return fmt.Errorf("the medians of class %s differ by %g s", sample.Metric["class"], difference)
		}
	}
	return nil
}

// subjects are what the variables of each dashboard are replaced by: the namespaces and
// workloads of which one has the data of each panel.
var subjects = map[string][]*strings.Replacer{
	"mesh":          {choose(".*", "")},
	"workload":      {choose("bookstore", "bookstore-v1"), choose("bookbuyer", "bookbuyer"), choose("bookwarehouse", "stock"), choose("bookwarehouse", "bookwarehouse")},
	"control-plane": {choose("", "")},
}

func choose(namespace, workload string) *strings.Replacer {
	return strings.NewReplacer("$__rate_interval", "30s", "$namespace", namespace, "$workload", workload)
}

// planted are the alerts whose conditions hold in this mesh. Those that are true are about the
// cluster's objects and pods.
var planted = map[string]bool{
	"OutriggerPlaintextRefused":   false,
	"OutriggerProblems":           true,
	"OutriggerPodsWithoutSidecar": true,
	"OutriggerInjectorDenies":     true,
}

// holds returns an error unless the condition of an alert holds exactly if it was planted.
func holds(ctx context.Context, s *server, a monitoring.Alert, inCluster bool) error {
	result, err := s.query(ctx, a.Expr)
	if err != nil {
		return fmt.Errorf("%s: %w", a.Name, err)
	}
	ofCluster, want := planted[a.Name]
	want = want && (inCluster || !ofCluster)
	if got := len(result) > 0; got != want {
		return fmt.Errorf("the condition of %s holds: %t, want %t: %v", a.Name, got, want, result)
	}
	// The namespace of an object is not that of the controller, which reports it.
	for _, sample := range result {
		if namespace, has := sample.Metric["namespace"]; has && namespace != "shop" {
			return fmt.Errorf("%s is about the namespace %q, want shop: %v", a.Name, namespace, result)
		}
	}
	return nil
}

// needsCluster reports whether a query needs metrics that only a control plane in a cluster has.
func needsCluster(expr string) bool {
	for _, name := range []string{"outrigger_injector_", "outrigger-injector", "leader_election_"} {
		if strings.Contains(expr, name) {
			return true
		}
	}
	return false
}

// workloads are the workloads of the bookstore.
var workloads = []struct{ name, labels string }{
	{"bookbuyer", "{app: bookbuyer}"},
	{"bookthief", "{app: bookthief}"},
	{"bookstore-v1", "{app: bookstore, version: v1}"},
	{"bookstore-v2", "{app: bookstore, version: v2}"},
	{"bookwarehouse", "{app: bookwarehouse}"},
	{"stock", "{app: stock}"},
}

func startMesh(t *testing.T) (*localmesh.Mesh, localmesh.Programs) {
	t.Helper()
	dir := t.TempDir()
	built, err := localmesh.BuildPrograms(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}
	bookstore := filepath.Join(dir, "bookstore")
	if err := compile.Build(t.Context(), compile.Options{Packages: []string{"../../samples/bookstore"}, Output: bookstore}); err != nil {
		t.Fatal(err)
	}
	var classes []string
	for _, class := range []string{"envoy", "haproxy", "pipy"} {
		if built.Proxies[class] == "" {
			t.Logf("SKIPPED: sidecars of class %s: %v", class, built.Missing[class])
			continue
		}
		classes = append(classes, class)
	}
	if len(classes) == 0 {
		t.Skip("SKIPPED: there is no proxy on this machine")
	}
	application := lab.Image{Files: map[string]string{"/bookstore": bookstore}, Entrypoint: []string{"/bookstore"}}
	stock := application
	stock.Entrypoint = []string{"/bookstore", "stock"}
	mesh, err := localmesh.New(t.Context(), localmesh.Options{
		Manifests: manifests(t, classes), Programs: built,
		Images: map[string]lab.Image{"outriggermesh/bookstore:0.2.0": application, "mysql:8": stock},
		Log:    slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mesh.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := mesh.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return mesh, built
}

// manifests returns the sample's manifests, whose workloads have the classes in turn.
func manifests(t *testing.T, classes []string) map[string]string {
	t.Helper()
	files, err := fs.Glob(samples.Bookstore, "bookstore-smi/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, file := range files {
		text, err := fs.ReadFile(samples.Bookstore, file)
		if err != nil {
			t.Fatal(err)
		}
		out[path.Base(file)] = string(text)
	}
	// Certificates are renewed all the time, so that there is something to see.
	const traffic = "spec:\n  sidecar:\n"
	if !strings.Contains(out["mesh.yaml"], traffic) {
		t.Fatalf("the sample's MeshConfig does not contain %q", traffic)
	}
	out["mesh.yaml"] = strings.Replace(out["mesh.yaml"], traffic, "spec:\n  certificate: {serviceCertValidityDuration: 30s}\n  sidecar:\n", 1)
	for i, w := range workloads {
		const metadata = "    metadata:\n"
		labels := "      labels: " + w.labels + "\n"
		annotated := metadata + "      annotations: {openservicemesh.io/sidecar-class: " + classes[i%len(classes)] + "}\n" + labels
		changed := false
		for name, text := range out {
			if strings.Contains(text, metadata+labels) {
				out[name], changed = strings.Replace(text, metadata+labels, annotated, 1), true
			}
		}
		if !changed {
			t.Fatalf("the sample has no workload with the labels %s", w.labels)
		}
	}
	return out
}

// plant causes until the test ends what does not happen in the bookstore: plaintext from outside,
// calls of gRPC, and changes of policies.
func plant(t *testing.T, mesh *localmesh.Mesh) {
	t.Helper()
	pod := func(prefix string) *lab.Pod {
		pods := mesh.Pods()
		at := slices.IndexFunc(pods, func(name string) bool { return strings.HasPrefix(name, prefix) })
		if at < 0 {
			t.Fatalf("there is no pod %s in %v", prefix, pods)
		}
		return mesh.Pod(pods[at])
	}
	plaintext := net.JoinHostPort(pod("bookstore/bookstore-v1").Addresses()[0].String(), "14001")
	reviews, err := grpc.NewClient("passthrough:///bookstore.bookstore:9000", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return pod("bookbuyer/bookbuyer").Dial(ctx, "tcp", address)
		}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done; reviews.Close() })
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			if conn, err := mesh.Lab().Node().Dial(ctx, "tcp", plaintext); err == nil {
				_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
				fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: bookstore\r\nConnection: close\r\n\r\n")
				_, _ = io.Copy(io.Discard, conn)
				conn.Close()
			}
			// Any method will do; the client does not know the proxies' answers in advance.
			call, end := context.WithTimeout(ctx, 5*time.Second)
			_ = reviews.Invoke(call, "/bookstore.Reviews/List", new(emptypb.Empty), new(emptypb.Empty))
			end()
			if i%10 == 0 {
				weights := fmt.Sprintf("service: bookstore-v1, weight: %d", 90+i%20/10)
				text, _ := fs.ReadFile(samples.Bookstore, "bookstore-smi/policies.yaml")
				if err := mesh.Apply(ctx, "policies.yaml", strings.Replace(string(text), "service: bookstore-v1, weight: 90", weights, 1)); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
	}()
}

// monitor is a ServiceMonitor or PodMonitor of the chart.
type monitor struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		Endpoints, PodMetricsEndpoints []endpoint

		ScrapeNativeHistograms, ConvertClassicHistogramsToNHCB, ScrapeClassicHistograms bool
	}
}

type endpoint struct {
	Port, Path  string
	HonorLabels bool
	Relabelings []struct {
		Action       string
		SourceLabels []string
		Regex        string
		Replacement  string
		TargetLabel  string
	}
}

// chartMonitors returns the chart's monitors by name.
func chartMonitors(t *testing.T) map[string]monitor {
	t.Helper()
	on := map[string]any{"enabled": true}
	release, err := chart.Render(t.Context(), controlPlane, map[string]any{"monitoring": map[string]any{
		"podMonitor": map[string]any{"enabled": true, "nativeHistograms": true}, "serviceMonitor": on,
	}})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]monitor{}
	for _, text := range release.Objects {
		var m monitor
		if strings.Contains(text, "apiVersion: monitoring.coreos.com/v1\n") {
			if err := yaml.Unmarshal([]byte(text), &m); err != nil {
				t.Fatal(err)
			}
			all[m.Metadata.Name] = m
		}
	}
	return all
}

// monitors returns the parts of Prometheus' configuration that its operator makes of the chart's
// monitors, for the pods and the controller of the mesh.
func monitors(t *testing.T, mesh *localmesh.Mesh) []map[string]any {
	t.Helper()
	all := chartMonitors(t)
	sidecars := all["outrigger-sidecars"]
	if len(sidecars.Spec.PodMetricsEndpoints) == 0 {
		t.Fatalf("the chart has no PodMonitor for the sidecars: %+v", all)
	}
	var jobs []map[string]any
	for i, e := range sidecars.Spec.PodMetricsEndpoints {
		var targets []target
		for _, name := range mesh.Pods() {
			targets = append(targets, podTargets(mesh.Pod(name), e.Port)...)
		}
		if len(targets) == 0 {
			t.Fatalf("no pod has the port %s", e.Port)
		}
		relabel := []map[string]any{
			copyLabel("__meta_kubernetes_namespace", "namespace"), copyLabel("__meta_kubernetes_pod_container_name", "container"),
			copyLabel("__meta_kubernetes_pod_name", "pod"), setLabel("job", controlPlane+"/"+sidecars.Metadata.Name), setLabel("endpoint", e.Port),
		}
		for _, r := range e.Relabelings {
			rule := map[string]any{"source_labels": r.SourceLabels, "regex": r.Regex}
			if r.Action != "" {
				rule["action"] = r.Action
			} else {
				rule["replacement"], rule["target_label"] = r.Replacement, r.TargetLabel
			}
			relabel = append(relabel, rule)
		}
		job := scrape(fmt.Sprintf("podMonitor/%s/%s/%d", controlPlane, sidecars.Metadata.Name, i), e.Path, "", targets, relabel...)
		job["scrape_native_histograms"] = sidecars.Spec.ScrapeNativeHistograms
		job["convert_classic_histograms_to_nhcb"] = sidecars.Spec.ConvertClassicHistogramsToNHCB
		job["always_scrape_classic_histograms"] = sidecars.Spec.ScrapeClassicHistograms
		jobs = append(jobs, job)
	}
	return append(jobs, serviceJob(t, all["outrigger-controller"], 0, "198.18.0.1:9091"))
}

// serviceJob is the part of Prometheus' configuration for a ServiceMonitor.
func serviceJob(t *testing.T, m monitor, number int, address string) map[string]any {
	t.Helper()
	if len(m.Spec.Endpoints) != 1 {
		t.Fatalf("the chart has no ServiceMonitor: %+v", m)
	}
	e, extra := m.Spec.Endpoints[0], ""
	if e.HonorLabels {
		extra = honorLabels
	}
	return scrape(fmt.Sprintf("serviceMonitor/%s/%s/%d", controlPlane, m.Metadata.Name, number), e.Path, extra, []target{{address, nil}},
		setLabel("namespace", controlPlane), setLabel("service", m.Metadata.Name), setLabel("job", m.Metadata.Name), setLabel("endpoint", e.Port),
		setLabel("pod", m.Metadata.Name+"-0"))
}

// notInLabels matches what service discovery replaces in a name.
var notInLabels = regexp.MustCompile("[^a-zA-Z0-9_]")

// podTargets returns the targets of a pod for a named port, as Kubernetes' service discovery
// finds them.
func podTargets(pod *lab.Pod, port string) (targets []target) {
	object := pod.Object()
	for _, c := range slices.Concat(object.Spec.InitContainers, object.Spec.Containers) {
		for _, p := range c.Ports {
			if p.Name == port && p.Protocol == corev1.ProtocolTCP {
				labels := map[string]string{
					"__meta_kubernetes_namespace": object.Namespace, "__meta_kubernetes_pod_name": object.Name, "__meta_kubernetes_pod_container_name": c.Name,
				}
				for annotation := range object.Annotations {
					labels["__meta_kubernetes_pod_annotationpresent_"+notInLabels.ReplaceAllString(annotation, "_")] = "true"
				}
				targets = append(targets, target{net.JoinHostPort(pod.Addresses()[0].String(), fmt.Sprint(p.ContainerPort)), labels})
			}
		}
	}
	return targets
}
