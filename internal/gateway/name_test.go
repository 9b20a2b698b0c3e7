package gateway_test

import (
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/gateway"
)

// isServiceName matches the names that a Service may have, see RFC 1035.
var isServiceName = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)

// TestNames makes objects with different names for all names that a Gateway may have, each of which a
// Service may have too.
func TestNames(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{
		"web", "web.example.com", "web-example-com", "web-example.com", "1", "gateway-1", "1.2", strings.Repeat("a", 63), strings.Repeat("a", 62) + "b", strings.Repeat("a", 45) + "-" + strings.Repeat("-", 10) + "b",
		strings.Repeat("9", 63), strings.Repeat("a.", 31) + "a",
	} {
		g := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: gatewayv1.GatewaySpec{GatewayClassName: "outrigger-envoy"}}
		for _, object := range gateway.Objects(g, &fact.GatewayState{Class: "envoy", Ports: []uint16{80}}) {
			if _, isService := object.(*corev1.Service); !isService {
				continue
			}
			got := object.GetName()
			if !isServiceName.MatchString(got) {
				t.Errorf("the Service of the Gateway %s would be called %q", name, got)
			}
			if other, ok := seen[got]; ok {
				t.Errorf("the Services of the Gateways %s and %s would be called %q", name, other, got)
			}
			seen[got] = name
			if strings.HasPrefix(name, "web") && !strings.Contains(name, ".") && got != name+"-outrigger-envoy" {
				t.Errorf("the Service of the Gateway %s would be called %q", name, got)
			}
		}
	}
}

// TestReserved keeps what a Gateway says about its pods from the keys that others read or write.
func TestReserved(t *testing.T) {
	keys := []string{"openservicemesh.io/sidecar-image", "sidecar.istio.io/proxyImage", "outrigger.dev/x", "kubernetes.io/config.mirror", "deployment.kubernetes.io/revision", "pod-template-hash"}
	g := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}, Spec: gatewayv1.GatewaySpec{
		GatewayClassName: "outrigger-envoy", Infrastructure: &gatewayv1.GatewayInfrastructure{
			Labels:      map[gatewayv1.LabelKey]gatewayv1.LabelValue{"team": "evil", fact.GatewayLabel: "evil", "app.kubernetes.io/managed-by": "evil"},
			Annotations: map[gatewayv1.AnnotationKey]gatewayv1.AnnotationValue{"example.com/a": "evil"},
		},
	}}
	for _, key := range keys {
		g.Spec.Infrastructure.Labels[gatewayv1.LabelKey(key)] = "evil"
		g.Spec.Infrastructure.Annotations[gatewayv1.AnnotationKey(key)] = "evil"
	}
	for _, object := range gateway.Objects(g, &fact.GatewayState{Class: "envoy", Ports: []uint16{80}}) {
		if len(object.GetLabels()) != 3 || object.GetLabels()["team"] != "evil" || object.GetLabels()[fact.GatewayLabel] != "web" {
			t.Errorf("%T has the labels %v", object, object.GetLabels())
		}
		if len(object.GetAnnotations()) != 1 || object.GetAnnotations()["example.com/a"] != "evil" {
			t.Errorf("%T has the annotations %v", object, object.GetAnnotations())
		}
	}
}
