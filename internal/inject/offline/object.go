package offline

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// object is one Kubernetes object of a document: the document itself, or an item
// of a List.
type object struct {
	kind, namespace, name string

	// path is the JSON pointer from the document to the pod or pod template.
	path string
	// pod is the object's pod as JSON; nil if it has none.
	pod []byte
	// owner is the name of the object if its controller creates the pods, without the suffix
	// that the API server appends to a generateName; empty for a pod.
	owner string
	// declares is set for a Namespace.
	declares *inject.Namespace
	// message says why the object has no pod.
	message string
	// misplaced are the names of the mesh's labels and annotations that the object has and
	// its pod template lacks.
	misplaced []string

	reason inject.Reason
	err    error
}

// podPaths maps kinds to the JSON pointer of their pod or pod template.
var podPaths = map[schema.GroupKind]string{
	{Kind: "Pod"}:                        "",
	{Kind: "PodTemplate"}:                "/template",
	{Kind: "ReplicationController"}:      "/spec/template",
	{Group: "apps", Kind: "Deployment"}:  "/spec/template",
	{Group: "apps", Kind: "DaemonSet"}:   "/spec/template",
	{Group: "apps", Kind: "ReplicaSet"}:  "/spec/template",
	{Group: "apps", Kind: "StatefulSet"}: "/spec/template",
	{Group: "batch", Kind: "Job"}:        "/spec/template",
	{Group: "batch", Kind: "CronJob"}:    "/spec/jobTemplate/spec/template",
}

var namespaceKind = schema.GroupKind{Kind: "Namespace"}

// maxListDepth bounds Lists nested in Lists, which kubectl also accepts.
const maxListDepth = 10

// fields is a JSON object. As for the API server, its names are case-sensitive.
type fields map[string]json.RawMessage

func (o fields) text(name string) (string, error) {
	var s string
	if err := decode(o[name], &s); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

func (o fields) object(name string) (fields, error) {
	var f fields
	if err := decode(o[name], &f); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return f, nil
}

// decode decodes a value that may be absent.
func decode(raw json.RawMessage, into any) error {
	if raw == nil {
		return nil
	}
	err := json.Unmarshal(raw, into)
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		return fmt.Errorf("%s instead of a %s", plain(wrong.Value), plain(wrong.Type.Kind().String()))
	}
	return err
}

// plain returns YAML's name for a type of JSON or Go.
func plain(kind string) string {
	switch kind {
	case "object", "map":
		return "mapping"
	case "array", "slice":
		return "list"
	}
	return kind
}

// objectsOf returns the objects in a JSON value: the value itself, or the items of a
// List at any depth. The path points at the value in the document. Listed is the kind
// of items that name none, from the kind of their List.
func objectsOf(raw json.RawMessage, path string, listed schema.GroupVersionKind, depth int) []object {
	var o fields
	err := decode(raw, &o)
	if err == nil && o == nil {
		err = errors.New("null instead of a mapping")
	}
	if err != nil {
		return []object{{path: path, reason: reasonInvalid, err: at(path, err)}}
	}
	gvk, err := kindOf(o, listed)
	if err != nil {
		return []object{{path: path, reason: reasonInvalid, err: at(path, err)}}
	}
	if item, ok := itemKind(gvk); ok {
		var items []json.RawMessage
		err := decode(o["items"], &items)
		if depth == maxListDepth {
			err = fmt.Errorf("more than %d nested Lists", maxListDepth)
		}
		if err != nil {
			return []object{{kind: gvk.Kind, path: path, reason: reasonInvalid, err: at(path+"/items", err)}}
		}
		var objects []object
		for i, raw := range items {
			objects = append(objects, objectsOf(raw, path+"/items/"+strconv.Itoa(i), item, depth+1)...)
		}
		return objects
	}
	return []object{objectOf(o, gvk, path, raw)}
}

// at prefixes an error with its path in the document.
func at(path string, err error) error {
	if path == "" {
		return err
	}
	return fmt.Errorf("%s: %w", path, err)
}

func kindOf(o fields, listed schema.GroupVersionKind) (schema.GroupVersionKind, error) {
	apiVersion, err := o.text("apiVersion")
	if err != nil {
		return listed, err
	}
	kind, err := o.text("kind")
	if err != nil {
		return listed, err
	}
	if apiVersion == "" && kind == "" {
		return listed, nil
	}
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return listed, fmt.Errorf("apiVersion: %w", err)
	}
	return gv.WithKind(kind), nil
}

// itemKind returns the kind of a List's items, empty if each has its own, and whether
// the kind is a List whose items are read.
func itemKind(gvk schema.GroupVersionKind) (schema.GroupVersionKind, bool) {
	kind, isList := strings.CutSuffix(gvk.Kind, "List")
	if !isList {
		return gvk, false
	}
	if kind == "" {
		return schema.GroupVersionKind{}, gvk.Group == ""
	}
	gvk.Kind = kind
	_, known := podPaths[gvk.GroupKind()]
	return gvk, known || gvk.GroupKind() == namespaceKind
}

