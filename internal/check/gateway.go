package check

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/outrigger-mesh/outrigger/internal/page"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// gatherGateways reads the Gateways whose class is the mesh's. A cluster without Gateway API has none.
func (f *Facts) gatherGateways(ctx context.Context, objects dynamic.Interface) {
	all := func(resource string) ([]unstructured.Unstructured, error) {
		of := schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: resource}
		found, err := page.All[unstructured.Unstructured](ctx, objects.Resource(of).List, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return found, err
	}
	classes, err := all("gatewayclasses")
	if err != nil {
		f.gateways.err = err
		return
	}
	ours := make(map[string]bool)
	for i := range classes {
		controller, _, _ := unstructured.NestedString(classes[i].Object, "spec", "controllerName")
		ours[classes[i].GetName()] = controller == string(source.ControllerName)
	}
	found, err := all("gateways")
	f.gateways = read(slices.DeleteFunc(found, func(g unstructured.Unstructured) bool {
		class, _, _ := unstructured.NestedString(g.Object, "spec", "gatewayClassName")
		return !ours[class]
	}), err)
}

// gateways looks at the conditions of Gateways and their listeners.
func gateways(f *Facts, r *report) {
	if r.lost("the list of Gateways", f.gateways.err) {
		return
	}
	var outside, failing []problem
	for i := range f.gateways.value {
		g := &f.gateways.value[i]
		name := "Gateway/" + g.GetNamespace() + "/" + g.GetName()
		isMember := false
		for j := range f.members.value {
			isMember = isMember || f.members.value[j].Name == g.GetNamespace()
		}
		if !isMember {
			outside = append(outside, problem{name, "its namespace is not in the mesh, so nothing serves it"})
			continue
		}
		wrong := conditionsOf(g.Object, "", map[string]string{"Accepted": "True", "Programmed": "True"})
		listeners, _, _ := unstructured.NestedSlice(g.Object, "status", "listeners")
		for _, listener := range listeners {
			if l, ok := listener.(map[string]any); ok {
				wrong = append(wrong, conditionsOf(map[string]any{"status": l}, fmt.Sprintf("listener %v: ", l["name"]),
					map[string]string{"Accepted": "True", "Programmed": "True", "ResolvedRefs": "True", "Conflicted": "False"})...)
			}
		}
		if len(wrong) > 0 {
			failing = append(failing, problem{name, strings.Join(wrong, "; ")})
		}
	}
	r.each(Warning, outside, func(o string) string {
		namespace, _, _ := strings.Cut(strings.TrimPrefix(o, "Gateway/"), "/")
		return "outrigger namespace add " + namespace
	})
	r.each(Error, failing, func(o string) string {
		namespace, name, _ := strings.Cut(strings.TrimPrefix(o, "Gateway/"), "/")
		return "change what the message names; kubectl describe gateway " + name + " -n " + namespace + " has all conditions"
	})
	if len(r.findings) == 0 {
		r.ok("%s served", count(len(f.gateways.value), "Gateway"))
	}
}

// conditionsOf returns the reasons and messages of the conditions of a status that are not as wanted. Of
// several with the same message, which follow from one another, only the first is returned.
func conditionsOf(object map[string]any, prefix string, want map[string]string) []string {
	conditions, _, _ := unstructured.NestedSlice(object, "status", "conditions")
	var wrong []string
	said := make(map[any]bool)
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		kind, _ := condition["type"].(string)
		if status, ok := want[kind]; !ok || condition["status"] == status || said[condition["message"]] {
			continue
		}
		said[condition["message"]] = true
		wrong = append(wrong, fmt.Sprintf("%s%v: %v", prefix, condition["reason"], condition["message"]))
	}
	if len(conditions) == 0 {
		wrong = append(wrong, prefix+"it has no conditions: the controller has not seen it yet")
	}
	return wrong
}
