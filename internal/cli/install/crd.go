package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	semver "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/dynamic"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"sigs.k8s.io/yaml"
)

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

const (
	// crdManager is the field manager of the CRDs, which are not part of the Helm release.
	crdManager   = "outrigger"
	versionLabel = "app.kubernetes.io/version"
	// establishing is how long the API server may take to serve a new kind.
	establishing = 30 * time.Second
)

// crdWork applies CRDs and counts the results.
type crdWork struct {
	t       *target
	crds    dynamic.ResourceInterface
	version string
	dryRun  bool

	created, changed, same int
}

// applyCRDs applies CRDs, given as YAML, and waits until their kinds are served. It keeps
// versions in which objects may be stored, and CRDs of newer releases.
func (t *target) applyCRDs(ctx context.Context, crds []string, version string, dryRun bool) error {
	w := crdWork{t: t, crds: t.objects.Resource(crdResource), version: version, dryRun: dryRun}
	var wanted, there []*unstructured.Unstructured
	// All are checked before one is changed.
	for _, text := range crds {
		crd := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &crd.Object); err != nil {
			return fmt.Errorf("reading a CRD of the chart: %w", err)
		}
		live, err := w.recognise(ctx, crd)
		if err != nil {
			return fmt.Errorf("CRD %s: %w", crd.GetName(), err)
		}
		wanted, there = append(wanted, crd), append(there, live)
	}
	for i, crd := range wanted {
		if err := w.apply(ctx, crd, there[i]); err != nil {
			return fmt.Errorf("CRD %s: %w", crd.GetName(), err)
		}
	}
	would := ""
	if dryRun {
		would = "would be "
	}
	t.say("CRDs: %s%d created, %d changed, %d unchanged", would, w.created, w.changed, w.same)
	if dryRun {
		return nil
	}
	for _, crd := range wanted {
		if err := w.established(ctx, crd.GetName()); err != nil {
			return err
		}
	}
	t.mapper.Reset()
	return nil
}

