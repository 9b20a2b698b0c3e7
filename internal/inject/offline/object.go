package offline

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// object is one Kubernetes object of a document: the document itself, or an item
// of a List.
type object struct {
	kind, namespace, name string

	// path is the JSON pointer from the document to what pod was made of.
	path string
	// pod is the object's pod as JSON; nil if it has none.
	pod []byte
	// declares is set for a Namespace.
	declares *inject.Namespace
	// message says why there is no pod.
	message string

	reason inject.Reason
	err    error
}

// podPaths says where kinds hold a pod or a pod template. A kind of another group
// is another kind, though it may have the same name.
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

// maxListDepth bounds Lists within Lists, which kubectl takes apart too.
const maxListDepth = 10

// fields is a JSON object. Its names keep their case, as they do for the API
// server.
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

// decode reads a value that may be absent.
func decode(raw json.RawMessage, into any) error {
	if raw == nil {
		return nil
	}
	err := json.Unmarshal(raw, into)
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		return fmt.Errorf("%s where a %s must be", plain(wrong.Value), plain(wrong.Type.Kind().String()))
	}
	return err
}

// plain returns the word of YAML for a type of JSON or Go.
func plain(kind string) string {
	switch kind {
	case "object", "map":
		return "mapping"
	case "array", "slice":
		return "list"
	}
	return kind
}

// objectsOf returns the objects of a JSON value: an object, or the items of a List
// at any depth. The path is where the value stands in the document; a List of a
// known kind gives its items their kind where they name none.
func objectsOf(raw json.RawMessage, path string, listed schema.GroupVersionKind, depth int) []object {
	var o fields
	err := decode(raw, &o)
	if err == nil && o == nil {
		err = errors.New("null where a mapping must be")
	}
	if err != nil {
		return []object{{path: path, reason: ReasonInvalid, err: at(path, err)}}
	}
	gvk, err := kindOf(o, listed)
	if err != nil {
		return []object{{path: path, reason: ReasonInvalid, err: at(path, err)}}
	}
	if item, ok := itemKind(gvk); ok {
		var items []json.RawMessage
		err := decode(o["items"], &items)
		if depth == maxListDepth {
			err = fmt.Errorf("more than %d Lists within each other", maxListDepth)
		}
		if err != nil {
			return []object{{kind: gvk.Kind, path: path, reason: ReasonInvalid, err: at(path+"/items", err)}}
		}
		var objects []object
		for i, raw := range items {
			objects = append(objects, objectsOf(raw, path+"/items/"+strconv.Itoa(i), item, depth+1)...)
		}
		return objects
	}
	return []object{objectOf(o, gvk, path, raw)}
}

// at names the place in a document where an error is.
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

// itemKind returns the kind of a List's items, empty where each has its own, and
// whether the kind is a List that is looked into.
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
		return invalid(ReasonInvalid, path, err)
	}
	if result.namespace, err = metadata.text("namespace"); err != nil {
		return invalid(ReasonInvalid, path+"/metadata", err)
	}
	if result.name, err = metadata.text("name"); err != nil {
		return invalid(ReasonInvalid, path+"/metadata", err)
	}
	if result.name == "" {
		// What the API server will append is not known.
		if prefix, err := metadata.text("generateName"); err == nil && prefix != "" {
			result.name = prefix + "*"
		}
	}
	if gvk.GroupKind() == namespaceKind {
		result.declares = &inject.Namespace{Name: result.name}
		if err := decode(metadata["labels"], &result.declares.Labels); err != nil {
			return invalid(ReasonInvalid, path+"/metadata/labels", err)
		}
		if err := decode(metadata["annotations"], &result.declares.Annotations); err != nil {
			return invalid(ReasonInvalid, path+"/metadata/annotations", err)
		}
		return result
	}
	podPath, known := podPaths[gvk.GroupKind()]
	switch {
	case gvk.Kind == "" || gvk.Version == "":
		result.message = "it lacks kind or apiVersion"
		return result
	case !known:
		result.message = "no pod is known in kind " + gvk.GroupKind().String()
		return result
	}
	result.path = path + podPath
	template := o
	for name := range strings.SplitSeq(strings.TrimPrefix(podPath, "/"), "/") {
		if name == "" {
			break
		}
		if template, err = template.object(name); err != nil {
			return invalid(ReasonNoPod, path, err)
		}
	}
	if template["spec"] == nil {
		return invalid(ReasonNoPod, result.path, errors.New("there is no pod spec; render overlays and patches to whole objects first"))
	}
	if podPath == "" {
		result.pod = raw
		return result
	}
	pod := fields{"apiVersion": json.RawMessage(`"v1"`), "kind": json.RawMessage(`"Pod"`)}
	for _, name := range []string{"metadata", "spec"} {
		if part, ok := template[name]; ok {
			pod[name] = part
		}
	}
	if result.pod, err = json.Marshal(pod); err != nil {
		return invalid(ReasonInvalid, result.path, err)
	}
	return result
}

// namespaceOr returns the namespace in which the object's pods will be.
func (o *object) namespaceOr(other string) string { return cmp.Or(o.namespace, other, "default") }
