package source

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	access "github.com/outrigger-mesh/outrigger/apis/access/v1alpha3"
	policy "github.com/outrigger-mesh/outrigger/apis/policy/v1alpha1"
	specs "github.com/outrigger-mesh/outrigger/apis/specs/v1alpha4"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	kindMeshConfig             = "MeshConfig"
	kindHTTPRouteGroup         = "HTTPRouteGroup"
	kindUpstreamTrafficSetting = "UpstreamTrafficSetting"
)

// serviceAccount reads who is meant by a kind, a namespace and a name.
func (n *notes) serviceAccount(path, kind, namespace, name string) (mesh.ServiceAccount, bool) {
	if kind != access.KindServiceAccount {
		n.add(ReasonUnknownKind, path+".kind", "%q is not a kind that means somebody here, so nobody is meant; use %s", kind, access.KindServiceAccount)
		return mesh.ServiceAccount{}, false
	}
	if !isObjectLabel(namespace) {
		n.add(ReasonInvalid, path+".namespace", "%q is not the name of a namespace, so nobody is meant; write the service account's", namespace)
		return mesh.ServiceAccount{}, false
	}
	if !isObjectName(name) {
		n.add(ReasonInvalid, path+".name", "%q is not the name of a service account, so nobody is meant", name)
		return mesh.ServiceAccount{}, false
	}
	return mesh.ServiceAccount{Namespace: namespace, Name: name}, true
}

// service reads which service is meant by a namespace and a name.
func (n *notes) service(path, namespace, name string) (mesh.Name, bool) {
	if !isObjectLabel(namespace) {
		n.add(ReasonInvalid, path+".namespace", "%q is not the name of a namespace, so no service is meant; write the service's", namespace)
		return mesh.Name{}, false
	}
	if !isObjectLabel(name) {
		n.add(ReasonInvalid, path+".name", "%q is not the name of a service, so none is meant", name)
		return mesh.Name{}, false
	}
	return mesh.Name{Namespace: namespace, Name: name}, true
}

// references are the objects of one namespace that another one refers to.
type references struct {
	groups, settings []string
	// lost says that there were references to something else, which may have been
	// meant to narrow the object.
	lost bool
}

// noGroup reports, and notes, whether no group is left of those that may have been
// given: then the groups match nothing, and not everything.
func (n *notes) noGroup(path string, r references) bool {
	if len(r.groups) > 0 || !r.lost {
		return false
	}
	n.add(ReasonMissing, path, "no HTTPRouteGroup is left of those that were given, so no request matches; correct the references, or remove them all to match every request")
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
			n.add(ReasonUnknownKind, index(path, i)+".kind", "%q means nothing here; use %s", ref.Kind, strings.Join(kinds, " or "))
		case group != "" && group != want:
			n.add(ReasonUnknownKind, index(path, i)+".apiGroup", "%q has no kind %s; use %s, or leave it out", deref(ref.APIGroup, ""), ref.Kind, want)
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

// needed notes that a list is empty without which an object does nothing.
func (n *notes) needed(path string, length int, what string) {
	if length == 0 {
		n.add(ReasonMissing, path, "there is no %s; give at least one", what)
	}
}
