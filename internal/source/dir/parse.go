package dir

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/manifest"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	// maxListDepth limits nested Lists.
	maxListDepth = 10
	// maxProblems is the number of Problems after which the rest of a file is ignored.
	maxProblems = 100
)

// parser parses one file.
type parser struct {
	*codec
	// title is the file's name in Problems.
	title string
	file  *file
}

// parse parses the text of a file.
func (c *codec) parse(title string, text []byte) *file {
	p := &parser{codec: c, title: title, file: &file{}}
	for _, d := range manifest.Split(text) {
		if d.Format == manifest.None {
			continue
		}
		content, line := d.Content()
		if len(p.file.problems) >= maxProblems {
			p.file.fail(fileRef(title), "%s:%d: the rest of the file is ignored, because there are too many errors before it", title, line)
			break
		}
		if d.Format == manifest.YAML {
			var err error
			if content, err = toJSON(content, line); err != nil {
				p.file.fail(fileRef(title), "%s: in the document that begins on line %d: %s", title, line, plain(err))
				continue
			}
		}
		if string(content) != "null" {
			p.value(content, fmt.Sprintf("%s:%d", title, line), schema.GroupVersionKind{}, 0)
		}
	}
	return p.file
}

// head identifies an object.
type head struct {
	gvk             schema.GroupVersionKind
	namespace, name string
}

// ref returns the reference to the object.
func (h head) ref() mesh.ObjectRef {
	return mesh.ObjectRef{APIVersion: h.gvk.GroupVersion().String(), Kind: h.gvk.Kind, Namespace: h.namespace, Name: h.name}
}

// refOf returns the reference to the object if it is complete, otherwise to the file.
func (p *parser) refOf(h head) mesh.ObjectRef {
	if h.gvk.Version == "" || h.gvk.Kind == "" || h.name == "" {
		return fileRef(p.title)
	}
	return h.ref()
}

// value parses an object, or the items of a List. Listed is the kind of items that don't
// have one.
func (p *parser) value(raw json.RawMessage, where string, listed schema.GroupVersionKind, depth int) {
	var fields map[string]json.RawMessage
	err := json.Unmarshal(raw, &fields)
	if err != nil || fields == nil {
		p.file.fail(fileRef(p.title), "%s: it is not a mapping", where)
		return
	}
	h, err := headOf(fields, listed)
	if err != nil {
		p.file.fail(p.refOf(h), "%s: %s", where, plain(err))
		return
	}
	if kind, ok := strings.CutSuffix(h.gvk.Kind, "List"); ok && (h.gvk.GroupKind() == schema.GroupKind{Kind: "List"} || p.reads(h.gvk.Group, kind)) {
		item := schema.GroupVersionKind{}
		if kind != "" {
			item = h.gvk.GroupVersion().WithKind(kind)
		}
		p.list(fields["items"], where, item, depth)
		return
	}
	switch {
	case h.gvk.GroupKind() == schema.GroupKind{Kind: "ConfigMap"} && h.name != fact.TokenKeysName:
		p.file.unread = append(p.file.unread, h.gvk.GroupKind())
	case h.gvk.GroupKind() == schema.GroupKind{Kind: "Secret"} && !isCertificate(fields):
		p.file.unread = append(p.file.unread, h.gvk.GroupKind())
	case p.reads(h.gvk.Group, h.gvk.Kind):
		p.object(fields, h, where)
	case p.ours(h.gvk.Group):
		p.file.unknown(h, "%s: there is no kind %s in %s; correct its name, or remove the object, which has no effect", where, h.gvk.Kind, h.gvk.Group)
	case isOfMeshes(h.gvk.Group):
		p.file.unknown(h, "%s: %s of %s is not supported and has no effect; %s", where, h.gvk.Kind, h.gvk.Group, insteadOf(h.gvk))
	default:
		p.file.unread = append(p.file.unread, h.gvk.GroupKind())
	}
}

func (p *parser) list(raw json.RawMessage, where string, item schema.GroupVersionKind, depth int) {
	var items []json.RawMessage
	if raw != nil && json.Unmarshal(raw, &items) != nil {
		p.file.fail(fileRef(p.title), "%s: the items of a List are not a list", where)
		return
	}
	if depth == maxListDepth {
		p.file.fail(fileRef(p.title), "%s: more than %d Lists are nested", where, maxListDepth)
		return
	}
	for i, raw := range items {
		p.value(raw, fmt.Sprintf("%s, items[%d]", where, i), item, depth+1)
	}
}

