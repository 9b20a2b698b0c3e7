package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	controllerconfig "sigs.k8s.io/controller-runtime/pkg/config"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/gateway"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// found is a Catalog.
type found struct {
	mu      sync.Mutex
	states  map[string]*fact.GatewayState
	changes chan mesh.ObjectRef
}

func refOf(name string) mesh.ObjectRef {
	return mesh.ObjectRef{APIVersion: "gateway.networking.k8s.io/v1", Kind: "Gateway", Namespace: "default", Name: name}
}

func (f *found) set(name string, state *fact.GatewayState) {
	f.mu.Lock()
	f.states[name] = state
	f.mu.Unlock()
	f.changes <- refOf(name)
}

func (f *found) Ready() <-chan struct{} {
	closed := make(chan struct{})
	close(closed)
	return closed
}

func (f *found) SubscribeObjects(<-chan struct{}) <-chan mesh.ObjectRef { return f.changes }

func (f *found) Found(object mesh.ObjectRef) *fact.Problems {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &fact.Problems{Object: object, Gateway: f.states[object.Name]}
}

// site is a controller of gateways with an API server.
type site struct {
	client.Client
	*found
	warnings sync.Map
}

func (s *site) warn(_ context.Context, g corev1.ObjectReference, _, message string) error {
	s.warnings.Store(g.Name, message)
	return nil
}

