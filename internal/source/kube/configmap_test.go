package kube

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// TestFollowConfigMaps follows ConfigMaps of one name in all namespaces, and no others.
func TestFollowConfigMaps(t *testing.T) {
	t.Parallel()
	configMap := func(namespace, name, text string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: text}, Data: map[string]string{"web": text}}
	}
	client := fake.NewClientset(configMap("users", fact.LearnedName, "shop/cart"), configMap("users", "another", "shop/other"))
	applied, synced := make(chan fact.Fact, 8), make(chan struct{})
	go FollowConfigMaps(t.Context(), client, slog.New(slog.DiscardHandler), fact.LearnedName, source.Learned, func(facts ...fact.Fact) {
		for _, f := range facts {
			applied <- f
		}
	}, func() { close(synced) })
	want := func(namespace, service string) {
		t.Helper()
		select {
		case f := <-applied:
			learned, _ := f.Content.(*fact.Learned)
			if f.Object.String() != "ConfigMap "+namespace+"/"+fact.LearnedName || (learned != nil) != (service != "") ||
				learned != nil && !strings.Contains(source.LearnedText(learned.Accounts["web"]), service) {
				t.Errorf("the fact is %+v, want %q", f, service)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("there is no fact with %q", service)
		}
	}
	<-synced
	want("users", "shop/cart")
	if _, err := client.CoreV1().ConfigMaps("users").Update(t.Context(), configMap("users", fact.LearnedName, "shop/third"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	want("users", "shop/third")
	if _, err := client.CoreV1().ConfigMaps("shop").Create(t.Context(), configMap("shop", fact.LearnedName, "shop/fourth"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	want("shop", "shop/fourth")
	if err := client.CoreV1().ConfigMaps("users").Delete(t.Context(), fact.LearnedName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	want("users", "")
}