// headOf parses the identifying fields as far as possible.
func headOf(fields map[string]json.RawMessage, listed schema.GroupVersionKind) (head, error) {
	h := head{gvk: listed}
	var metadata map[string]json.RawMessage
	var apiVersion, kind string
	var failed error
	get := func(from map[string]json.RawMessage, name string, into any) {
		if raw, ok := from[name]; ok && json.Unmarshal(raw, into) != nil && failed == nil {
			failed = wrongType(name, raw)
		}
	}
	get(fields, "apiVersion", &apiVersion)
	get(fields, "kind", &kind)
	get(fields, "metadata", &metadata)
	get(metadata, "namespace", &h.namespace)
	get(metadata, "name", &h.name)
	if apiVersion != "" || kind != "" {
		gv, err := schema.ParseGroupVersion(apiVersion)
		h.gvk = gv.WithKind(kind)
		failed = cmp.Or(failed, err)
	}
	if failed == nil && (h.gvk.Version == "" || h.gvk.Kind == "") {
		failed = errors.New("it has no apiVersion or no kind")
	}
	return h, failed
}

// isCertificate reports whether a Secret is of the type that gateways may refer to.
func isCertificate(fields map[string]json.RawMessage) bool {
	var kind corev1.SecretType
	return json.Unmarshal(fields["type"], &kind) == nil && kind == corev1.SecretTypeTLS
}

// object decodes an object of a supported kind.
func (p *parser) object(fields map[string]json.RawMessage, h head, where string) {
	kind := p.kinds[h.gvk.GroupKind()]
	switch {
	case !kind.namespaced:
		h.namespace = ""
	case h.namespace == "":
		h.namespace = "default"
	}
	if err := kind.check(h); err != nil {
		p.file.fail(p.refOf(h), "%s: %s", where, plain(err))
		return
	}
	// All versions of a kind have the same fields, so the first serves for all.
	h.gvk.Version = kind.versions[0]
	fields["apiVersion"], _ = json.Marshal(h.gvk.GroupVersion().String())
	fields["kind"], _ = json.Marshal(h.gvk.Kind)
	content, err := json.Marshal(fields)
	if err != nil {
		p.file.fail(p.refOf(h), "%s: %s", where, plain(err))
		return
	}
	decoded, _, err := p.decoder.Decode(content, nil, nil)
	unknown, isUnknown := runtime.AsStrictDecodingError(err)
	obj, ok := decoded.(client.Object)
	if err != nil && !isUnknown && isHeaderMap(h.gvk.Kind, content) {
		err = errHeaderMap
	}
	if err != nil && !isUnknown || !ok {
		p.file.fail(p.refOf(h), "%s: %s", where, readable(cmp.Or(err, fmt.Errorf("%T is not an object", decoded))))
		return
	}
	if isUnknown && kind.grants {
		// kubectl refuses such an object, and without the field it could allow more.
		p.file.fail(p.refOf(h), "%s: %s; correct or remove it, until then the object is ignored", where, plain(unknown))
		return
	}
	// Kubernetes' own kinds may have newer fields that are unknown here.
	if isUnknown && kind.ours {
		for _, err := range unknown.Errors() {
			p.file.problems = append(p.file.problems, mesh.Problem{Object: h.ref(), Reason: source.ReasonNoEffect,
				Message: fmt.Sprintf("%s: %s; correct or remove it", where, plain(err))})
		}
	}
	for _, r := range refusals(obj) {
		p.file.problems = append(p.file.problems, mesh.Problem{Object: h.ref(), Reason: source.ReasonInvalid, Field: r.field,
			Message: fmt.Sprintf("%s: %s; the API server refuses the object, so correct it", where, r.why)})
	}
	obj.SetNamespace(h.namespace)
	p.file.objects = append(p.file.objects, object{Object: obj, ref: h.ref(), where: where})
}

// check rejects objects that can't be read. Names are checked when facts are derived.
func (k kind) check(h head) error {
	if !slices.Contains(k.versions, h.gvk.Version) {
		return fmt.Errorf("version %q of kind %s is not supported; use apiVersion: %s%s", h.gvk.Version, h.gvk.Kind,
			schema.GroupVersion{Group: h.gvk.Group, Version: k.versions[0]}, changedSince(h.gvk))
	}
	if h.name == "" {
		return fmt.Errorf("it has no metadata.name")
	}
	return nil
}
