package classmove

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// Reading is what was read of a cluster.
type Reading struct {
	// MeshConfig is nil if there is none.
	MeshConfig *v1alpha2.MeshConfig
	// Namespaces are those of the move that belong to the mesh, sorted by name.
	Namespaces []corev1.Namespace
	// Workloads are those of the namespaces, sorted.
	Workloads []*Workload
	// Others are the pods of the namespaces that belong to none of the workloads.
	Others []*corev1.Pod
}

// Left is what the move does not touch although it has the former class.
type Left struct {
	Object string `json:"object"`
	Reason string `json:"reason"`
}

// Plan is what a Move changes.
type Plan struct {
	Move Move
	// Changes are the changes of MeshConfig, Namespaces.
	Changes []Change
	// MeshConfig and Namespaces are those that change, as they will be.
	MeshConfig *v1alpha2.MeshConfig
	Namespaces map[string]*corev1.Namespace
	// Workloads are those whose pods are replaced or whose template changes, with the image that
	// their sidecars get.
	Workloads map[Key]string
	// Left are workloads and pods that keep the class, and Kept the namespaces that do, with the
	// reasons.
	Left []Left
	Kept map[string]string
	// OldImages are images of sidecars of the former class.
	OldImages []string
}

// IsEmpty reports whether there is nothing to do.
func (p *Plan) IsEmpty() bool { return len(p.Changes) == 0 && len(p.Workloads) == 0 }

// PlanOf decides what a move changes. A namespace in which new pods could not start with the other
// class keeps the class that it has, whatever happens to others.
func PlanOf(move Move, r *Reading, deciding Deciding) (*Plan, error) {
	p := &Plan{Move: move, Namespaces: make(map[string]*corev1.Namespace), Workloads: make(map[Key]string), Kept: make(map[string]string)}
	before, err := deciding(r.MeshConfig, r.Namespaces)
	if err != nil {
		return nil, err
	}
	meshConfig := r.MeshConfig
	if len(move.Namespaces) == 0 {
		meshConfig, p.Changes = moveDefault(r.MeshConfig, move.From, move.To)
		if len(p.Changes) > 0 {
			p.MeshConfig = meshConfig
		}
	}
	namespaces := slices.Clone(r.Namespaces)
	for i := range namespaces {
		ns := &namespaces[i]
		class := classIn(ns.Annotations)
		if class == "" && len(move.Namespaces) > 0 {
			class = classOfMesh(r.MeshConfig)
		}
		if class == move.From {
			changed, change := withClass(ns, move.To)
			p.Namespaces[ns.Name], namespaces[i] = changed, *changed
			p.Changes = append(p.Changes, change)
		}
	}
	after, err := deciding(meshConfig, namespaces)
	if err != nil {
		return nil, err
	}
	p.OldImages = oldImages(move.From, r, before)
	for _, w := range r.Workloads {
		p.add(w, before, after)
	}
	p.keep(r)
	for _, pod := range r.Others {
		if inject.ClassOf(pod) == move.From && p.Kept[pod.Namespace] == "" {
			p.Left = append(p.Left, Left{"pod " + pod.Namespace + "/" + pod.Name, leftPod(pod)})
		}
	}
	return p, nil
}

// leftPod says why a pod of no known workload is left as it is.
func leftPod(pod *corev1.Pod) string {
	owner := source.OwnerOf(pod)
	switch owner.Kind {
	case "":
		return "it has no controller that would create it again: delete it and create it again"
	case "job":
		return fmt.Sprintf("it belongs to job %s and is not interrupted: it keeps its proxy until it ends", owner.Name)
	}
	return fmt.Sprintf("it belongs to %s %s, which this command does not know: have its controller replace it", owner.Kind, owner.Name)
}

// oldImages returns the images of the class in running pods, and those that new pods would get.
func oldImages(class string, r *Reading, before Decide) []string {
	var images []string
	for _, w := range r.Workloads {
		for _, pod := range w.Pods {
			if inject.ClassOf(pod) == class {
				images = append(images, imagesOf(pod)...)
			}
		}
		if d := before(w.pod()); d.Class == class && d.Image != "" {
			images = append(images, d.Image)
		}
	}
	for _, pod := range r.Others {
		if inject.ClassOf(pod) == class {
			images = append(images, imagesOf(pod)...)
		}
	}
	slices.Sort(images)
	return slices.Compact(images)
}

// add decides about a workload.
func (p *Plan) add(w *Workload, before, after Decide) {
	alive, ending := w.count(p.Move.From)
	has := alive+ending > 0
	if was := before(w.pod()); !has && was.Class != p.Move.From {
		return
	}
	annotated := classIn(w.Template.Annotations) == p.Move.From
	pod := w.pod()
	if annotated {
		pod.Annotations[metadata.Class] = p.Move.To
	}
	d := after(pod)
	broken := ""
	switch {
	case d.Denied:
		broken = fmt.Sprintf("%s would get no pods: %s", w.Key, d.Reason)
	case d.Class == p.Move.To && slices.Contains(p.OldImages, d.Image):
		broken = fmt.Sprintf("the sidecars of %s would be of class %s but have the image %s of class %s: remove the annotation %s of the pod or namespace, or set the image of class %s in the MeshConfig's spec.sidecar.sidecarDrivers",
			w.Key, p.Move.To, d.Image, p.Move.From, metadata.Image, p.Move.To)
	}
	switch {
	case broken != "":
		if p.Kept[w.Namespace] == "" {
			p.Kept[w.Namespace] = broken
		}
	case !has && !annotated:
		// The settings are enough for its new pods.
	case d.Class != p.Move.To:
		p.Left = append(p.Left, Left{w.Key.String(), fmt.Sprintf("its new pods would get %s: %s", orNone(d.Class), d.Reason)})
	case has && w.Manual != "":
		p.Left = append(p.Left, Left{w.Key.String(), w.Manual})
	default:
		p.Workloads[w.Key] = d.Image
	}
}

func orNone(class string) string {
	if class == "" {
		return "no sidecar"
	}
	return "class " + class
}

// keep has the namespaces of Kept keep their class: what was to change there does not, and what
// would follow from the default class is set.
func (p *Plan) keep(r *Reading) {
	for i := range r.Namespaces {
		ns := &r.Namespaces[i]
		if p.Kept[ns.Name] == "" {
			continue
		}
		if p.Namespaces[ns.Name] != nil {
			delete(p.Namespaces, ns.Name)
			p.Changes = slices.DeleteFunc(p.Changes, func(c Change) bool { return c.Object == "namespace "+ns.Name })
		}
		if classIn(ns.Annotations) == "" && p.MeshConfig != nil {
			changed, change := withClass(ns, p.Move.From)
			p.Namespaces[ns.Name] = changed
			p.Changes = append(p.Changes, change)
		}
		for key := range p.Workloads {
			if key.Namespace == ns.Name {
				delete(p.Workloads, key)
			}
		}
		p.Left = slices.DeleteFunc(p.Left, func(l Left) bool { return strings.Contains(l.Object, " "+ns.Name+"/") })
	}
}
