package envoy_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/drivers/envoy"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// patched returns the agent's Spec in a pod with the log level.
func patched(t *testing.T, logLevel string) (agentspec.Spec, []corev1.EnvVar) {
	t.Helper()
	inj := &driver.InjectorContext{
		Pod:   &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web"}}}},
		PodOS: "linux", OsmNamespace: "osm-system",
		Sidecar: driver.Sidecar{Image: "envoy", InitImage: "init", LogLevel: logLevel},
	}
	if err := (envoy.Driver{}).Patch(inj); err != nil {
		t.Fatal(err)
	}
	env := inj.Pod.Spec.Containers[1].Env
	for _, e := range env {
		if e.Name == agentspec.EnvSpec {
			var spec agentspec.Spec
			if err := json.Unmarshal([]byte(e.Value), &spec); err != nil {
				t.Fatal(err)
			}
			return spec, env
		}
	}
	t.Fatal("the agent has no Spec")
	return agentspec.Spec{}, nil
}

func TestCommand(t *testing.T) {
	// Envoy's log levels are named as in Open Service Mesh.
	for _, level := range []string{"trace", "debug", "info", "warning", "error", "critical", "off"} {
		spec, _ := patched(t, level)
		want := []string{"envoy", "--config-path", "/run/outrigger/envoy.yaml", "--log-level", level, "--concurrency", "${OUTRIGGER_CONCURRENCY}", "--disable-hot-restart",
			"--file-flush-interval-msec", "1000", "--drain-strategy", "immediate", "--drain-time-s", "45"}
		if diff := cmp.Diff(want, spec.Command); diff != "" {
			t.Errorf("level %s (-want +got):\n%s", level, diff)
		}
	}
}

// TestBootstrap reads Envoy's bootstrap as the agent writes it.
func TestBootstrap(t *testing.T) {
	spec, env := patched(t, "error")
	values := map[string]string{"POD_UID": "uid-1", "POD_NAMESPACE": "shop", "SERVICE_ACCOUNT": "cart", "POD_IP": "10.0.0.7"}
	for _, e := range env {
		if e.ValueFrom == nil {
			values[e.Name] = e.Value
		}
	}
	var paths []string
	for _, f := range spec.Files {
		paths = append(paths, f.Path)
	}
	if diff := cmp.Diff([]string{"/run/outrigger/envoy.yaml"}, paths); diff != "" {
		t.Fatalf("files (-want +got):\n%s", diff)
	}
	var bootstrap struct {
		Node  struct{ ID, Cluster string }
		Admin struct {
			Address struct {
				SocketAddress struct {
					Address   string
					PortValue int `json:"port_value"`
				} `json:"socket_address"`
			}
		}
		DynamicResources struct {
			ADSConfig struct {
				APIType      string `json:"api_type"`
				GRPCServices []struct {
					EnvoyGRPC struct {
						ClusterName string `json:"cluster_name"`
					} `json:"envoy_grpc"`
				} `json:"grpc_services"`
			} `json:"ads_config"`
		} `json:"dynamic_resources"`
		StaticResources struct{ Clusters []map[string]any } `json:"static_resources"`
	}
	text := os.Expand(spec.Files[0].Content, func(name string) string { return values[name] })
	if err := yaml.Unmarshal([]byte(text), &bootstrap); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	if bootstrap.Node.ID != "uid-1" || bootstrap.Node.Cluster != "cart.shop" {
		t.Errorf("the node is %v; want the pod's UID as its id", bootstrap.Node)
	}
	if a := bootstrap.Admin.Address.SocketAddress; a.Address != "127.0.0.1" || a.PortValue != driver.AdminPort {
		t.Errorf("the admin page is at %v, want it on loopback only", a)
	}
	ads := bootstrap.DynamicResources.ADSConfig
	if ads.APIType != "DELTA_GRPC" || len(ads.GRPCServices) != 1 ||
		!slices.ContainsFunc(bootstrap.StaticResources.Clusters, func(c map[string]any) bool {
			return c["name"] == ads.GRPCServices[0].EnvoyGRPC.ClusterName
		}) {
		t.Errorf("the discovery service is %v, and the clusters %v", ads, bootstrap.StaticResources.Clusters)
	}
	if spec.Secrets == nil || !strings.Contains(text, "pipe: {path: "+spec.Secrets.Socket+"}") {
		t.Errorf("the agent serves secrets at %v, which is missing in:\n%s", spec.Secrets, text)
	}
	if r := spec.Records; r == nil || r.Metrics != fmt.Sprintf("http://127.0.0.1:%d%s", driver.AdminPort, driver.MetricsPath) || r.Open != "TcpPeriodic" ||
		!strings.Contains(text, "outrigger.records: 100") || !strings.Contains(text, "outrigger.records_of_open_connections: 100") {
		t.Errorf("the agent counts %v, and the bootstrap is:\n%s", r, text)
	}
	if !strings.Contains(text, "address: outrigger-controller.osm-system.svc, port_value: 15128") {
		t.Errorf("the controller's address is not in:\n%s", text)
	}
}

func TestStartSaysWhatItLacks(t *testing.T) {
	_, err := envoy.Driver{}.Start(&driver.ControllerContext{})
	if err == nil || !strings.HasPrefix(err.Error(), "envoy: ") {
		t.Errorf("Start returned %v", err)
	}
}

func TestSidecarImage(t *testing.T) {
	if got := (envoy.Driver{}).SidecarImage("linux"); !strings.Contains(got, "envoyproxy/envoy:v") {
		t.Errorf("the image for Linux is %q", got)
	}
	if got := (envoy.Driver{}).SidecarImage("windows"); got != "" {
		t.Errorf("the image for Windows is %q, want none", got)
	}
}
