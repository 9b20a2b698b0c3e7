package dir

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// selected returns the pods selected by each service with a selector.
func (c *cluster) selected() map[types.NamespacedName][]*corev1.Pod {
	index := newPodIndex(c.pods)
	selected := make(map[types.NamespacedName][]*corev1.Pod)
	for name, service := range c.services {
		if len(service.Spec.Selector) == 0 || service.Spec.Type == corev1.ServiceTypeExternalName {
			continue
		}
		pods := index.matching(name.Namespace, &metav1.LabelSelector{MatchLabels: service.Spec.Selector})
		selected[name] = slices.DeleteFunc(pods, hasFinished)
	}
	return selected
}

func hasFinished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// addSlices makes EndpointSlices for services that have none.
func (c *cluster) addSlices(selected map[types.NamespacedName][]*corev1.Pod) {
	have := make(map[types.NamespacedName]bool)
	for _, slice := range c.slices {
		have[types.NamespacedName{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}] = true
	}
	for _, name := range byName(selected) {
		if !have[name] {
			c.slices = append(c.slices, slicesOf(c.services[name], selected[name])...)
		}
	}
}

// slicesOf returns an EndpointSlice for each family of the service and each distinct set
// of ports of its pods.
func slicesOf(service *corev1.Service, pods []*corev1.Pod) []*discoveryv1.EndpointSlice {
	all := make(map[string]*discoveryv1.EndpointSlice)
	for _, pod := range pods {
		ports := portsOf(service, pod)
		for _, family := range familiesOf(service) {
			addresses := addressesOf(pod, family)
			if len(addresses) == 0 {
				continue
			}
			name := sliceName(service.Name, family, ports)
			slice := all[name]
			if slice == nil {
				slice = &discoveryv1.EndpointSlice{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: service.Namespace, Name: name,
						Labels: map[string]string{discoveryv1.LabelServiceName: service.Name},
					},
					AddressType: discoveryv1.AddressType(family),
					Ports:       ports,
				}
				all[name] = slice
			}
			slice.Endpoints = append(slice.Endpoints, endpointOf(service, pod, addresses))
		}
	}
	var made []*discoveryv1.EndpointSlice
	for _, name := range slices.Sorted(maps.Keys(all)) {
		made = append(made, all[name])
	}
	return made
}

// sliceName depends on everything that the endpoints of a slice share.
func sliceName(service string, family corev1.IPFamily, ports []discoveryv1.EndpointPort) string {
	var content strings.Builder
	for _, p := range ports {
		fmt.Fprintf(&content, "%s %d %s\n", *p.Name, *p.Port, *p.Protocol)
	}
	sum := sha256.Sum256([]byte(content.String()))
	return fmt.Sprintf("%s-%s-%x", service, strings.ToLower(string(family)), sum[:4])
}

// portsOf returns the pod's ports for those of the service. Named ports that the pod
// lacks are skipped.
func portsOf(service *corev1.Service, pod *corev1.Pod) []discoveryv1.EndpointPort {
	var ports []discoveryv1.EndpointPort
	for i := range service.Spec.Ports {
		p := &service.Spec.Ports[i]
		protocol := cmp.Or(p.Protocol, corev1.ProtocolTCP)
		if number := targetPort(p, protocol, pod); number > 0 {
			ports = append(ports, discoveryv1.EndpointPort{Name: new(p.Name), Port: new(number), Protocol: new(protocol), AppProtocol: p.AppProtocol})
		}
	}
	return ports
}

func targetPort(p *corev1.ServicePort, protocol corev1.Protocol, pod *corev1.Pod) int32 {
	switch {
	case p.TargetPort.Type == intstr.Int && p.TargetPort.IntVal != 0:
		return p.TargetPort.IntVal
	case p.TargetPort.Type == intstr.Int || p.TargetPort.StrVal == "":
		return p.Port
	}
	restarted := slices.DeleteFunc(slices.Clone(pod.Spec.InitContainers), func(c corev1.Container) bool {
		return c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways
	})
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, restarted} {
		for i := range containers {
			for _, port := range containers[i].Ports {
				if port.Name == p.TargetPort.StrVal && cmp.Or(port.Protocol, corev1.ProtocolTCP) == protocol {
					return port.ContainerPort
				}
			}
		}
	}
	return 0
}

func endpointOf(service *corev1.Service, pod *corev1.Pod, addresses []string) discoveryv1.Endpoint {
	// A pod without a status counts as ready.
	ready := true
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			ready = condition.Status == corev1.ConditionTrue
		}
	}
	terminating := pod.DeletionTimestamp != nil
	endpoint := discoveryv1.Endpoint{
		Addresses: addresses,
		Conditions: discoveryv1.EndpointConditions{
			Ready:       new(service.Spec.PublishNotReadyAddresses || ready && !terminating),
			Serving:     new(service.Spec.PublishNotReadyAddresses || ready),
			Terminating: new(terminating),
		},
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
	}
	if pod.Spec.Hostname != "" && pod.Spec.Subdomain == service.Name {
		endpoint.Hostname = new(pod.Spec.Hostname)
	}
	if zone := pod.Labels[corev1.LabelTopologyZone]; zone != "" {
		endpoint.Zone = new(zone)
	}
	return endpoint
}

// addressesOf returns the pod's address of a family.
func addressesOf(pod *corev1.Pod, family corev1.IPFamily) []string {
	// Manifests written by hand often have podIP alone.
	for _, ip := range append([]corev1.PodIP{{IP: pod.Status.PodIP}}, pod.Status.PodIPs...) {
		if addr, err := netip.ParseAddr(ip.IP); err == nil && familyOf(addr) == family {
			return []string{ip.IP}
		}
	}
	return nil
}
