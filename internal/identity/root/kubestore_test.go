package root_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/outrigger-mesh/outrigger/internal/identity/root"
	"github.com/outrigger-mesh/outrigger/internal/identity/store"
)

// TestKubeStoreCreatesNothing checks that Secrets are only filled, since the right to create
// Secrets would allow creating tokens of other service accounts, and that the error says
// how to create a missing one.
func TestKubeStoreCreatesNothing(t *testing.T) {
	client := fake.NewClientset()
	r := run(t, root.Options{Secrets: store.NewKube(client, "osm-system", discard())})
	const wayOut = "so create it: kubectl create secret generic outrigger-ca-state --namespace osm-system"
	eventually(t, func() string {
		if fault := fmt.Sprint(r.Fault()); !strings.Contains(fault, wayOut) {
			return "without a Secret the roots say " + fault
		}
		return ""
	})
	for _, name := range []string{root.DefaultSecret, root.DefaultState} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "osm-system", Name: name, Labels: map[string]string{"keep": "me"}}}
		if _, err := client.CoreV1().Secrets("osm-system").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r.Trigger()
	var name string
	eventually(t, func() string { name, _ = r.now(t); return map[bool]string{true: "nothing signs"}[name == ""] })
	r.noProblems(t)
	for _, name := range []string{root.DefaultSecret, root.DefaultState} {
		secret, err := client.CoreV1().Secrets("osm-system").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(secret.Data) == 0 || secret.Labels["keep"] != "me" {
			t.Errorf("Secret %s has %d keys and the labels %v", name, len(secret.Data), secret.Labels)
		}
	}
}
