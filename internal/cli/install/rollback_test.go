package install_test

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testRollback upgrades to a version that does not become ready, and checks that the former one
// is restored.
func (s *stage) testRollback(t *testing.T) {
	defer s.play(t)()
	s.must(t, "upgrade", "--set", "osm.injector.replicaCount=2")
	_, _, err := s.run(t, "upgrade", "--timeout", "3s", "--set", "osm.injector.replicaCount=3,osm.sidecarClass=haproxy")
	if err == nil || !strings.Contains(err.Error(), "rolled back") || !strings.Contains(err.Error(), "with the status deployed") {
		t.Errorf("an upgrade that does not become ready ends with: %v", err)
	}
	injector, err := s.kube.AppsV1().Deployments("osm-system").Get(t.Context(), "outrigger-injector", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if class := s.meshConfig(t, "spec", "sidecar", "sidecarClass"); *injector.Spec.Replicas != 2 || class != "envoy" {
		t.Errorf("after the rollback the injector has %d replicas and the class is %v, want 2 and envoy", *injector.Spec.Replicas, class)
	}

	stdout, _ := s.must(t, "upgrade", "-o", "json")
	var done struct {
		Release, Status string
		Objects         []string
	}
	if err := json.Unmarshal([]byte(stdout), &done); err != nil || done.Release != "outrigger" || done.Status != "deployed" || len(done.Objects) < 10 {
		t.Errorf("-o json prints %.300s (%v)", stdout, err)
	}
}
