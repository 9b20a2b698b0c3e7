package standard_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// TestAccepted creates each driver's pods on a real API server, which has more rules than
// the conformance suite, and patches the result again: the server's defaults must change
// nothing.
func TestAccepted(t *testing.T) {
	client, err := kubernetes.NewForConfig(apiserver.Start(t))
	if err != nil {
		t.Fatal(err)
	}
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}
	for _, name := range sidecar.Drivers() {
		for form, change := range map[string]func(*driver.InjectorContext){
			"native":             func(inj *driver.InjectorContext) { inj.Sidecar.Native = true },
			"classic":            func(*driver.InjectorContext) {},
			"classic that holds": func(inj *driver.InjectorContext) { inj.Sidecar.HoldApplication = true },
			"privileged":         func(inj *driver.InjectorContext) { inj.Sidecar.PrivilegedInit = true },
			"native on Windows": func(inj *driver.InjectorContext) {
				inj.PodOS, inj.Sidecar.Native, inj.Pod.Spec.OS = "windows", true, &corev1.PodOS{Name: corev1.Windows}
			},
			"classic on Windows": func(inj *driver.InjectorContext) {
				inj.PodOS, inj.Pod.Spec.OS = "windows", &corev1.PodOS{Name: corev1.Windows}
			},
		} {
			t.Run(name+"/"+form, func(t *testing.T) {
				inj := &driver.InjectorContext{
					Context: t.Context(),
					Pod: &corev1.Pod{
						ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
						Spec: corev1.PodSpec{
							ServiceAccountName: "default",
							Containers:         []corev1.Container{{Name: "web", Image: "example.com/web:1"}},
						},
					},
					PodNamespace: "default", OsmNamespace: "osm-system", PodOS: "linux", ContainerPullPolicy: corev1.PullIfNotPresent,
					Identity: mesh.Identity{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "default"},
					Sidecar:  driver.Sidecar{Class: name, Image: "example.com/proxy:1", InitImage: "example.com/init:1", LogLevel: "error"},
				}
				change(inj)
				if err := sidecar.Patch(inj); err != nil {
					t.Fatal(err)
				}
				created, err := client.CoreV1().Pods("default").Create(t.Context(), inj.Pod, dryRun)
				if err != nil {
					t.Fatal(err)
				}
				again := *inj
				again.Pod = created.DeepCopy()
				if err := sidecar.Patch(&again); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(created, again.Pod, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("patching the pod with the server's defaults changed it (-server +patched):\n%s", diff)
				}
			})
		}
	}
}
