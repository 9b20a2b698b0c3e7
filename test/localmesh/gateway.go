package localmesh

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/gateway"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
)

// ServesGateways reports whether proxies of a class can be those of gateways.
func ServesGateways(class string) bool {
	return slices.Contains(sidecar.Features(class), mesh.FeatureGateways)
}

// GatewayOf returns the name of the Gateway that a pod is one of, in the pod's namespace, or "".
func GatewayOf(pod *corev1.Pod) string {
	return pod.Labels[fact.GatewayLabel]
}

// Gateways collects the Gateways of manifests, and makes what a cluster's controller makes for them.
type Gateways struct {
	gateways []*gatewayv1.Gateway
	classes  []string
}

// Add adds an object of the manifests if it is a Gateway or a GatewayClass. What cannot be read is left
// to the mesh, which reports it.
func (o *Gateways) Add(object map[string]any) {
	version, _ := object["apiVersion"].(string)
	if group, _, _ := strings.Cut(version, "/"); group != gatewayv1.GroupName {
		return
	}
	text, err := json.Marshal(object)
	if err != nil {
		return
	}
	switch object["kind"] {
	case "Gateway":
		g := new(gatewayv1.Gateway)
		if json.Unmarshal(text, g) == nil {
			o.gateways = append(o.gateways, g)
		}
	case "GatewayClass":
		c := new(gatewayv1.GatewayClass)
		if json.Unmarshal(text, c) == nil {
			o.classes = append(o.classes, c.Name)
		}
	}
}

// Manifest returns the manifests of the GatewayClasses of the mesh that the manifests lack, and of what
// runs each Gateway without pods of its own; and a sentence about each of these. Without any, the text
// is empty.
func (o *Gateways) Manifest() (text string, notes []string, err error) {
	var objects []any
	for _, g := range o.gateways {
		class, isOurs := strings.CutPrefix(string(g.Spec.GatewayClassName), source.GatewayClassPrefix)
		ports := portsOf(g)
		if !isOurs || !ServesGateways(class) || gateway.HasOwnPods(g) || len(ports) == 0 || len(g.Name) > gateway.MaxName {
			continue
		}
		if g.Namespace == "" {
			g.Namespace = "default"
		}
		name := string(g.Spec.GatewayClassName)
		if !slices.Contains(o.classes, name) {
			o.classes = append(o.classes, name)
			objects = append(objects, map[string]any{
				"apiVersion": gatewayv1.GroupVersion.String(), "kind": "GatewayClass", "metadata": map[string]any{"name": name},
				"spec": map[string]any{"controllerName": source.ControllerName},
			})
		}
		for _, made := range gateway.Objects(g, &fact.GatewayState{Class: class, Ports: ports}) {
			objects = append(objects, made)
		}
		notes = append(notes, fmt.Sprintf("Gateway %s/%s gets a pod of class %s, as in a cluster with gateways.enabled.", g.Namespace, g.Name, class))
	}
	var b strings.Builder
	for _, object := range objects {
		one, err := yaml.Marshal(object)
		if err != nil {
			return "", nil, err
		}
		fmt.Fprintf(&b, "---\n%s", one)
	}
	return b.String(), notes, nil
}

// portsOf returns the ports of a Gateway's listeners, sorted.
func portsOf(g *gatewayv1.Gateway) []uint16 {
	var ports []uint16
	for i := range g.Spec.Listeners {
		if port := g.Spec.Listeners[i].Port; port > 0 && port <= 65535 {
			ports = append(ports, uint16(port))
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}
