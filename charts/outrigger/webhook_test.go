package chart_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// absent means that the label is not set.
const absent = ""

// product returns all sets of labels that take one value for each key.
func product(values map[string][]string) []labels.Set {
	sets := []labels.Set{{}}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		var longer []labels.Set
		for _, set := range sets {
			for _, value := range values[key] {
				next := maps.Clone(set)
				if value != absent {
					next[key] = value
				}
				longer = append(longer, next)
			}
		}
		sets = longer
	}
	return sets
}

// TestWebhookSelectors tests namespaces and pods with every combination of the labels in
// the selectors. A revision's injector must be called once for the pods that its decision
// table accepts, and never for others.
func TestWebhookSelectors(t *testing.T) {
	revisions := []string{absent, "default", "canary", "prod", "other"}
	namespaces := product(map[string][]string{
		corev1.LabelMetadataName:          {"shop", "kube-system", namespace},
		"openservicemesh.io/monitored-by": {absent, "osm", "another"},
		"openservicemesh.io/rev":          revisions,
		"openservicemesh.io/ignore":       {absent, "true"},
		"istio-injection":                 {absent, "enabled", "disabled"},
		"istio.io/rev":                    revisions,
	})
	pods := product(map[string][]string{
		"openservicemesh.io/rev":  revisions,
		"istio.io/rev":            revisions,
		"sidecar.istio.io/inject": {absent, "true", "false"},
	})
	for _, istio := range []bool{false, true} {
		for _, names := range []struct{ revision, tags string }{{"default", ""}, {"canary", ""}, {"default", "prod"}, {"canary", "prod, stable"}} {
			revision := names.revision
			t.Run(fmt.Sprintf("istio=%t,revision=%s,tags=%s", istio, revision, names.tags), func(t *testing.T) {
				all := documents(t, fmt.Sprintf("{revision: %s, revisionTags: [%s], injector: {compat: {istio: %t}}}", revision, names.tags, istio))
				entries := selectors(t, all)
				injector := newInjector(t, all, revision)
				asked, failed := 0, 0
				for _, ns := range namespaces {
					entries := slices.DeleteFunc(slices.Clone(entries), func(e entry) bool { return !e.namespace.Matches(ns) })
					for _, pod := range pods {
						var matching []string
						for _, e := range entries {
							if e.pod.Matches(pod) {
								matching = append(matching, e.name)
							}
						}
						want := 0
						if injector.takes(ns, pod) {
							want = 1
						}
						asked += want
						if len(matching) != want {
							failed++
							if failed <= 10 {
								t.Errorf("namespace %v, pod %v: matched by %q, want %d", ns, pod, matching, want)
							}
						}
					}
				}
				if asked == 0 {
					t.Error("no pod is this injector's, so nothing was shown")
				}
				if failed > 10 {
					t.Errorf("and %d more", failed-10)
				}
			})
		}
	}
}

// entry is the selectors of one webhook.
type entry struct {
	name           string
	namespace, pod labels.Selector
}

func selectors(t *testing.T, all []document) []entry {
	t.Helper()
	var entries []entry
	for _, d := range all {
		config, ok := d.object.(*admissionregistrationv1.MutatingWebhookConfiguration)
		if !ok {
			continue
		}
		for i := range config.Webhooks {
			webhook := &config.Webhooks[i]
			ns, err := metav1.LabelSelectorAsSelector(webhook.NamespaceSelector)
			if err != nil {
				t.Fatal(err)
			}
			pod, err := metav1.LabelSelectorAsSelector(webhook.ObjectSelector)
			if err != nil {
				t.Fatal(err)
			}
			entries = append(entries, entry{webhook.Name, ns, pod})
		}
	}
	return entries
}

// injector is an injector with the chart's configuration.
type injector struct {
	*inject.Injector
	namespace *inject.Namespace
}

func newInjector(t *testing.T, all []document, revision string) *injector {
	t.Helper()
	name := "outrigger-injector"
	if revision != "default" {
		name += "-" + revision
	}
	object := find[*corev1.ConfigMap](all, "ConfigMap/"+name)
	if object == nil {
		t.Fatalf("there is no ConfigMap %s", name)
	}
	config, err := inject.NewConfig(object.Data["config"], object.Data["values"])
	if err != nil {
		t.Fatal(err)
	}
	i := &injector{}
	i.Injector = inject.New(inject.Options{
		MeshName: "osm", MeshNamespace: namespace, Revision: revision,
		Namespace: func(context.Context, string) (*inject.Namespace, error) { return i.namespace, nil },
		Log:       slog.New(slog.DiscardHandler),
	}, config)
	return i
}

// takes reports whether the injector accepts the pod as one of its own. The pod uses the
// host's network, which is the next rule.
func (i *injector) takes(ns, pod labels.Set) bool {
	i.namespace = &inject.Namespace{Name: ns[corev1.LabelMetadataName], Labels: ns}
	raw, err := json.Marshal(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: pod}, Spec: corev1.PodSpec{HostNetwork: true}})
	if err != nil {
		panic(err) // Labels are strings.
	}
	return i.Inject(context.Background(), inject.Request{Namespace: i.namespace.Name, Pod: raw}).Decision.Reason == "host_network"
}
