package golden_test

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/explain"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// bookstore returns the manifests of the sample, and more.
func bookstore(t *testing.T, more string) io.Reader {
	t.Helper()
	files, err := filepath.Glob("../../samples/bookstore-smi/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no samples: %v", err)
	}
	var all []string
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(content))
	}
	return strings.NewReader(strings.Join(append(all, more), "\n---\n"))
}

// TestOrigins lists the policies that the Views of the sample's pods are made of.
func TestOrigins(t *testing.T) {
	facts, _ := factsOf(t, bookstore(t, ""))
	snapshot := snapshotOf(facts)
	views := map[string]*mesh.View{}
	for _, view := range snapshot.Views.All() {
		views[view.Proxy.Identity.ServiceAccount] = view
	}
	for account, want := range map[string][]string{
		"bookbuyer":     {"Retry bookbuyer/bookstore", "TrafficSplit bookstore/bookstore", "UpstreamTrafficSetting bookstore/bookstore-v1"},
		"bookstore-v1":  {"IngressBackend bookstore/shop-window", "TrafficTarget bookstore/bookstore-v1", "UpstreamTrafficSetting bookwarehouse/bookwarehouse"},
		"bookwarehouse": {"Egress bookwarehouse/parcels", "Egress bookwarehouse/publishers", "TrafficTarget bookwarehouse/restock", "UpstreamTrafficSetting bookwarehouse/bookwarehouse"},
		"bookthief":     {},
	} {
		var got []string
		for _, object := range mesh.ObjectsOf(views[account].AllOrigins()) {
			if slices.Contains(source.Policies(), object.FullKind()) {
				got = append(got, object.String())
				if !slices.ContainsFunc(facts, func(f fact.Fact) bool { return f.Object == object }) {
					t.Errorf("there is no %+v", object)
				}
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s has the policies %q, want %q", account, got, want)
		}
	}
}

// TestProblemsOfOthers asks about a request that an object with the same name as one on its
// path, but of another kind, has nothing to do with.
func TestProblemsOfOthers(t *testing.T) {
	const egress = `apiVersion: policy.openservicemesh.io/v1alpha1
kind: Egress
metadata: {name: bookstore-v1, namespace: bookstore}
spec:
  sources: [{kind: ServiceAccount, name: nobody, namespace: bookstore}]
  hosts: [publisher.example]
  ports: [{number: 80, protocol: http}]
  matches: [{apiGroup: specs.smi-spec.io/v1alpha4, kind: HTTPRouteGroup, name: none}]
`
	facts, _ := factsOf(t, bookstore(t, egress))
	snapshot := snapshotOf(facts)
	asked, err := explain.NewQuestion("bookbuyer/bookbuyer", "bookstore/bookstore-v1", "GET", "/books", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := explain.Explain(snapshot, facts, source.Policies(), asked)
	if err != nil {
		t.Fatal(err)
	}
	if _, has := snapshot.Problems.Get("Egress bookstore/bookstore-v1"); !has {
		t.Error("the Egress has no Problem, so this test says nothing")
	}
	if answer.Verdict != explain.Allowed || len(answer.Problems) > 0 {
		t.Errorf("the request is %s, with the Problems %q", answer.Verdict, answer.Problems)
	}
}
