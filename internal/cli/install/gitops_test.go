package install_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

// TestGitOps installs the output of 'outrigger manifests' as Flux and Argo CD do, and has a
// controller and an injector write into the cluster. Neither tool may then see a difference.
func TestGitOps(t *testing.T) {
	for name, args := range map[string][]string{
		"default":       nil,
		"all":           {"--ha", "--set", "cni.enabled=true", "--set", "monitoring.prometheusRule.enabled=false"},
		"policies":      {"--set", "injector.mode=both"},
		"another class": {"--set", "osm.sidecarClass=haproxy", "--set", "osm.enablePermissiveTrafficPolicy=false"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			defer s.play(t)()
			desired := installed(t, "", args...)
			mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(s.kube.Discovery()))
			client := func(obj *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
				mapping, err := mapper.RESTMapping(obj.GroupVersionKind().GroupKind(), obj.GroupVersionKind().Version)
				if err != nil {
					mapper.Reset()
					return nil, err
				}
				if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
					return s.objects.Resource(mapping.Resource).Namespace(obj.GetNamespace()), nil
				}
				return s.objects.Resource(mapping.Resource), nil
			}
			apply := func(obj *unstructured.Unstructured, options metav1.PatchOptions) (*unstructured.Unstructured, error) {
				at, err := client(obj)
				if err != nil {
					return nil, err
				}
				text, err := json.Marshal(obj)
				if err != nil {
					return nil, err
				}
				options.FieldManager = "kustomize-controller"
				return at.Patch(t.Context(), obj.GetName(), types.ApplyPatchType, text, options)
			}
			for _, obj := range desired {
				eventuallyApplied(t, obj, func() error {
					_, err := apply(obj, metav1.PatchOptions{})
					return err
				})
			}
			s.process(t, "outrigger-controller", "controller", "--bind-address", "127.0.41.8", "--identity-listen", ":0", "--debug-listen", ":0", "--leader-elect")
			s.process(t, "outrigger-injector", "injector", "--listen", freeAddress(t), "--shutdown-delay", "0s", "--template-dir", "")
			s.awaitBundle(t)

			for _, obj := range desired {
				id := fmt.Sprintf("%s %s/%s", obj.GetKind(), obj.GetNamespace(), obj.GetName())
				at, err := client(obj)
				if err != nil {
					t.Fatalf("%s: %v", id, err)
				}
				live, err := at.Get(t.Context(), obj.GetName(), metav1.GetOptions{})
				if err != nil {
					t.Fatalf("%s: %v", id, err)
				}
				// Argo CD compares the fields of the manifest with the live ones.
				for _, difference := range drift("", obj.Object, live.Object) {
					t.Errorf("%s: Argo CD sees a difference at %s", id, difference)
				}
				// Flux applies the manifest again, without effect.
				again, err := apply(obj, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
				if apierrors.IsConflict(err) {
					t.Errorf("%s: Flux finds fields that somebody else has: %v", id, err)
					continue
				}
				if err != nil {
					t.Fatalf("%s: %v", id, err)
				}
				for _, o := range []*unstructured.Unstructured{live, again} {
					o.SetManagedFields(nil)
					unstructured.RemoveNestedField(o.Object, "status")
				}
				if diff := cmp.Diff(live.Object, again.Object); diff != "" {
					t.Errorf("%s: Flux changes it back (-live +applied again):\n%s", id, diff)
				}
			}
		})
	}
}

// eventuallyApplied repeats an application, since the kinds of CRDs are not served at once.
func eventuallyApplied(t *testing.T, obj *unstructured.Unstructured, apply func() error) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		err := apply()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s %s/%s: %v", obj.GetKind(), obj.GetNamespace(), obj.GetName(), err)
		}
	}
}

// awaitBundle waits until all webhooks of the injector have a CA.
func (s *stage) awaitBundle(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		list, err := s.kube.AdmissionregistrationV1().MutatingWebhookConfigurations().List(t.Context(), metav1.ListOptions{})
		missing := err != nil || len(list.Items) == 0
		if !missing {
			for _, configuration := range list.Items {
				for _, webhook := range configuration.Webhooks {
					missing = missing || len(webhook.ClientConfig.CABundle) == 0
				}
			}
		}
		if !missing {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the injector has not published its CA: %v", err)
		}
	}
}

// drift returns the paths of the fields of the desired value that the live one does not have, or
// has otherwise.
func drift(path string, desired, live any) []string {
	switch desired := desired.(type) {
	case map[string]any:
		fields, ok := live.(map[string]any)
		if !ok {
			return []string{path}
		}
		var all []string
		for _, name := range slices.Sorted(maps.Keys(desired)) {
			value, found := fields[name]
			if !found {
				all = append(all, path+"."+name)
				continue
			}
			all = append(all, drift(path+"."+name, desired[name], value)...)
		}
		return all
	case []any:
		elements, ok := live.([]any)
		if !ok || len(elements) != len(desired) {
			return []string{path}
		}
		var all []string
		for i := range desired {
			all = append(all, drift(fmt.Sprintf("%s[%d]", path, i), desired[i], elements[i])...)
		}
		return all
	default:
		if !cmp.Equal(desired, live) {
			return []string{strings.TrimPrefix(fmt.Sprintf("%s (%v instead of %v)", path, live, desired), ".")}
		}
		return nil
	}
}