func objectOf(o fields, gvk schema.GroupVersionKind, path string, raw json.RawMessage) object {
	result := object{kind: gvk.Kind}
	invalid := func(reason inject.Reason, where string, err error) object {
		result.reason, result.err = reason, at(where, err)
		return result
	}
	metadata, err := o.object("metadata")
	if err != nil {
		return invalid(reasonInvalid, path, err)
	}
	if result.namespace, err = metadata.text("namespace"); err != nil {
		return invalid(reasonInvalid, path+"/metadata", err)
	}
	if result.name, err = metadata.text("name"); err != nil {
		return invalid(reasonInvalid, path+"/metadata", err)
	}
	if result.name == "" {
		// The API server appends a random suffix.
		if prefix, err := metadata.text("generateName"); err == nil && prefix != "" {
			result.name = prefix + "*"
		}
	}
	if gvk.GroupKind() == namespaceKind {
		result.declares = &inject.Namespace{Name: result.name}
		if err := decode(metadata["labels"], &result.declares.Labels); err != nil {
			return invalid(reasonInvalid, path+"/metadata/labels", err)
		}
		if err := decode(metadata["annotations"], &result.declares.Annotations); err != nil {
			return invalid(reasonInvalid, path+"/metadata/annotations", err)
		}
		return result
	}
	podPath, known := podPaths[gvk.GroupKind()]
	switch {
	case gvk.Kind == "" || gvk.Version == "":
		result.message = "it lacks kind or apiVersion"
		return result
	case !known && holdsPods(raw):
		result.message = "kind " + gvk.GroupKind().String() + " is not known here; the webhook injects its pods when they are created"
		return result
	case !known:
		result.message = "kind " + gvk.GroupKind().String() + " has no pod template"
		return result
	}
	result.path = path + podPath
	template := o
	for name := range strings.SplitSeq(strings.TrimPrefix(podPath, "/"), "/") {
		if name == "" {
			break
		}
		if template, err = template.object(name); err != nil {
			return invalid(reasonNoPod, path, err)
		}
	}
	if template["spec"] == nil {
		return invalid(reasonNoPod, result.path, errors.New("there is no pod spec; render overlays and patches to whole objects first"))
	}
	if podPath == "" {
		result.pod = raw
		return result
	}
	result.owner = strings.TrimSuffix(result.name, "-*")
	result.misplaced = misplaced(metadata, template)
	pod := fields{"apiVersion": json.RawMessage(`"v1"`), "kind": json.RawMessage(`"Pod"`)}
	for _, name := range []string{"metadata", "spec"} {
		if part, ok := template[name]; ok {
			pod[name] = part
		}
	}
	if result.pod, err = json.Marshal(pod); err != nil {
		return invalid(reasonInvalid, result.path, err)
	}
	return result
}

// meshPrefix begins the names of the mesh's labels and annotations.
const meshPrefix = "openservicemesh.io/"

// misplaced returns the names of the mesh's labels and annotations in the metadata of a workload
// that its pod template has not.
func misplaced(metadata, template fields) []string {
	names := func(metadata fields) map[string]bool {
		set := make(map[string]bool)
		for _, kind := range []string{"labels", "annotations"} {
			// The engine reports values of another type.
			all, _ := metadata.object(kind)
			for name := range all {
				if strings.HasPrefix(name, meshPrefix) {
					set[name] = true
				}
			}
		}
		return set
	}
	own := names(metadata)
	if len(own) == 0 {
		return nil
	}
	inner, _ := template.object("metadata")
	for name := range names(inner) {
		delete(own, name)
	}
	return slices.Sorted(maps.Keys(own))
}

// holdsPods reports whether an object has a pod template somewhere.
func holdsPods(raw json.RawMessage) bool {
	if !bytes.Contains(raw, []byte(`"containers"`)) {
		return false
	}
	var o map[string]any
	if json.Unmarshal(raw, &o) != nil {
		return false
	}
	for _, value := range o {
		if holdsTemplate(value) {
			return true
		}
	}
	return false
}

// holdsTemplate reports whether a value is a pod template or contains one.
func holdsTemplate(value any) bool {
	switch v := value.(type) {
	case map[string]any:
		if spec, ok := v["spec"].(map[string]any); ok {
			if containers, ok := spec["containers"].([]any); ok && len(containers) > 0 {
				return true
			}
		}
		for _, inner := range v {
			if holdsTemplate(inner) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, holdsTemplate)
	}
	return false
}

// namespaceOr returns the namespace in which the object's pods will run.
func (o *object) namespaceOr(other string) string { return cmp.Or(o.namespace, other, "default") }