func newSite(t *testing.T) *site {
	t.Helper()
	config := apiserver.Start(t)
	ctrllog.SetLogger(logr.Discard())
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := gatewayv1.Install(scheme); err != nil {
		t.Fatal(err)
	}
	skip := true
	mgr, err := manager.New(config, manager.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}, Controller: controllerconfig.Controller{SkipNameValidation: &skip},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &site{found: &found{states: map[string]*fact.GatewayState{}, changes: make(chan mesh.ObjectRef, 100)}}
	if s.Client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	if err := gateway.Add(t.Context(), mgr, s.found, []string{"envoy", "haproxy"}, s.warn, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// gateway makes a Gateway.
func (s *site) gateway(t *testing.T, name, class string, change func(*gatewayv1.Gateway)) *gatewayv1.Gateway {
	t.Helper()
	g := &gatewayv1.Gateway{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: gatewayv1.GatewaySpec{GatewayClassName: gatewayv1.ObjectName("outrigger-" + class), Listeners: []gatewayv1.Listener{
			{Name: "http", Port: 80, Protocol: gatewayv1.HTTPProtocolType},
		}},
	}
	if change != nil {
		change(g)
	}
	if err := s.Create(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	s.set(name, &fact.GatewayState{Class: class, Ports: []uint16{80}})
	return g
}

// objects returns "Kind name" of all that was made for a Gateway.
func (s *site) objects(t *testing.T, name string) []string {
	t.Helper()
	var all []string
	lists := []client.ObjectList{&corev1.ServiceAccountList{}, &appsv1.DeploymentList{}, &corev1.ServiceList{}, &policyv1.PodDisruptionBudgetList{}}
	for _, list := range lists {
		if err := s.List(t.Context(), list, client.MatchingLabels{fact.GatewayLabel: name}); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		var items struct {
			Items []struct{ Metadata metav1.ObjectMeta }
		}
		if err := json.Unmarshal(text, &items); err != nil {
			t.Fatal(err)
		}
		for _, item := range items.Items {
			kind := strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%T", list), "*v1."), "List")
			all = append(all, kind+" "+item.Metadata.Name)
		}
	}
	slices.Sort(all)
	return all
}

func eventually(t *testing.T, is func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = is(); err == nil {
			return
		}
	}
	t.Fatal(err)
}

func (s *site) has(t *testing.T, name string, want ...string) {
	t.Helper()
	eventually(t, func() error {
		if got := s.objects(t, name); !slices.Equal(got, want) {
			return fmt.Errorf("for Gateway %s there are %q, want %q", name, got, want)
		}
		return nil
	})
}

func all(name string) []string {
	return []string{"Deployment " + name, "PodDisruptionBudget " + name, "Service " + name, "ServiceAccount " + name}
}

// TestGateways makes, repairs and removes what runs Gateways.
func TestGateways(t *testing.T) {
	s := newSite(t)
	ctx := t.Context()
	t.Run("classes", func(t *testing.T) {
		for _, name := range []string{"outrigger-envoy", "outrigger-haproxy"} {
			eventually(t, func() error { return s.Get(ctx, client.ObjectKey{Name: name}, new(gatewayv1.GatewayClass)) })
		}
	})
	t.Run("made and repaired", func(t *testing.T) {
		s.gateway(t, "web", "envoy", func(g *gatewayv1.Gateway) {
			g.Spec.Infrastructure = &gatewayv1.GatewayInfrastructure{
				Labels: map[gatewayv1.LabelKey]gatewayv1.LabelValue{"team": "edge"}, Annotations: map[gatewayv1.AnnotationKey]gatewayv1.AnnotationValue{"example.com/a": "b", "openservicemesh.io/sidecar-image": "evil", "sidecar.istio.io/proxyImage": "evil"},
			}
		})
		s.has(t, "web", all("web-outrigger-envoy")...)
		key := client.ObjectKey{Namespace: "default", Name: "web-outrigger-envoy"}
		d, svc := new(appsv1.Deployment), new(corev1.Service)
		if err := s.Get(ctx, key, d); err != nil {
			t.Fatal(err)
		}
		pod := d.Spec.Template
		if pod.Labels["team"] != "edge" || pod.Annotations["example.com/a"] != "b" || pod.Annotations["openservicemesh.io/sidecar-class"] != "envoy" || pod.Spec.Containers[0].Image != "auto" {
			t.Errorf("the pods are %+v", pod)
		}
		for key, value := range pod.Annotations {
			if value == "evil" {
				t.Errorf("a Gateway sets the annotation %s of its pods", key)
			}
		}
		// The number of replicas is the user's.
		d.Spec.Replicas = new(int32(3))
		if err := s.Update(ctx, d, client.FieldOwner("kubectl")); err != nil {
			t.Fatal(err)
		}
		if err := s.Get(ctx, key, svc); err != nil {
			t.Fatal(err)
		}
		svc.Spec.Ports[0].Port = 81
		if err := s.Update(ctx, svc); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			if err := s.Get(ctx, key, svc); err != nil {
				return err
			}
			if len(svc.Spec.Ports) != 1 || svc.Spec.Ports[0].Port != 80 {
				return fmt.Errorf("the ports of the Service are %v", svc.Spec.Ports)
			}
			return nil
		})
		if err := s.Delete(ctx, svc); err != nil {
			t.Fatal(err)
		}
		s.has(t, "web", all("web-outrigger-envoy")...)
		s.set("web", &fact.GatewayState{Class: "envoy", Ports: []uint16{80, 8080}})
		eventually(t, func() error {
			if err := s.Get(ctx, key, svc); err != nil {
				return err
			}
			if len(svc.Spec.Ports) != 2 || svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
				return fmt.Errorf("the Service is %+v", svc.Spec)
			}
			return nil
		})
		if err := s.Get(ctx, key, d); err != nil || *d.Spec.Replicas != 3 {
			t.Errorf("there are %d replicas, %v, want those of the user", *d.Spec.Replicas, err)
		}
	})
	t.Run("another class", func(t *testing.T) {
		g := s.gateway(t, "moves", "envoy", nil)
		s.has(t, "moves", all("moves-outrigger-envoy")...)
		g.Spec.GatewayClassName = "outrigger-haproxy"
		if err := s.Update(ctx, g); err != nil {
			t.Fatal(err)
		}
		s.set("moves", &fact.GatewayState{Class: "haproxy", Ports: []uint16{80}})
		// Nobody runs Deployments here.
		eventually(t, func() error {
			d := new(appsv1.Deployment)
			if err := s.Get(ctx, client.ObjectKey{Namespace: "default", Name: "moves-outrigger-haproxy"}, d); err != nil {
				return err
			}
			d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}
			return s.Status().Update(ctx, d)
		})
		s.has(t, "moves", all("moves-outrigger-haproxy")...)
		s.set("moves", nil)
		s.has(t, "moves")
	})
	t.Run("own pods", func(t *testing.T) {
		s.gateway(t, "own", "envoy", func(g *gatewayv1.Gateway) {
			g.Annotations = map[string]string{"openservicemesh.io/gateway-pods": "own"}
		})
		s.gateway(t, "last", "envoy", nil)
		s.has(t, "last", all("last-outrigger-envoy")...)
		s.has(t, "own")
	})
	t.Run("another's objects stay", func(t *testing.T) {
		mine := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "taken-outrigger-envoy", Namespace: "default", Labels: map[string]string{fact.GatewayLabel: "taken", "app.kubernetes.io/managed-by": "outrigger-controller"}},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}},
		}
		if err := s.Create(ctx, mine); err != nil {
			t.Fatal(err)
		}
		s.gateway(t, "taken", "envoy", nil)
		s.has(t, "taken", all("taken-outrigger-envoy")...)
		eventually(t, func() error {
			if text, _ := s.warnings.Load("taken"); text == nil || !strings.Contains(text.(string), "Service default/taken-outrigger-envoy of Gateway taken: an object of that name exists") {
				return fmt.Errorf("the warning is %v", text)
			}
			return nil
		})
		s.set("taken", nil)
		s.has(t, "taken", "Service taken-outrigger-envoy")
		if err := s.Get(ctx, client.ObjectKeyFromObject(mine), mine); err != nil || mine.Spec.Ports[0].Port != 1 {
			t.Errorf("the user's Service is %+v, %v", mine.Spec, err)
		}
	})
	t.Run("another's account", func(t *testing.T) {
		other := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "posing-outrigger-envoy", Namespace: "default"}}
		if err := s.Create(ctx, other); err != nil {
			t.Fatal(err)
		}
		s.gateway(t, "posing", "envoy", nil)
		eventually(t, func() error {
			if text, _ := s.warnings.Load("posing"); text == nil || !strings.Contains(text.(string), "ServiceAccount default/posing-outrigger-envoy") {
				return fmt.Errorf("the warning is %v", text)
			}
			return nil
		})
		if got := s.objects(t, "posing"); len(got) > 0 {
			t.Errorf("there are %q, though their account is another's", got)
		}
	})
	t.Run("long names", func(t *testing.T) {
		long := strings.Repeat("a", 250)
		s.gateway(t, long[:63], "envoy", nil)
		eventually(t, func() error {
			if got := s.objects(t, long[:63]); len(got) != 4 {
				return fmt.Errorf("there are %q", got)
			}
			return nil
		})
	})
	if err := s.Get(ctx, client.ObjectKey{Name: "outrigger-pipy"}, new(gatewayv1.GatewayClass)); !apierrors.IsNotFound(err) {
		t.Errorf("a class that was not asked for: %v", err)
	}
}
