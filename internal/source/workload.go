package source

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

const defaultServiceAccount = "default"

func (m *Mapper) workload(pod *corev1.Pod, n *notes) mesh.Digester {
	w := &fact.Workload{
		Name: nameOf(&pod.ObjectMeta),
		UID:  string(pod.UID),
		// DeprecatedServiceAccount is the older name of the field.
		ServiceAccount: cmp.Or(pod.Spec.ServiceAccountName, pod.Spec.DeprecatedServiceAccount, defaultServiceAccount),
		Labels:         pod.Labels,
		Owner:          OwnerOf(pod),
		Class:          m.opts.SidecarClass(pod),
		Ports:          n.workloadPorts(pod),
		Zone:           pod.Labels[corev1.LabelTopologyZone],
		InboundTLS:     n.inboundTLS(pod.Annotations),
		ProxyProtocol:  n.proxyProtocol(pod.Annotations),
		AccessLog:      n.accessLogOf(pod.Annotations),

		OutboundServices: n.outboundServices(pod.Namespace, pod.Annotations),

		Ended: pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
		Ready: ReportedReady(pod),
	}
	if !isObjectName(w.ServiceAccount) {
		n.add(ReasonInvalid, "spec.serviceAccountName", "%q is not the name of a service account, so the pod has no identity and is ignored", w.ServiceAccount)
		return nil
	}
	if w.Class != "" {
		w.Redirection = redirection(m.opts.Redirection(pod))
	}
	if !pod.Spec.HostNetwork {
		w.Addresses = podAddresses(&pod.Status)
	}
	return mesh.Seal(w)
}

// maxProxyProtocol limits the ports of one pod, each of which has rules of its own in the proxy.
const maxProxyProtocol = 100

// proxyProtocol returns the ports of the annotation, without those that are invalid.
func (n *notes) proxyProtocol(annotations map[string]string) []uint16 {
	text, isSet := annotations[metadata.ProxyProtocolPorts]
	if !isSet {
		return nil
	}
	const path = "metadata.annotations[" + metadata.ProxyProtocolPorts + "]"
	var ports []uint16
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		number, err := strconv.ParseUint(item, 10, 16)
		switch {
		case err != nil || number == 0:
			n.add(ReasonInvalid, path, "%q is not a port and is ignored; list numbers from 1 to %d, such as \"3306,5432\"", item, maxPort)
		case len(ports) == maxProxyProtocol:
			n.add(ReasonInvalid, path, "only the first %d ports are used", maxProxyProtocol)
			return sortedSet(ports, cmp.Compare[uint16])
		default:
			ports = append(ports, uint16(number))
		}
	}
	return sortedSet(ports, cmp.Compare[uint16])
}

// OwnerOf returns the object that users know a pod by: its controller or, if that is the
// ReplicaSet of a Deployment, the Deployment. It is empty for a pod without a controller.
func OwnerOf(pod *corev1.Pod) fact.Owner {
	controller := metav1.GetControllerOfNoCopy(pod)
	if controller == nil {
		return fact.Owner{}
	}
	owner := fact.Owner{Kind: strings.ToLower(controller.Kind), Name: controller.Name}
	if hash := pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; owner.Kind == "replicaset" && hash != "" {
		if deployment, ok := strings.CutSuffix(owner.Name, "-"+hash); ok {
			owner = fact.Owner{Kind: "deployment", Name: deployment}
		}
	}
	return owner
}

// ReportedReady reports whether the pod's node last reported its containers as ready, and
// its readiness gates hold. The condition Ready does not tell: the node lifecycle
// controller sets it to False if the node does not report.
func ReportedReady(pod *corev1.Pod) bool {
	holds := func(condition corev1.PodConditionType) bool {
		return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == condition && c.Status == corev1.ConditionTrue
		})
	}
	return holds(corev1.ContainersReady) &&
		!slices.ContainsFunc(pod.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool { return !holds(g.ConditionType) })
}

func podAddresses(status *corev1.PodStatus) []netip.Addr {
	texts := []string{status.PodIP}
	for _, ip := range status.PodIPs {
		texts = append(texts, ip.IP)
	}
	return addresses(texts)
}

// addresses returns the valid unicast addresses, IPv4 first, sorted and without
// duplicates.
func addresses(texts []string) []netip.Addr {
	var found []netip.Addr
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && isUnicast(a.Unmap()) {
			found = append(found, a.Unmap())
		}
	}
	return sortedSet(found, netip.Addr.Compare)
}

// isUnicast reports whether another host can have the address: sidecars listen on the
// unspecified addresses, and loopback addresses are the pod's own.
func isUnicast(a netip.Addr) bool {
	return a.Zone() == "" && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast()
}

// workloadPorts returns the TCP ports of the user's containers that run concurrently. If
// several containers use a name, it belongs to the first, as in Kubernetes.
func (n *notes) workloadPorts(pod *corev1.Pod) []fact.WorkloadPort {
	var ports []fact.WorkloadPort
	for i := range pod.Spec.Containers {
		ports = append(ports, n.containerPorts(index("spec.containers", i), &pod.Spec.Containers[i])...)
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
			ports = append(ports, n.containerPorts(index("spec.initContainers", i), c)...)
		}
	}
	named := make(map[string]bool)
	for i := range ports {
		if named[ports[i].Name] {
			ports[i].Name = ""
		}
		named[ports[i].Name] = true
	}
	return sortedSet(ports, func(a, b fact.WorkloadPort) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Name, b.Name))
	})
}

func (n *notes) containerPorts(path string, c *corev1.Container) []fact.WorkloadPort {
	if c.Name == driver.InitContainer || c.Name == driver.ProxyContainer {
		return nil
	}
	var ports []fact.WorkloadPort
	for i := range c.Ports {
		port := &c.Ports[i]
		if !isTCP(port.Protocol) {
			continue
		}
		if number, ok := n.port(index(path+".ports", i)+".containerPort", int64(port.ContainerPort)); ok {
			ports = append(ports, fact.WorkloadPort{Name: port.Name, Number: number})
		}
	}
	return ports
}

func isTCP(protocol corev1.Protocol) bool { return protocol == "" || protocol == corev1.ProtocolTCP }
