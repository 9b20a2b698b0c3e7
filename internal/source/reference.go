package source

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	access "github.com/outrigger-mesh/outrigger/apis/access/v1alpha3"
	policy "github.com/outrigger-mesh/outrigger/apis/policy/v1alpha1"
	specs "github.com/outrigger-mesh/outrigger/apis/specs/v1alpha4"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	kindMeshConfig             = "MeshConfig"
	kindHTTPRouteGroup         = "HTTPRouteGroup"
	kindUpstreamTrafficSetting = "UpstreamTrafficSetting"
)

// serviceAccount parses a reference to a service account.
func (n *notes) serviceAccount(path, kind, namespace, name string) (fact.ServiceAccount, bool) {
	if kind != access.KindServiceAccount {
		n.add(ReasonUnknownKind, path+".kind", "%q is not supported here, so the entry is ignored; use %s", kind, access.KindServiceAccount)
		return fact.ServiceAccount{}, false
	}
	if !isObjectLabel(namespace) {
		n.add(ReasonInvalid, path+".namespace", "%q is not the name of a namespace, so the entry is ignored; write that of the service account", namespace)
		return fact.ServiceAccount{}, false
	}
	if !isObjectName(name) {
		n.add(ReasonInvalid, path+".name", "%q is not the name of a service account, so the entry is ignored", name)
		return fact.ServiceAccount{}, false
	}
	return fact.ServiceAccount{Namespace: namespace, Name: name}, true
}

// service parses a reference to a service.
func (n *notes) service(path, namespace, name string) (mesh.Name, bool) {
	if !isObjectLabel(namespace) {
		n.add(ReasonInvalid, path+".namespace", "%q is not the name of a namespace, so the entry is ignored; write that of the service", namespace)
		return mesh.Name{}, false
	}
	if !isObjectLabel(name) {
		n.add(ReasonInvalid, path+".name", "%q is not the name of a service, so the entry is ignored", name)
		return mesh.Name{}, false
	}
	return mesh.Name{Namespace: namespace, Name: name}, true
}

// references are references to objects of the same namespace.
type references struct {
	groups, settings []string
	// lost says that some references were invalid. They may have been meant to restrict
	// the object.
	lost bool
}

// noGroup reports whether no group is left although some were given. The groups then
// match nothing, instead of everything. It also adds a Problem.
func (n *notes) noGroup(path string, r references) bool {
	if len(r.groups) > 0 || !r.lost {
		return false
	}
	n.add(ReasonMissing, path, "none of the HTTPRouteGroup references is valid, so no request matches; correct them, or remove them all to match every request")
	return true
}

// references reads a list of references to HTTPRouteGroups and other kinds. Open
// Service Mesh took the API group with a version only.
func (n *notes) references(path string, refs []corev1.TypedLocalObjectReference, kinds ...string) references {
	var found references
	for i, ref := range refs {
		group, _, _ := strings.Cut(deref(ref.APIGroup, ""), "/")
		want := specs.SchemeGroupVersion.Group
		if ref.Kind == kindUpstreamTrafficSetting {
			want = policy.GroupName
		}
		switch {
		case !slices.Contains(kinds, ref.Kind):
			n.add(ReasonUnknownKind, index(path, i)+".kind", "%q is not supported here; use %s", ref.Kind, strings.Join(kinds, " or "))
		case group != "" && group != want:
			n.add(ReasonUnknownKind, index(path, i)+".apiGroup", "%q has no kind %s; use %s, or omit it", deref(ref.APIGroup, ""), ref.Kind, want)
		case !isObjectName(ref.Name):
			n.add(ReasonInvalid, index(path, i)+".name", "%q is not the name of an object", ref.Name)
		case ref.Kind == kindHTTPRouteGroup:
			found.groups = append(found.groups, ref.Name)
			continue
		default:
			found.settings = append(found.settings, ref.Name)
			continue
		}
		found.lost = true
	}
	found.groups = unique(found.groups)
	return found
}

// needed adds a Problem if a required list is empty.
func (n *notes) needed(path string, length int, what string) {
	if length == 0 {
		n.add(ReasonMissing, path, "there is no %s; add at least one", what)
	}
}
