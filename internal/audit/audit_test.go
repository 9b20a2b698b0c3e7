package audit_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/outrigger-mesh/outrigger/internal/audit"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
)

// What the controller does with a cluster is tested with its command, against a
// real API server.

func TestWarnWritesAnEventOnce(t *testing.T) {
	c := fake.NewClientBuilder().WithScheme(kube.Scheme()).Build()
	pod := corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "cart", UID: "1"}
	namesake := pod
	namesake.UID = "2"
	for _, warning := range []struct {
		about        corev1.ObjectReference
		key, message string
	}{
		{pod, "", "first"},
		{pod, "", "the same, in other words"},
		{pod, "other", strings.Repeat("ä", 1000)},
		{namesake, "", "third"},
	} {
		if err := audit.Warn(t.Context(), c, warning.about, audit.ReasonNotInjected, warning.key, warning.message); err != nil {
			t.Fatal(err)
		}
	}
	var list corev1.EventList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	messages := make(map[string]bool)
	for _, e := range list.Items {
		if len(e.Message) > 1024 || !utf8.ValidString(e.Message) {
			t.Errorf("the message %q has %d bytes", e.Message, len(e.Message))
		}
		messages[e.Message] = true
	}
	want := map[string]bool{"first": true, strings.Repeat("ä", 510) + "…": true, "third": true}
	if diff := cmp.Diff(want, messages); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

func TestTrimPod(t *testing.T) {
	pod := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "cart", UID: "1", ResourceVersion: "7",
		Labels:        map[string]string{"app": "cart"},
		Annotations:   map[string]string{"openservicemesh.io/sidecar-status": `{"class":"envoy"}`, "other": "x"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
	}}
	got, err := audit.TrimPod(pod)
	if err != nil {
		t.Fatal(err)
	}
	want := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "cart", UID: "1", ResourceVersion: "7",
		Annotations: map[string]string{"openservicemesh.io/sidecar-status": ""},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
