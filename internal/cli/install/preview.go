package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/v2/loader"
	release "helm.sh/helm/v4/pkg/release/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
)

// preview prints what applying would change. It applies every object to the API server as a dry
// run.
func (a *application) preview(ctx context.Context, stdout io.Writer) error {
	if err := a.applyCRDs(ctx, a.rendered.CRDs, a.chart.AppVersion(), true); err != nil {
		return err
	}
	if !a.forceConflicts {
		if err := a.keepChanges(ctx); err != nil {
			return err
		}
	}
	var failed []error
	count := make(map[string]int)
	wanted := make(map[string]bool)
	for _, obj := range a.objects {
		wanted[title(obj)] = true
		change, lines, err := a.compare(ctx, obj)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", title(obj), err))
			continue
		}
		count[change]++
		if change != "unchanged" {
			terminal.Fprintf(stdout, "%s: %s\n", title(obj), change)
		}
		for _, line := range lines {
			terminal.Fprintf(stdout, "    %s\n", line)
		}
	}
	for _, obj := range manifestObjects(a.last) {
		if wanted[title(obj)] || obj.GetAnnotations()["helm.sh/resource-policy"] == "keep" {
			continue
		}
		count["removed"]++
		terminal.Fprintf(stdout, "%s: removed\n", title(obj))
	}
	a.say("dry run: %d objects would be created, %d changed, %d removed, and %d stay unchanged; nothing was changed",
		count["created"], count["changed"], count["removed"], count["unchanged"])
	return errors.Join(failed...)
}

// manifestObjects returns the objects of a release.
func manifestObjects(rel *release.Release) []*unstructured.Unstructured {
	if rel == nil {
		return nil
	}
	var objects []*unstructured.Unstructured
	for text := range strings.SplitSeq("\n"+rel.Manifest, "\n---\n") {
		obj := &unstructured.Unstructured{}
		if yaml.Unmarshal([]byte(text), &obj.Object) == nil && obj.GetKind() != "" {
			objects = append(objects, obj)
		}
	}
	return objects
}

// compare returns how applying an object would change it.
func (a *application) compare(ctx context.Context, obj *unstructured.Unstructured) (change string, lines []string, err error) {
	live, err := a.exists(ctx, obj)
	if err != nil {
		return "", nil, err
	}
	after, err := a.tryApply(ctx, obj, true)
	switch {
	case live == nil && (meta.IsNoMatchError(err) || apierrors.IsNotFound(err)):
		// The installation creates its namespace or kind.
		return "created", nil, nil
	case err != nil:
		return "", nil, err
	case live == nil:
		return "created", nil, nil
	}
	lines = differences("", plain(live), plain(after))
	if len(lines) == 0 {
		return "unchanged", nil, nil
	}
	if obj.GetKind() == "Secret" {
		lines = nil
	}
	return "changed", lines, nil
}

// tryApply applies an object as Helm does, as a dry run.
func (a *application) tryApply(ctx context.Context, obj *unstructured.Unstructured, force bool) (*unstructured.Unstructured, error) {
	resource, err := a.resource(obj)
	if err != nil {
		return nil, err
	}
	owned := obj.DeepCopy()
	labels, annotations := owned.GetLabels(), owned.GetAnnotations()
	if labels == nil {
		labels = make(map[string]string)
	}
	if annotations == nil {
		annotations = make(map[string]string)
	}
	labels["app.kubernetes.io/managed-by"] = "Helm"
	annotations["meta.helm.sh/release-name"], annotations["meta.helm.sh/release-namespace"] = a.release, a.namespace
	owned.SetLabels(labels)
	owned.SetAnnotations(annotations)
	return resource.Apply(ctx, obj.GetName(), owned, metav1.ApplyOptions{FieldManager: helmManager, Force: force, DryRun: []string{metav1.DryRunAll}})
}

