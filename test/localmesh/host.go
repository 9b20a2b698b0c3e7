package localmesh

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/outrigger-mesh/outrigger/internal/source/dir"
)

// forms are the suffixes after a service's name and namespace that cluster DNS resolves.
var forms = []string{"", ".svc", ".svc.cluster.local"}

// hostsOf returns the names that cluster DNS would resolve: services, in all forms with
// the namespace, and pods with a name in a headless service. An ExternalName service has
// the addresses of its target, if that is a name in the cluster.
func hostsOf(c *dir.Cluster) map[string][]netip.Addr {
	hosts := make(map[string][]netip.Addr)
	add := func(name, namespace string, addresses []netip.Addr) {
		if len(addresses) == 0 {
			return
		}
		for _, form := range forms {
			full := name + "." + namespace + form
			hosts[full] = append(hosts[full], addresses...)
		}
	}
	for _, service := range c.Services {
		if service.Spec.Type == corev1.ServiceTypeExternalName {
			continue
		}
		if service.Spec.ClusterIP != corev1.ClusterIPNone {
			add(service.Name, service.Namespace, parse(service.Spec.ClusterIP, service.Spec.ClusterIPs))
			continue
		}
		var all []netip.Addr
		for _, pod := range selectedBy(service, c.Pods) {
			addresses := addressesOf(pod)
			all = append(all, addresses...)
			if pod.Spec.Subdomain == service.Name && pod.Spec.Hostname != "" {
				add(pod.Spec.Hostname+"."+service.Name, service.Namespace, addresses)
			}
		}
		add(service.Name, service.Namespace, all)
	}
	// The target of an ExternalName service may be another one.
	for range maxAliases {
		for _, service := range c.Services {
			name := service.Name + "." + service.Namespace
			if service.Spec.Type == corev1.ServiceTypeExternalName && hosts[name] == nil {
				add(service.Name, service.Namespace, hosts[strings.TrimSuffix(service.Spec.ExternalName, ".")])
			}
		}
	}
	return hosts
}

// maxAliases bounds a chain of ExternalName services.
const maxAliases = 8

func selectedBy(service *corev1.Service, pods []*corev1.Pod) []*corev1.Pod {
	if len(service.Spec.Selector) == 0 {
		return nil
	}
	selector := labels.SelectorFromSet(service.Spec.Selector)
	return slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool {
		return pod.Namespace != service.Namespace || !selector.Matches(labels.Set(pod.Labels))
	})
}

func addressesOf(pod *corev1.Pod) []netip.Addr {
	texts := make([]string, 0, len(pod.Status.PodIPs))
	for _, ip := range pod.Status.PodIPs {
		texts = append(texts, ip.IP)
	}
	return parse(pod.Status.PodIP, texts)
}

// parse returns the valid addresses without duplicates.
func parse(first string, others []string) []netip.Addr {
	var addresses []netip.Addr
	for _, text := range append([]string{first}, others...) {
		if addr, err := netip.ParseAddr(text); err == nil && !slices.Contains(addresses, addr) {
			addresses = append(addresses, addr)
		}
	}
	return addresses
}
