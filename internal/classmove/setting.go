package classmove

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/apis/metadata"
)

// defaultClass is the class of a MeshConfig that names none.
const defaultClass = "envoy"

// Change is a change of something that decides which class new pods get.
type Change struct {
	Object string `json:"object"`
	Field  string `json:"field"`
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// String returns the change as a line of text.
func (c Change) String() string {
	return fmt.Sprintf("%s: %s: %s -> %s", c.Object, c.Field, cmp.Or(c.Before, "(none)"), cmp.Or(c.After, "(none)"))
}

// classOfMesh returns the default class of a MeshConfig, which may be nil.
func classOfMesh(obj *v1alpha2.MeshConfig) string {
	if obj == nil {
		return defaultClass
	}
	return cmp.Or(strings.ToLower(obj.Spec.Sidecar.SidecarClass), defaultClass)
}

// classIn returns the class in annotations, in lower case, or "".
func classIn(annotations map[string]string) string {
	return strings.ToLower(annotations[metadata.Class])
}

// moveDefault returns the MeshConfig with another default class, and what changes. The images for
// the default class become those of the former one, whose proxy they contain.
func moveDefault(obj *v1alpha2.MeshConfig, from, to string) (*v1alpha2.MeshConfig, []Change) {
	if obj == nil || classOfMesh(obj) != from {
		return obj, nil
	}
	moved := obj.DeepCopy()
	spec := &moved.Spec.Sidecar
	object := "meshconfig " + obj.Namespace + "/" + obj.Name
	changes := []Change{{object, "spec.sidecar.sidecarClass", spec.SidecarClass, to}}
	spec.SidecarClass = to
	image, windows := spec.SidecarImage, spec.WindowsImage()
	if image == "" && windows == "" && spec.InitContainerImage == "" {
		return moved, changes
	}
	i := slices.IndexFunc(spec.SidecarDrivers, func(d v1alpha2.SidecarDriverSpec) bool { return strings.EqualFold(d.SidecarName, from) })
	if i < 0 {
		i = len(spec.SidecarDrivers)
		spec.SidecarDrivers = append(spec.SidecarDrivers, v1alpha2.SidecarDriverSpec{SidecarName: from})
	}
	entry := &spec.SidecarDrivers[i]
	// This one is no proxy's, so the new default class uses it, too.
	entry.InitContainerImage = cmp.Or(spec.InitContainerImage, entry.InitContainerImage)
	if image != "" {
		changes = append(changes,
			Change{object, "spec.sidecar.sidecarImage", image, ""},
			Change{object, "spec.sidecar.sidecarDrivers[" + from + "].sidecarImage", entry.SidecarImage, image})
		spec.SidecarImage, entry.SidecarImage = "", image
	}
	if windows != "" {
		changes = append(changes,
			Change{object, "spec.sidecar.sidecarWindowsImage", windows, ""},
			Change{object, "spec.sidecar.sidecarDrivers[" + from + "].sidecarWindowsImage", entry.WindowsImage(), windows})
		spec.SidecarWindowsImage, spec.ProposalWindowsImage, spec.EdgeWindowsImage, spec.EdgeV1alpha1WindowsImage = "", "", "", ""
		entry.SidecarWindowsImage = windows
	}
	return moved, changes
}

// disablesTLS reports whether the pods of a class have no mesh TLS.
func disablesTLS(obj *v1alpha2.MeshConfig, class string) bool {
	return obj != nil && slices.ContainsFunc(obj.Spec.Sidecar.SidecarDrivers, func(d v1alpha2.SidecarDriverSpec) bool {
		return strings.EqualFold(d.SidecarName, class) && d.SidecarDisabledMTLS
	})
}

// withClass returns the namespace with another class, and the change.
func withClass(ns *corev1.Namespace, class string) (*corev1.Namespace, Change) {
	changed := ns.DeepCopy()
	if changed.Annotations == nil {
		changed.Annotations = make(map[string]string)
	}
	changed.Annotations[metadata.Class] = class
	return changed, Change{"namespace " + ns.Name, "metadata.annotations[" + metadata.Class + "]", ns.Annotations[metadata.Class], class}
}

// IsMember reports whether a namespace belongs to a mesh.
func IsMember(ns *corev1.Namespace, meshName string) bool {
	_, ignored := ns.Labels[metadata.Ignore]
	return ns.Labels[metadata.MonitoredBy] == meshName && !ignored
}
