package golden_test

import (
	"maps"
	"testing"
)

// TestMetadataChangesNothing adds to all objects what tools write into metadata, such as Helm, Argo
// CD and kubectl. No View changes, so no proxy gets anything.
func TestMetadataChangesNothing(t *testing.T) {
	for name, text := range map[string]string{"lists": lists, "routes": routed} {
		t.Run(name, func(t *testing.T) {
			objects := objectsOf(t, []byte(text))
			before := snapshotWith(t, objects)
			for i, o := range objects {
				metadata := maps.Clone(o["metadata"].(manifestObject))
				annotations := manifestObject{
					"kubectl.kubernetes.io/last-applied-configuration": "{}", "argocd.argoproj.io/tracking-id": "shop:apps", "meta.helm.sh/release-name": "shop",
				}
				labels := manifestObject{"helm.sh/chart": "shop-1.2.3", "argocd.argoproj.io/instance": "shop"}
				if own, ok := metadata["labels"].(manifestObject); ok {
					maps.Copy(labels, own)
				}
				metadata["annotations"], metadata["labels"] = annotations, labels
				metadata["resourceVersion"], metadata["generation"] = "12345", 7
				metadata["managedFields"] = []any{manifestObject{"manager": "helm", "operation": "Apply", "time": "2026-11-28T12:00:00Z"}}
				objects[i] = maps.Clone(o)
				objects[i]["metadata"] = metadata
			}
			after := snapshotWith(t, objects)
			for uid, view := range before.Views.All() {
				now, ok := after.Views.Get(uid)
				if !ok || now.Digest() != view.Digest() {
					t.Errorf("the View of %s changes", view.Proxy.Name)
				}
			}
		})
	}
}
