package gateway

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// none is a Catalog that finds no Gateway, or the same state of all.
type none struct {
	ready chan struct{}
	state *fact.GatewayState
}

func (n none) Ready() <-chan struct{}                                 { return n.ready }
func (n none) SubscribeObjects(<-chan struct{}) <-chan mesh.ObjectRef { return nil }
func (n none) Found(object mesh.ObjectRef) *fact.Problems {
	return &fact.Problems{Object: object, Gateway: n.state}
}
func silent(context.Context, corev1.ObjectReference, string, string) error { return nil }

// newScheme returns the scheme of the kinds that the controller reads and makes.
func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := gateway.Install(scheme); err != nil {
		t.Fatal(err)
	}
	return scheme
}

// TestKeepsObjects deletes the objects of a Gateway only if another controller has it: neither before the
// Catalog is ready, as when the controller starts, nor while the class is missing or no listener can be
// used.
func TestKeepsObjects(t *testing.T) {
	for _, tt := range []struct {
		name            string
		isReady, exists bool
		state           *fact.GatewayState
		want            int
	}{
		{"the controller starts", false, true, nil, 4},
		{"the class is gone", true, false, nil, 4},
		{"no listener can be used", true, true, &fact.GatewayState{Class: "envoy"}, 4},
		{"of another controller", true, true, nil, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := &gateway.Gateway{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u"}, Spec: gateway.GatewaySpec{GatewayClassName: "outrigger-envoy"}}
			objects := []client.Object{g}
			if tt.exists {
				objects = append(objects, &gateway.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "outrigger-envoy"}, Spec: gateway.GatewayClassSpec{ControllerName: "example.com/other"}})
			}
			c := fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(append(objects, Objects(g, &fact.GatewayState{Class: "envoy", Ports: []uint16{80}})...)...).Build()
			r := &gateways{client: c, catalog: none{make(chan struct{}), tt.state}, warn: silent}
			if tt.isReady {
				close(r.catalog.(none).ready)
			}
			if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "web"}}); err != nil {
				t.Fatal(err)
			}
			left := 0
			for _, list := range []client.ObjectList{&corev1.ServiceAccountList{}, &appsv1.DeploymentList{}, &corev1.ServiceList{}, &policyv1.PodDisruptionBudgetList{}} {
				if err := c.List(t.Context(), list); err != nil {
					t.Fatal(err)
				}
				switch l := list.(type) {
				case *corev1.ServiceAccountList:
					left += len(l.Items)
				case *appsv1.DeploymentList:
					left += len(l.Items)
				case *corev1.ServiceList:
					left += len(l.Items)
				case *policyv1.PodDisruptionBudgetList:
					left += len(l.Items)
				}
			}
			if left != tt.want {
				t.Errorf("%d objects are left, want %d", left, tt.want)
			}
		})
	}
}

// TestKeepsAccount makes no pods that would run as an account that is not the Gateway's.
func TestKeepsAccount(t *testing.T) {
	g := &gateway.Gateway{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u"}, Spec: gateway.GatewaySpec{GatewayClassName: "outrigger-envoy"}}
	c := fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(g, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "web-outrigger-envoy", Namespace: "shop"}}).Build()
	ready := make(chan struct{})
	close(ready)
	r := &gateways{client: c, catalog: none{ready, &fact.GatewayState{Class: "envoy", Ports: []uint16{80}}}, warn: silent}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "web"}}); err == nil {
		t.Error("another's ServiceAccount is no error")
	}
	var deployments appsv1.DeploymentList
	if err := c.List(t.Context(), &deployments); err != nil || len(deployments.Items) > 0 {
		t.Errorf("there are the Deployments %v, %v", deployments.Items, err)
	}
}

// TestClassChange keeps what runs a Gateway of a former class, but for its budget, until the pods of the
// new class serve.
func TestClassChange(t *testing.T) {
	g := &gateway.Gateway{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u"}, Spec: gateway.GatewaySpec{GatewayClassName: "outrigger-envoy"}}
	former := Objects(g, &fact.GatewayState{Class: "envoy", Ports: []uint16{80}})
	g.Spec.GatewayClassName = "outrigger-haproxy"
	c := fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(append(former, g)...).WithStatusSubresource(&appsv1.Deployment{}).Build()
	ready := make(chan struct{})
	close(ready)
	r := &gateways{client: c, catalog: none{ready, &fact.GatewayState{Class: "haproxy", Ports: []uint16{80}}}, warn: silent}
	reconcileAll := func() reconcile.Result {
		t.Helper()
		result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "web"}})
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	left := func() string {
		var kinds []string
		for _, kind := range made {
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
			if err := c.List(t.Context(), list); err != nil {
				t.Fatal(err)
			}
			for _, o := range list.Items {
				kinds = append(kinds, kind.Kind+" "+o.Name)
			}
		}
		return strings.Join(kinds, "\n")
	}
	const (
		kept = "ServiceAccount web-outrigger-envoy\nServiceAccount web-outrigger-haproxy\nDeployment web-outrigger-envoy\nDeployment web-outrigger-haproxy\n" +
			"Service web-outrigger-envoy\nService web-outrigger-haproxy\nPodDisruptionBudget web-outrigger-haproxy"
		changed = "ServiceAccount web-outrigger-haproxy\nDeployment web-outrigger-haproxy\nService web-outrigger-haproxy\nPodDisruptionBudget web-outrigger-haproxy"
	)
	if result := reconcileAll(); result.RequeueAfter == 0 || left() != kept {
		t.Errorf("before a pod serves, there are\n%s\nwant\n%s\nand it looks again after %v", left(), kept, result.RequeueAfter)
	}
	d := new(appsv1.Deployment)
	if err := c.Get(t.Context(), types.NamespacedName{Namespace: "shop", Name: "web-outrigger-haproxy"}, d); err != nil {
		t.Fatal(err)
	}
	d.Status.AvailableReplicas, d.Status.ObservedGeneration = 1, d.Generation
	if err := c.Status().Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if result := reconcileAll(); result.RequeueAfter != 0 || left() != changed {
		t.Errorf("when a pod serves, there are\n%s\nwant\n%s\nand it looks again after %v", left(), changed, result.RequeueAfter)
	}
}
