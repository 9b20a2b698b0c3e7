package inject

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// sampleSpec is the agent spec with which templates are checked.
var sampleSpec = &agentspec.Spec{Command: []string{"/proxy"}}

// sampleContext returns the arguments with which a template is checked. The pod has no
// annotations, so templates must work without them.
func sampleContext(native bool) *driver.InjectorContext {
	return &driver.InjectorContext{
		Pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "sample-", Namespace: "sample"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}},
		},
		MeshName: "osm", OsmNamespace: "osm-system", PodNamespace: "sample", PodOS: "linux",
		ContainerPullPolicy: corev1.PullIfNotPresent,
		Identity:            mesh.Identity{TrustDomain: "cluster.local", Namespace: "sample", ServiceAccount: "sample"},
		Sidecar: driver.Sidecar{
			Class: "sample", Image: "proxy:sample", InitImage: "init:sample", LogLevel: "error",
			Native: native, HoldApplication: true,
		},
	}
}