// recognise returns the existing CRD, or nil. It returns an error for another project's CRD of
// that name.
func (w *crdWork) recognise(ctx context.Context, crd *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	live, err := w.crds.Get(ctx, crd.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, field := range [][]string{{"spec", "group"}, {"spec", "scope"}, {"spec", "names", "kind"}, {"spec", "names", "plural"}} {
		want, _, _ := unstructured.NestedString(crd.Object, field...)
		if got, _, _ := unstructured.NestedString(live.Object, field...); got != want {
			return nil, usage.Refusalf("its %s is %q, not %q, so it belongs to other software; find out to which, and delete it first, with all its objects", strings.Join(field, "."), got, want)
		}
	}
	return live, nil
}

func (w *crdWork) apply(ctx context.Context, crd, live *unstructured.Unstructured) error {
	labels := crd.GetLabels()
	if labels == nil {
		labels = make(map[string]string)
	}
	labels["app.kubernetes.io/name"], labels[versionLabel] = "outrigger", w.version
	crd.SetLabels(labels)

	if live == nil {
		w.created++
		_, err := w.patch(ctx, crd, false)
		return err
	}
	if newer(live.GetLabels()[versionLabel], w.version) && live.GetLabels()["app.kubernetes.io/name"] == "outrigger" {
		w.t.say("CRD %s: it has the newer version %s and is not changed, because stored objects may need it", crd.GetName(), live.GetLabels()[versionLabel])
		w.same++
		return nil
	}
	if err := keepStored(crd, live); err != nil {
		return err
	}
	if err := w.unhook(ctx, live); err != nil {
		return err
	}
	after, err := w.patch(ctx, crd, false)
	if owners := conflicting(err); len(owners) > 0 {
		w.t.say("CRD %s: taking it over from %s; its objects stay", crd.GetName(), strings.Join(owners, ", "))
		after, err = w.patch(ctx, crd, true)
	}
	if err != nil {
		return err
	}
	before, _, _ := unstructured.NestedMap(live.Object, "spec")
	now, _, _ := unstructured.NestedMap(after.Object, "spec")
	if fmt.Sprint(before) == fmt.Sprint(now) {
		w.same++
	} else {
		w.changed++
	}
	return nil
}

func (w *crdWork) patch(ctx context.Context, crd *unstructured.Unstructured, force bool) (*unstructured.Unstructured, error) {
	options := metav1.ApplyOptions{FieldManager: crdManager, Force: force}
	if w.dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	return w.crds.Apply(ctx, crd.GetName(), crd, options)
}

// keepStored adds those versions of the live CRD in which objects are stored to the new one.
func keepStored(crd, live *unstructured.Unstructured) error {
	stored, _, err := unstructured.NestedStringSlice(live.Object, "status", "storedVersions")
	if err != nil {
		return err
	}
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	if err != nil {
		return err
	}
	has, _, err := unstructured.NestedSlice(live.Object, "spec", "versions")
	if err != nil {
		return err
	}
	named := func(name string) func(any) bool {
		return func(version any) bool {
			of, ok := version.(map[string]any)
			return ok && of["name"] == name
		}
	}
	for _, name := range stored {
		at := slices.IndexFunc(has, named(name))
		if at < 0 || slices.ContainsFunc(versions, named(name)) {
			continue
		}
		version := has[at].(map[string]any)
		version["storage"] = false
		versions = append(versions, version)
	}
	return unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions")
}

// unhook removes a CRD's conversion webhook, such as that of Open Service Mesh's bootstrap:
// without its server no object of the kind could be read. Stored objects are not changed.
func (w *crdWork) unhook(ctx context.Context, live *unstructured.Unstructured) error {
	strategy, _, _ := unstructured.NestedString(live.Object, "spec", "conversion", "strategy")
	if strategy != string(apiextensionsv1.WebhookConverter) {
		return nil
	}
	service, _, _ := unstructured.NestedString(live.Object, "spec", "conversion", "webhook", "clientConfig", "service", "name")
	w.t.say("CRD %s: the webhook %s no longer converts its versions", live.GetName(), service)
	if w.dryRun {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"conversion": map[string]any{"strategy": "None", "webhook": nil}}})
	if err != nil {
		return err
	}
	_, err = w.crds.Patch(ctx, live.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: crdManager})
	return err
}

// established waits until the kind of a CRD is served.
func (w *crdWork) established(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, establishing, fmt.Errorf("CRD %s: the API server did not serve it within %s", name, establishing))
	defer cancel()
	for {
		live, err := w.crds.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("CRD %s: %w", name, errors.Join(err, context.Cause(ctx)))
		}
		conditions, _, _ := unstructured.NestedSlice(live.Object, "status", "conditions")
		refused := ""
		for _, c := range conditions {
			condition, _ := c.(map[string]any)
			switch {
			case condition["type"] == "Established" && condition["status"] == "True":
				// The CRD may be established although a short name was refused.
				return nil
			case condition["type"] == "NamesAccepted" && condition["status"] == "False":
				refused, _ = condition["message"].(string)
			}
		}
		if refused != "" {
			return fmt.Errorf("CRD %s: %s", name, refused)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

var managerName = regexp.MustCompile(`conflict with "([^"]*)"`)

// conflicting returns the owners of the fields in conflict.
func conflicting(err error) []string {
	var status apierrors.APIStatus
	if !apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	var owners []string
	for _, cause := range status.Status().Details.Causes {
		if m := managerName.FindStringSubmatch(cause.Message); m != nil && !slices.Contains(owners, m[1]) {
			owners = append(owners, m[1])
		}
	}
	return owners
}

// newer reports whether a version is newer than another. Invalid versions are not.
func newer(a, b string) bool {
	left, err := semver.ParseSemantic(a)
	if err != nil {
		return false
	}
	right, err := semver.ParseSemantic(b)
	return err == nil && right.LessThan(left)
}