// plain returns an object without the metadata that the API server adds.
func plain(obj *unstructured.Unstructured) map[string]any {
	plain := obj.DeepCopy()
	for _, field := range []string{"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"} {
		unstructured.RemoveNestedField(plain.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(plain.Object, "status")
	return plain.Object
}

// differences returns a line for each field that differs.
func differences(path string, before, after any) []string {
	left, isMap := before.(map[string]any)
	right, areMaps := after.(map[string]any)
	if isMap && areMaps {
		keys := slices.Collect(maps.Keys(left))
		for key := range right {
			if _, both := left[key]; !both {
				keys = append(keys, key)
			}
		}
		slices.Sort(keys)
		var lines []string
		for _, key := range keys {
			lines = append(lines, differences(strings.TrimPrefix(path+"."+key, "."), left[key], right[key])...)
		}
		return lines
	}
	from, isList := before.([]any)
	to, areLists := after.([]any)
	if isList && areLists && len(from) == len(to) {
		var lines []string
		for i := range from {
			lines = append(lines, differences(fmt.Sprintf("%s[%d]", path, i), from[i], to[i])...)
		}
		return lines
	}
	was, is := short(before), short(after)
	if was == is {
		return nil
	}
	return []string{path + ": " + was + " -> " + is}
}

// short returns a value as one line.
func short(value any) string {
	if value == nil {
		return "none"
	}
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(text)
}

// requested reports whether the user wants to change a field: its new value differs from that of
// the last release.
func requested(before, obj *unstructured.Unstructured, path []string) bool {
	if before == nil {
		return false
	}
	was, _, _ := unstructured.NestedFieldNoCopy(before.Object, path...)
	wanted, _, _ := unstructured.NestedFieldNoCopy(obj.Object, path...)
	return short(was) != short(wanted)
}

// disown removes kubectl and other appliers from the owners of the objects' fields, so that the
// release can change the fields.
func (a *application) disown(ctx context.Context) error {
	for _, obj := range a.objects {
		live, err := a.exists(ctx, obj)
		if err != nil {
			return err
		}
		if live == nil {
			continue
		}
		var kept []metav1.ManagedFieldsEntry
		helms := false
		for _, f := range live.GetManagedFields() {
			if f.Subresource == "" && (f.Operation == metav1.ManagedFieldsOperationApply || strings.HasPrefix(f.Manager, "kubectl")) {
				// The next apply would give fields without an owner to a manager named
				// before-first-apply, so the first entry becomes the release's.
				if helms {
					continue
				}
				helms, f.Manager, f.Operation = true, helmManager, metav1.ManagedFieldsOperationApply
			}
			kept = append(kept, f)
		}
		if !helms {
			continue
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"managedFields": kept, "resourceVersion": live.GetResourceVersion()}})
		if err != nil {
			return err
		}
		resource, err := a.resource(obj)
		if err != nil {
			return err
		}
		if _, err := resource.Patch(ctx, obj.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: helmManager}); err != nil {
			return fmt.Errorf("taking %s over: %w", title(obj), err)
		}
	}
	return nil
}

// keepChanges finds fields of the MeshConfig that were changed in the cluster since the
// installation, and makes them values of the release, since users change the MeshConfig while
// the mesh runs. It returns an error, before anything is changed, if the upgrade changes such a
// field too, or if fields of other objects were changed.
func (a *application) keepChanges(ctx context.Context) error {
	if a.takeOwnership {
		return nil
	}
	before := make(map[string]*unstructured.Unstructured)
	for _, obj := range manifestObjects(a.last) {
		before[title(obj)] = obj
	}
	spec := make(map[string]any)
	var refused []string
	for _, obj := range a.objects {
		_, err := a.tryApply(ctx, obj, false)
		var status apierrors.APIStatus
		if !apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
			// Other errors occur again when the object is applied.
			continue
		}
		live, err := a.exists(ctx, obj)
		if err != nil || live == nil {
			return err
		}
		for _, cause := range status.Status().Details.Causes {
			path := strings.Split(strings.TrimPrefix(cause.Field, "."), ".")
			value, found, _ := unstructured.NestedFieldCopy(live.Object, path...)
			if obj.GetKind() != "MeshConfig" || path[0] != "spec" || !found || requested(before[title(obj)], obj, path) {
				refused = append(refused, fmt.Sprintf("%s, field %s: %s", title(obj), cause.Field, cause.Message))
				continue
			}
			if err := unstructured.SetNestedField(spec, value, path[1:]...); err != nil {
				return fmt.Errorf("%s, field %s: %w", title(obj), cause.Field, err)
			}
			a.say("%s: %s keeps the value %s, because it was changed in the cluster (%s)", title(obj), cause.Field, short(value), cause.Message)
		}
	}
	if len(refused) > 0 {
		return usage.Refusalf("others have changed fields that the release sets:\n  %s\ngive values with the same content, or overwrite the fields with --force-conflicts", strings.Join(refused, "\n  "))
	}
	if len(spec) == 0 {
		return nil
	}
	a.values = loader.MergeMaps(a.values, map[string]any{"meshConfig": map[string]any{"spec": spec}})
	return a.render(ctx)
}
