package classmove

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/registry"
)

// Proof is what every pod of the move says of its sidecar: by its status annotation, by the images
// of its containers, and by the connection of its proxy to a controller.
type Proof struct {
	// Pods is how many pods with a sidecar were asked, and Classes and Connected count them by
	// the class of their annotation and of their connection.
	Pods      int            `json:"pods"`
	Classes   map[string]int `json:"classes,omitempty"`
	Connected map[string]int `json:"connected,omitempty"`
	// Images count the pods by the images of their sidecars.
	Images map[string]int `json:"images,omitempty"`
	// Old are pods with a proxy of the former class, and Unproven those that do not say which
	// one they have, with the reasons.
	Old      []Left `json:"old,omitempty"`
	Unproven []Left `json:"unproven,omitempty"`
}

// IsComplete reports whether no pod has a proxy of the former class.
func (p *Proof) IsComplete() bool { return len(p.Old)+len(p.Unproven) == 0 }

// prove asks the pods of the move's namespaces, whose proxies are connected as the controllers
// say. Images of the former class are no proof of the other one.
func prove(move Move, pods []*corev1.Pod, proxies []registry.Proxy, oldImages []string) *Proof {
	p := &Proof{Classes: make(map[string]int), Connected: make(map[string]int), Images: make(map[string]int)}
	connected := make(map[string]*registry.Proxy, len(proxies))
	for i := range proxies {
		if !proxies[i].Connected.IsZero() {
			connected[proxies[i].UID] = &proxies[i]
		}
	}
	for _, pod := range pods {
		class := inject.ClassOf(pod)
		if class == "" || ended(pod) {
			continue
		}
		p.Pods++
		p.Classes[class]++
		object := "pod " + pod.Namespace + "/" + pod.Name
		old, unproven := "", ""
		images := imagesOf(pod)
		for _, image := range images {
			p.Images[image]++
			if class == move.To && slices.Contains(oldImages, image) {
				old = fmt.Sprintf("its sidecar has the image %s of class %s", image, move.From)
			}
		}
		proxy := connected[string(pod.UID)]
		if proxy != nil {
			p.Connected[proxy.Class]++
		}
		switch {
		case class == move.From:
			old = "its sidecar was injected for class " + class
		case class != move.To || old != "":
		case proxy != nil && proxy.Class != class:
			old = fmt.Sprintf("its proxy is connected as one of class %s", proxy.Class)
		case len(images) == 0:
			unproven = "it has no sidecar container"
		case proxy == nil && pod.DeletionTimestamp == nil:
			unproven = "its proxy is not connected to a controller"
		}
		if old != "" {
			p.Old = append(p.Old, Left{object, old})
		} else if unproven != "" {
			p.Unproven = append(p.Unproven, Left{object, unproven})
		}
	}
	return p
}
