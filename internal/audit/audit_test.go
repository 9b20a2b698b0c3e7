package audit_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/outrigger-mesh/outrigger/internal/audit"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
)

// Tests with a real API server are in internal/cli, with the controller's command.

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

// TestWarnWithoutNamespace holds that an Event about a cluster-scoped object is where the API server takes it.
func TestWarnWithoutNamespace(t *testing.T) {
	c := fake.NewClientBuilder().WithScheme(kube.Scheme()).Build()
	class := corev1.ObjectReference{Kind: "GatewayClass", Name: "outrigger-envoy", UID: "1"}
	if err := audit.Warn(t.Context(), c, class, audit.ReasonNotInjected, "", "it is wrong"); err != nil {
		t.Fatal(err)
	}
	var list corev1.EventList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || list.Items[0].Namespace != "default" || list.Items[0].InvolvedObject != class {
		t.Errorf("the Events are %+v, want one about the class in the namespace default", list.Items)
	}
}
