package audit

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	accessv1alpha3 "github.com/outrigger-mesh/outrigger/apis/access/v1alpha3"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// found is a Catalog.
type found map[mesh.ObjectRef][]mesh.Problem

func (f found) SubscribeObjects(<-chan struct{}) <-chan mesh.ObjectRef { return nil }
func (f found) Problems(object mesh.ObjectRef) []mesh.Problem          { return f[object] }
func (f found) Found(object mesh.ObjectRef) *fact.Problems {
	return &fact.Problems{Object: object, List: f[object]}
}

// desk is a policies with the requests that it has sent to the API server.
type desk struct {
	*policies
	client.Client
	writes []string
}

// newDesk returns a desk with a namespace shop of the mesh and the objects.
func newDesk(t *testing.T, catalog Catalog, objects ...client.Object) *desk {
	t.Helper()
	d := &desk{}
	shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"openservicemesh.io/monitored-by": "osm"}}}
	d.Client = fake.NewClientBuilder().WithScheme(kube.Scheme()).
		WithObjects(append(objects, shop)...).
		WithStatusSubresource(&accessv1alpha3.TrafficTarget{}, &source.HTTPRoute{}).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
				d.writes = append(d.writes, fmt.Sprintf("create %T", obj))
				return c.Create(ctx, obj, opts...)
			},
			SubResourceUpdate: func(ctx context.Context, c client.Client, subresource string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
				d.writes = append(d.writes, fmt.Sprintf("update %s of %T", subresource, obj))
				return c.SubResource(subresource).Update(ctx, obj, opts...)
			},
		}).Build()
	d.policies = &policies{
		client: d.Client, catalog: catalog, mapper: source.NewMapper(source.MapperOptions{MeshName: "osm"}),
		metrics: NewMetrics(prometheus.NewRegistry()),
		members: make(map[string]bool), known: make(map[string]map[mesh.ObjectRef]*record),
	}
	d.look(t, mesh.ObjectRef{APIVersion: "v1", Kind: "Namespace", Name: "shop"})
	return d
}

// look reconciles an object, and returns what was written.
func (d *desk) look(t *testing.T, object mesh.ObjectRef) []string {
	t.Helper()
	d.writes = []string{}
	if _, err := d.Reconcile(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	return d.writes
}

func expect(t *testing.T, what string, want, got []string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// TestManyProblems limits the number of Events of an object with many Problems.
func TestManyProblems(t *testing.T) {
	target := &accessv1alpha3.TrafficTarget{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "1", Generation: 3}}
	ref, _ := source.Ref(target)
	var problems []mesh.Problem
	var want []string
	for i := range 100 {
		problems = append(problems, mesh.Problem{Object: ref, Reason: "NotFound", Field: fmt.Sprintf("spec.sources[%d]", i), Message: "it is not there"})
		if i < 20 {
			want = append(want, "create *v1.Event")
		}
	}
	d := newDesk(t, found{ref: problems}, target)
	expect(t, "writes", append(want, "update status of *v1alpha3.TrafficTarget"), d.look(t, ref))
	expect(t, "writes afterwards", []string{}, d.look(t, ref))
	if err := d.Get(t.Context(), client.ObjectKeyFromObject(target), target); err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if !source.Reported(target.Status.Conditions, p) {
			t.Errorf("the status does not name %s", p.Field)
		}
	}
}

// TestObjectWithoutStatus limits the requests for an object that changes often and keeps its
// Problems.
func TestObjectWithoutStatus(t *testing.T) {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "1"}}
	ref, _ := source.Ref(service)
	catalog := found{}
	d := newDesk(t, catalog, service)
	say := func(fields ...string) {
		catalog[ref] = nil
		for _, field := range fields {
			catalog[ref] = append(catalog[ref], mesh.Problem{Object: ref, Reason: "OutsideMesh", Field: field, Message: fmt.Sprintf("%d requests before", len(d.writes))})
		}
	}
	event := []string{"create *v1.Event"}

	expect(t, "nothing wrong", []string{}, d.look(t, ref))
	say("spec.ports[0]")
	expect(t, "first Problem", event, d.look(t, ref))
	say("spec.ports[0]")
	expect(t, "in other words", []string{}, d.look(t, ref))
	say("spec.ports[0]", "spec.ports[1]")
	expect(t, "second Problem", event, d.look(t, ref))
	say()
	expect(t, "solved", []string{}, d.look(t, ref))

	// The API server has that Event already, unless it has expired.
	say("spec.ports[1]")
	expect(t, "back again", event, d.look(t, ref))

	// A new Service of the same name is another object.
	if err := d.Delete(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	service = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: types.UID("2")}}
	if err := d.Create(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	expect(t, "another Service", event, d.look(t, ref))

	var events corev1.EventList
	if err := d.List(t.Context(), &events, client.InNamespace("shop")); err != nil {
		t.Fatal(err)
	}
	if len(events.Items) != 3 {
		t.Errorf("there are %d Events, want 3", len(events.Items))
	}
}

// TestOtherKinds leaves objects alone that are read in another way than traffic policies.
func TestOtherKinds(t *testing.T) {
	d := newDesk(t, found{})
	for _, kind := range []string{"Secret", "ConfigMap"} {
		expect(t, kind, []string{}, d.look(t, mesh.ObjectRef{APIVersion: "v1", Kind: kind, Namespace: "shop", Name: "x"}))
	}
}

