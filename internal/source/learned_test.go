package source_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestLearned reads what a person may write, and writes what it reads.
func TestLearned(t *testing.T) {
	names := func(names ...string) (out []mesh.Name) {
		for _, name := range names {
			out = append(out, mesh.Name{Namespace: "shop", Name: name})
		}
		return out
	}
	for _, tt := range []struct {
		text     string
		want     fact.Used
		problems int
		written  string
	}{
		{"", fact.Used{}, 0, ""},
		{" shop/cart \n\nshop/cart\nshop/bill", fact.Used{Services: names("bill", "cart")}, 0, "shop/bill\nshop/cart\n"},
		{"pod/shop/web-0.a\nshop/cart", fact.Used{Services: names("cart"), Pods: names("web-0.a")}, 0, "shop/cart\npod/shop/web-0.a\n"},
		{"*\nshop/cart", fact.Used{All: true, Services: names("cart")}, 0, "*\n"},
		{"cart\nshop/*\nshop/cart\n/x\nshop/a/b\nSHOP/x", fact.Used{Services: names("cart")}, 5, "shop/cart\n"},
	} {
		f, ok := source.Learned(&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "users", Name: fact.LearnedName}, Data: map[string]string{"web": tt.text},
		})
		learned, _ := f.Content.(*fact.Learned)
		if !ok || learned == nil {
			t.Fatal("there is no fact")
		}
		if diff := cmp.Diff(tt.want, learned.Accounts["web"]); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.text, diff)
		}
		if len(f.Problems) != tt.problems {
			t.Errorf("%q has the problems %v, want %d", tt.text, f.Problems, tt.problems)
		}
		if got := source.LearnedText(learned.Accounts["web"]); got != tt.written {
			t.Errorf("%q is written as %q, want %q", tt.text, got, tt.written)
		}
	}
	if _, ok := source.Learned(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "another"}}); ok {
		t.Error("another ConfigMap has a fact")
	}
}
