package inject_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestThreadsThatThereAreNot holds that whoever asks for worker threads that a proxy does
// not have is told so, whoever that is.
func TestThreadsThatThereAreNot(t *testing.T) {
	for _, test := range []struct {
		class, ofPod string
		ofMesh       int32
		want         []string
	}{
		{"pipy", "", 0, nil},
		{"pipy", "0", 4, nil},
		{"pipy", "1", 4, nil},
		{"pipy", "4", 0, []string{"concurrency_ignored"}},
		{"pipy", "", 4, []string{"concurrency_ignored"}},
		{"envoy", "4", 0, nil},
		{"haproxy", "", 4, nil},
	} {
		w := ordinary()
		w.configurator.mesh.Spec.Sidecar.Concurrency = test.ofMesh
		annotations := map[string]string{prefix + "sidecar-class": test.class}
		if test.ofPod != "" {
			annotations[prefix+"sidecar-concurrency"] = test.ofPod
		}
		if d := cmp.Diff(test.want, look(t, w, podAnnotated(annotations)).Warnings); d != "" {
			t.Errorf("%+v: the warnings differ (-want +got):\n%s", test, d)
		}
	}
}