// BenchmarkCount counts the Problems of one object among 10,000 that have some.
// TestRoute holds that the status of a route is written once, with an Event for its
// Problem, and that a route of a gateway alone is left alone.
func TestRoute(t *testing.T) {
	group, service := gateway.Group(""), gateway.Kind("Service")
	route := func(name string, parents ...gateway.ParentReference) *source.HTTPRoute {
		r := &source.HTTPRoute{HTTPRoute: gateway.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), Generation: 2}}}
		r.Spec.ParentRefs = parents
		return r
	}
	ref := func(name string) mesh.ObjectRef {
		return mesh.ObjectRef{APIVersion: "gateway.networking.k8s.io/v1", Kind: "HTTPRoute", Namespace: "shop", Name: name}
	}
	cart := ref("cart")
	catalog := found{cart: {{Object: cart, Reason: fact.ReasonBackendNotFound, Field: "spec.rules[0].backendRefs[0]", Message: "there is none"}}}
	d := newDesk(t, catalog, route("cart", gateway.ParentReference{Group: &group, Kind: &service, Name: "cart"}), route("gate", gateway.ParentReference{Name: "gate"}))
	expect(t, "of a route with a Problem", []string{"create *v1.Event", "update status of *source.HTTPRoute"}, d.look(t, cart))
	expect(t, "of a route that was written", []string{}, d.look(t, cart))
	expect(t, "of a gateway's route", []string{}, d.look(t, ref("gate")))
	var written source.HTTPRoute
	if err := d.Client.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "cart"}, &written); err != nil {
		t.Fatal(err)
	}
	if got := written.Status.Parents; len(got) != 1 || got[0].ControllerName != source.ControllerName {
		t.Errorf("the status has the parents %+v", got)
	}
}

// TestOutsider checks that a route in a namespace outside the mesh gets an Event if it has no
// effect on a Service in it, but no status, and nothing about its other Problems.
func TestOutsider(t *testing.T) {
	group, service, shop := gateway.Group(""), gateway.Kind("Service"), gateway.Namespace("shop")
	route := &source.HTTPRoute{HTTPRoute: gateway.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "outside", Name: "cart", UID: "1", Generation: 1}}}
	route.Spec.ParentRefs = []gateway.ParentReference{{Group: &group, Kind: &service, Name: "cart", Namespace: &shop}}
	ref := mesh.ObjectRef{APIVersion: "gateway.networking.k8s.io/v1", Kind: "HTTPRoute", Namespace: "outside", Name: "cart"}
	catalog := found{ref: {{Object: ref, Reason: fact.ReasonUnsupportedValue, Field: "spec.rules[0].filters[0]", Message: "it is not supported"}}}
	d := newDesk(t, catalog, route)
	expect(t, "of another Problem", []string{}, d.look(t, ref))
	catalog[ref] = append(catalog[ref], mesh.Problem{Object: ref, Reason: fact.ReasonNoMatchingParent, Field: "spec.parentRefs[0]", Message: "its namespace is not in the mesh"})
	expect(t, "of a route without effect", []string{"create *v1.Event"}, d.look(t, ref))
	expect(t, "of the same again", []string{}, d.look(t, ref))
}

// TestConflicts lets somebody else change each of 100 objects between reading and writing it,
// and deletes some: the newer object is looked at again when the catalog has it.
func TestConflicts(t *testing.T) {
	catalog := found{}
	var refs []mesh.ObjectRef
	var objects []client.Object
	for i := range 100 {
		target := &accessv1alpha3.TrafficTarget{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("t%d", i), UID: types.UID(fmt.Sprint(i)), Generation: 1}}
		ref, _ := source.Ref(target)
		objects, refs = append(objects, target), append(refs, ref)
	}
	d := newDesk(t, catalog, objects...)
	former := d.policies.client
	stale := true
	d.policies.client = interceptor.NewClient(d.Client.(client.WithWatch), interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, subresource string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
			if stale {
				var now accessv1alpha3.TrafficTarget
				if err := former.Get(ctx, client.ObjectKeyFromObject(obj), &now); err != nil {
					return err
				}
				now.Labels = map[string]string{"changed": "yes"}
				if err := former.Update(ctx, &now); err != nil {
					return err
				}
			}
			return c.SubResource(subresource).Update(ctx, obj, opts...)
		},
	})
	for _, ref := range refs {
		expect(t, "a write that meets a newer object", []string{"update status of *v1alpha3.TrafficTarget"}, d.look(t, ref))
	}
	stale = false
	for i, ref := range refs {
		if i%10 == 0 {
			if err := d.Delete(t.Context(), objects[i]); err != nil {
				t.Fatal(err)
			}
			expect(t, "of a deleted object", []string{}, d.look(t, ref))
			continue
		}
		expect(t, "of the newer object", []string{"update status of *v1alpha3.TrafficTarget"}, d.look(t, ref))
		expect(t, "of an object that was written", []string{}, d.look(t, ref))
	}
}

func BenchmarkCount(b *testing.B) {
	m := NewMetrics(prometheus.NewRegistry())
	problem := []mesh.Problem{{Reason: "NotFound"}}
	for i := range 10_000 {
		m.count(mesh.ObjectRef{Kind: "Egress", Namespace: "shop", Name: fmt.Sprint(i)}, problem)
	}
	pod := mesh.ObjectRef{Kind: "Pod", Namespace: "shop", Name: "cart"}
	b.ReportAllocs()
	for b.Loop() {
		m.count(pod, nil)
	}
}
