package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/podtemplate"
)

// The label of all objects that the controller makes for gateways, beside that with the gateway's name.
const (
	managedByLabel = "app.kubernetes.io/managed-by"
	managedBy      = "outrigger-controller"
)

// Objects returns what runs a Gateway, in the order in which it is to be made: a ServiceAccount, a
// Deployment, a Service and a PodDisruptionBudget in the Gateway's namespace, which own nothing and
// are owned by the Gateway. The state must have a class and ports. The number of replicas is not set, so that
// 'kubectl scale' and autoscalers decide it.
func Objects(g *gateway.Gateway, state *fact.GatewayState) []client.Object {
	name := nameOf(g.Name, string(g.Spec.GatewayClassName))
	selector := map[string]string{fact.GatewayLabel: g.Name}
	labels, annotations := map[string]string{}, map[string]string{}
	if of := g.Spec.Infrastructure; of != nil {
		for key, value := range of.Labels {
			if !isReserved(string(key)) {
				labels[string(key)] = string(value)
			}
		}
		for key, value := range of.Annotations {
			if !isReserved(string(key)) {
				annotations[string(key)] = string(value)
			}
		}
	}
	labels[fact.GatewayLabel], labels[managedByLabel] = g.Name, managedBy
	yes := true
	meta := func() metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Name: name, Namespace: g.Namespace, Labels: maps.Clone(labels), Annotations: maps.Clone(annotations),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: gateway.GroupVersion.String(), Kind: "Gateway", Name: g.Name, UID: g.UID, Controller: &yes, BlockOwnerDeletion: &yes,
			}},
		}
	}
	var containerPorts []corev1.ContainerPort
	var servicePorts []corev1.ServicePort
	for _, port := range state.Ports {
		portName := fmt.Sprintf("port-%d", port)
		containerPorts = append(containerPorts, corev1.ContainerPort{Name: portName, ContainerPort: int32(port), Protocol: corev1.ProtocolTCP})
		servicePorts = append(servicePorts, corev1.ServicePort{Name: portName, Port: int32(port), TargetPort: intstr.FromInt32(int32(port)), Protocol: corev1.ProtocolTCP})
	}
	podAnnotations := maps.Clone(annotations)
	podAnnotations[metadata.Injection] = "enabled"
	podAnnotations[metadata.Class] = state.Class
	one := intstr.FromInt32(1)
	return []client.Object{
		&corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: meta()},
		&appsv1.Deployment{
			TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: meta(),
			Spec: appsv1.DeploymentSpec{
				Selector: &metav1.LabelSelector{MatchLabels: selector},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(labels), Annotations: podAnnotations},
					Spec: corev1.PodSpec{
						ServiceAccountName: name,
						SecurityContext: &corev1.PodSecurityContext{
							// The proxy is not root, and listeners mostly have ports below 1024.
							Sysctls: []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"}},
						},
						Containers: []corev1.Container{{Name: driver.ProxyContainer, Image: podtemplate.AutoImage, Ports: containerPorts}},
						TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
							MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{MatchLabels: selector},
						}},
					},
				},
				// A pod is gone only when another one serves.
				Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{
					MaxUnavailable: new(intstr.FromInt32(0)), MaxSurge: &one,
				}},
			},
		},
		&corev1.Service{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: meta(),
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Selector: selector, Ports: servicePorts},
		},
		&policyv1.PodDisruptionBudget{
			TypeMeta: metav1.TypeMeta{APIVersion: "policy/v1", Kind: "PodDisruptionBudget"}, ObjectMeta: meta(),
			Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one, Selector: &metav1.LabelSelector{MatchLabels: selector}},
		},
	}
}

// isReserved reports whether a label or annotation is one that the injector reads, or that Kubernetes sets
// itself. Who may write a Gateway must not choose the image of a pod that the controller makes, or let
// the controller undo for ever what another one does.
func isReserved(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	for _, of := range []string{"openservicemesh.io", "istio.io", "outrigger.dev", "deployment.kubernetes.io"} {
		if domain == of || strings.HasSuffix(domain, "."+of) {
			return true
		}
	}
	return key == corev1.MirrorPodAnnotationKey || key == appsv1.DefaultDeploymentUniqueLabelKey
}

// MaxName is the length that the name of a Gateway may have: its objects have it as the value of a
// label.
const MaxName = 63

// maxName is the length that the name of a Service may have.
const maxName = 63

// nameOf returns the name of a Gateway's objects, GATEWAY-CLASS, as Gateway API recommends. A Service's
// is a DNS label that begins with a letter, so what is longer, begins with a digit or has dots is
// changed, and ends with a hash.
func nameOf(name, class string) string {
	full := name + "-" + class
	legal := strings.ReplaceAll(full, ".", "-")
	if legal[0] >= '0' && legal[0] <= '9' {
		legal = "gateway-" + legal
	}
	if legal == full && len(full) <= maxName {
		return full
	}
	sum := sha256.Sum256([]byte(full))
	const digits = 8
	return strings.TrimRight(legal[:min(len(legal), maxName-digits-1)], "-") + "-" + hex.EncodeToString(sum[:])[:digits]
}
