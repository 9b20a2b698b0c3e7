package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/internal/version"
)

// TestVersionWithoutACluster checks that both ways to ask for the version work without a
// cluster.
func TestVersionWithoutACluster(t *testing.T) {
	t.Setenv("KUBECONFIG", "/dev/null")
	t.Setenv("HOME", t.TempDir())
	var got map[string]map[string]string
	if err := json.Unmarshal([]byte(runCommand(t, "version", "-o", "json")), &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got["client"]["version"] != version.Number {
		t.Errorf("'version -o json' prints %v, want the client's version %s only", got, version.Number)
	}
	for _, args := range [][]string{{"version"}, {"--version"}} {
		if text := runCommand(t, args...); !strings.Contains(text, version.Number+" (") || strings.Count(text, "\n") != 1 {
			t.Errorf("outrigger %s prints %q", args[0], text)
		}
	}
}

// TestAgentVersions counts pods with the chart's image, with an image of a registry with a port,
// with an image by digest, and pods that have ended, have no agent or were not injected.
func TestAgentVersions(t *testing.T) {
	pod := func(name, image string, phase corev1.PodPhase) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"openservicemesh.io/sidecar-status": "{}"}},
			Spec:       corev1.PodSpec{InitContainers: []corev1.Container{{Name: "setup", Image: "setup:9"}, {Name: name, Image: image}}},
			Status:     corev1.PodStatus{Phase: phase},
		}
	}
	other := pod("outrigger-init", "docker.io/outriggermesh/outrigger-init:0.0.6", corev1.PodRunning)
	other.Annotations = nil
	got := agentVersions([]corev1.Pod{
		other,
		pod("outrigger-init", version.InitImage(), corev1.PodRunning),
		pod("outrigger-init", "localhost:5000/mesh/outrigger-init:0.2.0", corev1.PodPending),
		pod("outrigger-init", "localhost:5000/outrigger-init", corev1.PodRunning),
		pod("outrigger-init", "docker.io/outriggermesh/outrigger-init@sha256:abc", corev1.PodRunning),
		pod("outrigger-init", "docker.io/outriggermesh/outrigger-init:0.0.9@sha256:abc", corev1.PodRunning),
		pod("outrigger-init", "docker.io/outriggermesh/outrigger-init:0.0.8", corev1.PodSucceeded),
		pod("other", "docker.io/outriggermesh/other:0.0.7", corev1.PodRunning),
	})
	want := []agentVersion{{"0.0.9", 1}, {"0.2.0", 2}, {"latest", 1}, {"sha256:abc", 1}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("versions of agents (-want +got):\n%s", diff)
	}
}

// TestOneVersion checks that the program, its chart and the samples have the same version.
func TestOneVersion(t *testing.T) {
	text, err := os.ReadFile("../../charts/outrigger/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"\nversion: " + version.Number + "\n", "\nappVersion: " + version.Number + "\n"} {
		if !strings.Contains(string(text), line) {
			t.Errorf("Chart.yaml has no line %q", strings.TrimSpace(line))
		}
	}
	samples, err := filepath.Glob("../../samples/*/*.yaml")
	if err != nil || len(samples) == 0 {
		t.Fatalf("no samples: %v", err)
	}
	for _, file := range append(samples, "../../samples/bookstore.yaml") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`outriggermesh/bookstore:(\S+)`).FindAllStringSubmatch(string(text), -1) {
			if m[1] != version.Number {
				t.Errorf("%s names the image %s, want version %s", file, m[0], version.Number)
			}
		}
	}
}
