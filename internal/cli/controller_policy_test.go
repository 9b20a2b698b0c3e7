package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/apis/status"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// market is a mesh without Problems: desk may call cart.
const market = `
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec:
  traffic: {enablePermissiveTrafficPolicyMode: false, enableEgress: false}
  featureFlags: {enableEgressPolicy: true}
---
apiVersion: v1
kind: Pod
metadata: {name: cart, namespace: market, annotations: {openservicemesh.io/sidecar-status: '{"version":1,"class":"envoy"}'}}
spec: {serviceAccountName: cart, containers: [{name: app, image: app}]}
---
apiVersion: v1
kind: Pod
metadata: {name: desk, namespace: market, annotations: {openservicemesh.io/sidecar-status: '{"version":1,"class":"envoy"}'}}
spec: {serviceAccountName: desk, containers: [{name: app, image: app}]}
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: market}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart-1, namespace: market, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{name: http, port: 80}]
endpoints: [{addresses: [10.244.0.7], targetRef: {kind: Pod, namespace: market, name: cart}}]
`

// wrong are objects of market. All except one have Problems.
const wrong = `
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: cart, namespace: market}
spec:
  destination: {kind: ServiceAccount, name: cart, namespace: market}
  sources: [{kind: ServiceAccount, name: desk, namespace: market}]
  rules: [{kind: HTTPRouteGroup, name: reads}]
---
apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: {name: one, namespace: market}
spec: {service: cart, backends: [{service: cart, weight: 1}]}
---
apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: {name: two, namespace: market}
spec: {service: cart, backends: [{service: cart, weight: 2}]}
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: Egress
metadata: {name: out, namespace: market}
spec:
  sources: [{kind: ServiceAccount, name: desk, namespace: market}]
  hosts: ["https://example.com", example.com]
  ports: [{number: 443, protocol: https}]
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: cart, namespace: market}
spec: {host: cart.market.svc.cluster.local}
---
apiVersion: v1
kind: Service
metadata: {name: till, namespace: market}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: till-1, namespace: market, labels: {kubernetes.io/service-name: till}}
addressType: IPv4
ports: [{name: http, port: 80}]
endpoints: [{addresses: [192.0.2.1]}]
`

const (
	noGroup   = "spec.rules[0].name: there is no HTTPRouteGroup market/reads; nothing is allowed until there is"
	olderOne  = "spec.service: TrafficSplit market/one splits the same service and is older; delete one of them"
	noHost    = `spec.hosts[0]: "https://example.com" is not a host and is ignored; write a DNS name without a port, such as api.example.com or *.example.com`
	noSidecar = "spec.ports[0]: no traffic is sent to 192.0.2.1, which has no sidecar"

	groupEvent  = "Warning NotFound TrafficTarget/cart " + noGroup
	splitEvent  = "Warning Conflict TrafficSplit/two " + olderOne
	egressEvent = "Warning Invalid Egress/out " + noHost
	tillEvent   = "Warning OutsideMesh Service/till " + noSidecar

	wrongMetrics = `outrigger_problems{kind="Egress",name="out",namespace="market",reason="Invalid"} 1
outrigger_problems{kind="Service",name="till",namespace="market",reason="OutsideMesh"} 1
outrigger_problems{kind="TrafficSplit",name="two",namespace="market",reason="Conflict"} 1
outrigger_problems{kind="TrafficTarget",name="cart",namespace="market",reason="NotFound"} 1
`
)

// TestControllerPolicies is one test, since it starts one API server. Its parts depend on the
// parts before.
func TestControllerPolicies(t *testing.T) {
	c := newControllerTest(t)
	c.allow(t, "")
	monitored := map[string]string{"openservicemesh.io/monitored-by": "osm"}
	c.createNamespace(t, "market", monitored)
	c.createNamespace(t, "ending", monitored)
	c.createNamespace(t, "elsewhere", map[string]string{"openservicemesh.io/monitored-by": "another"})
	c.apply(t, decode(t, market)...)

	t.Run("problems", c.testProblems)
	t.Run("nothing new", c.testNothingNew)
	t.Run("mended", c.testMended)
	t.Run("another mesh", c.testAnotherMesh)
	t.Run("namespace that ends", c.testEndingNamespace)
	t.Run("no CRD", c.testNoCRD)
}

func (c *controllerTest) testProblems(t *testing.T) {
	r := c.start(t)
	c.apply(t, decode(t, wrong)...)
	c.expectVerdict(t, "TrafficTarget", "cart", "Accepted=False NotFound "+noGroup)
	c.expectVerdict(t, "TrafficSplit", "one")
	c.expectVerdict(t, "TrafficSplit", "two", "NoEffect=True Conflict "+olderOne)
	c.expectVerdict(t, "Egress", "out", "Accepted=False Invalid "+noHost, "error: "+noHost)
	c.expectVerdict(t, "UpstreamTrafficSetting", "cart", "committed: the object is in use")
	c.expectEvents(t, "market", splitEvent, egressEvent, groupEvent, tillEvent)
	expectProblems(t, r, wrongMetrics)

	// Writing the status must not change the rest of the object.
	egress := c.policy(t, "Egress", "market", "out")
	if len(egress.GetManagedFields()) != 2 {
		t.Errorf("fields of the Egress are managed by %v, want the one who applied it and the controller", egress.GetManagedFields())
	}
}

// testNothingNew continues with the objects of the part before. Neither an update without
// changes nor a restart makes the controller write.
func (c *controllerTest) testNothingNew(t *testing.T) {
	r := c.start(t)
	for _, name := range []string{"TrafficTarget/cart", "TrafficSplit/two", "Egress/out", "UpstreamTrafficSetting/cart"} {
		kind, name, _ := strings.Cut(name, "/")
		policy := c.policy(t, kind, "market", name)
		policy.SetLabels(map[string]string{"changed": "yes"})
		if err := c.Update(t.Context(), policy); err != nil {
			t.Fatal(err)
		}
	}
	// A Service whose list of foreign endpoints grows has the same Problem.
	c.apply(t, decode(t, strings.Replace(wrong[strings.LastIndex(wrong, "---"):], "endpoints: [", "endpoints: [{addresses: [192.0.2.2]}, ", 1))...)
	versions := c.versions(t)
	c.expectMarker(t)
	if err := same(versions, c.versions(t)); err != nil {
		t.Errorf("policies were written although nothing changed: %v", err)
	}

	r.stop()
	r = c.start(t)
	c.expectMarker(t)
	if err := same(versions, c.versions(t)); err != nil {
		t.Errorf("policies were written after a restart: %v", err)
	}
	expectProblems(t, r, wrongMetrics)
	c.expectEvents(t, "market", splitEvent, egressEvent, groupEvent, tillEvent)
}

func (c *controllerTest) testMended(t *testing.T) {
	r := c.start(t)
	expectProblems(t, r, wrongMetrics)
	before := c.policy(t, "TrafficTarget", "market", "cart")

	// Only the Egress had a Problem by itself.
	c.apply(t, decode(t, `
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: reads, namespace: market}
spec: {matches: [{name: all, pathRegex: .*, methods: [GET]}]}
`)...)
	c.delete(t, "TrafficSplit", "one")
	egress := c.policy(t, "Egress", "market", "out")
	if err := unstructured.SetNestedStringSlice(egress.Object, []string{"example.com"}, "spec", "hosts"); err != nil {
		t.Fatal(err)
	}
	if err := c.Update(t.Context(), egress); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "market", Name: "till"}}); err != nil {
		t.Fatal(err)
	}
	c.expectVerdict(t, "HTTPRouteGroup", "reads")
	c.expectVerdict(t, "TrafficTarget", "cart")
	c.expectVerdict(t, "TrafficSplit", "two")
	c.expectVerdict(t, "Egress", "out", "committed: the object is in use")
	expectProblems(t, r, "")
	after := c.policy(t, "TrafficTarget", "market", "cart")
	if after.GetGeneration() != before.GetGeneration() {
		t.Errorf("the TrafficTarget has generation %d, had %d, and nobody edited it", after.GetGeneration(), before.GetGeneration())
	}

	// A deleted object with Problems is no longer counted.
	c.delete(t, "HTTPRouteGroup", "reads")
	expectProblems(t, r, `outrigger_problems{kind="TrafficTarget",name="cart",namespace="market",reason="NotFound"} 1`+"\n")
	c.delete(t, "TrafficTarget", "cart")
	expectProblems(t, r, "")
}

// testAnotherMesh has policies of another mesh, whose controller writes their status.
func (c *controllerTest) testAnotherMesh(t *testing.T) {
	const event = "Warning NotFound TrafficTarget/cart spec.destination: no pod runs as service account elsewhere/cart; check the name, or wait for the pods"
	r := c.start(t)
	policies := decode(t, strings.ReplaceAll(wrong, "market", "elsewhere"))
	c.apply(t, policies...)
	c.expectMarker(t)
	for _, policy := range policies {
		kind := policy.GetKind()
		if found, ok := c.policy(t, kind, "elsewhere", policy.GetName()).Object["status"].(map[string]any); ok && found["conditions"] != nil {
			t.Errorf("%s elsewhere/%s has the status %v", kind, policy.GetName(), found)
		}
	}
	if got := c.events(t, "elsewhere"); len(got) > 0 {
		t.Errorf("Events in a namespace of another mesh: %q", got)
	}
	expectProblems(t, r, "")

	// Existing objects are checked when their namespace joins the mesh.
	c.monitor(t, "elsewhere", "osm")
	eventually(t, "an Event", func() error {
		if got := c.events(t, "elsewhere"); !slices.Contains(got, event) {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	eventually(t, "metrics", func() error {
		if got := r.metrics(); !strings.Contains(got, `kind="Egress",name="out",namespace="elsewhere",reason="Invalid"} 1`) {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	c.monitor(t, "elsewhere", "another")
	expectProblems(t, r, "")
}

// testEndingNamespace causes a Problem in a namespace that is being deleted and accepts no
// Events.
func (c *controllerTest) testEndingNamespace(t *testing.T) {
	r := c.start(t)
	c.apply(t, decode(t, `
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: reads, namespace: ending}
spec: {matches: [{name: all, pathRegex: .*, methods: [GET]}]}
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: cart, namespace: ending}
spec:
  destination: {kind: ServiceAccount, name: cart, namespace: ending}
  sources: [{kind: ServiceAccount, name: desk, namespace: market}]
  rules: [{kind: HTTPRouteGroup, name: reads}]
`)...)
	accepted := func(want string) {
		t.Helper()
		eventually(t, "the status", func() error {
			s := c.status(t, c.policy(t, "TrafficTarget", "ending", "cart"))
			if accepted := meta.FindStatusCondition(s.Conditions, "Accepted"); accepted == nil || !strings.HasSuffix(accepted.Message, want) {
				return fmt.Errorf("got %+v", s)
			}
			return nil
		})
	}
	accepted("no pod runs as service account ending/cart; check the name, or wait for the pods")
	ending := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ending"}}
	if err := c.Delete(t.Context(), ending); err != nil {
		t.Fatal(err)
	}
	group := c.policy(t, "HTTPRouteGroup", "ending", "reads")
	if err := c.Delete(t.Context(), group); err != nil {
		t.Fatal(err)
	}
	accepted("there is no HTTPRouteGroup ending/reads; nothing is allowed until there is")
	if strings.Contains(r.log.String(), "level=ERROR") {
		t.Error("there are errors in the log")
	}
	if err := c.Delete(t.Context(), c.policy(t, "TrafficTarget", "ending", "cart")); err != nil {
		t.Fatal(err)
	}
	expectProblems(t, r, "")
}

// testNoCRD starts a controller without the CRD of a kind. The controller becomes ready, and
// writes the status of the kind's objects once the CRD exists.
func (c *controllerTest) testNoCRD(t *testing.T) {
	var crd *unstructured.Unstructured
	for _, text := range c.chart.CRDs {
		if found := decode(t, text)[0]; strings.HasPrefix(found.GetName(), "retries.") {
			crd = found
		}
	}
	if err := c.Delete(t.Context(), crd.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the CRD is gone", func() error {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(crd), crd.DeepCopy()); client.IgnoreNotFound(err) != nil || err == nil {
			return fmt.Errorf("it is not: %v", err)
		}
		return nil
	})
	r := c.start(t)
	c.expectMarker(t)
	c.apply(t, crd)
	retry := decode(t, `
apiVersion: policy.openservicemesh.io/v1alpha1
kind: Retry
metadata: {name: carts, namespace: market}
spec:
  source: {kind: ServiceAccount, name: desk, namespace: market}
  destinations: [{kind: Service, name: cart, namespace: market}]
  retryPolicy: {retryOn: 5xx, numRetries: 2}
`)[0]
	eventually(t, "the CRD is served", func() error { return apiserver.Apply(t.Context(), c, retry) })
	const off = "spec.featureFlags.enableRetryPolicy of the MeshConfig is off"
	c.expectVerdict(t, "Retry", "carts", "Accepted=False Disabled "+off, "error: "+off)
	expectProblems(t, r, `outrigger_problems{kind="Retry",name="carts",namespace="market",reason="Disabled"} 1`+"\n")
}

// expectProblems is expectMetrics without the metrics of the MeshConfig.
func expectProblems(t *testing.T, r *running, want string) {
	t.Helper()
	eventually(t, "metrics", func() error {
		lines := slices.Collect(strings.Lines(r.metrics()))
		lines = slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, `kind="MeshConfig"`) })
		return same(want, strings.Join(lines, ""))
	})
}

// groups are the API groups of the policies, with their versions.
var groups = map[string]schema.GroupVersion{
	"Egress":                 {Group: "policy.openservicemesh.io", Version: "v1alpha1"},
	"HTTPRouteGroup":         {Group: "specs.smi-spec.io", Version: "v1alpha4"},
	"Retry":                  {Group: "policy.openservicemesh.io", Version: "v1alpha1"},
	"TrafficSplit":           {Group: "split.smi-spec.io", Version: "v1alpha4"},
	"TrafficTarget":          {Group: "access.smi-spec.io", Version: "v1alpha3"},
	"UpstreamTrafficSetting": {Group: "policy.openservicemesh.io", Version: "v1alpha1"},
}

// policy reads a policy, or another object of the kinds in wrong.
func (c *controllerTest) policy(t *testing.T, kind, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	group, ok := groups[kind]
	if !ok {
		group = map[string]schema.GroupVersion{"Service": {Version: "v1"}, "EndpointSlice": {Group: "discovery.k8s.io", Version: "v1"}}[kind]
	}
	obj := &unstructured.Unstructured{}
	obj.SetGroupVersionKind(group.WithKind(kind))
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

func (c *controllerTest) delete(t *testing.T, kind, name string) {
	t.Helper()
	if err := c.Delete(t.Context(), c.policy(t, kind, "market", name)); err != nil {
		t.Fatal(err)
	}
}

func (c *controllerTest) monitor(t *testing.T, namespace, mesh string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata": {"labels": {"openservicemesh.io/monitored-by": %q}}}`, mesh)
	err := c.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, client.RawPatch("application/merge-patch+json", []byte(patch)))
	if err != nil {
		t.Fatal(err)
	}
}

// policyStatus is the status of any policy.
type policyStatus struct {
	status.Status
	CurrentStatus, Reason string
}

func (c *controllerTest) status(t *testing.T, policy *unstructured.Unstructured) policyStatus {
	t.Helper()
	text, err := yaml.Marshal(policy.Object["status"])
	if err != nil {
		t.Fatal(err)
	}
	var s policyStatus
	if err := yaml.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// expectVerdict waits until the status of a policy of market is up to date and has the wanted
// content: the conditions that differ from those of a valid policy, and Open Service Mesh's
// status.
func (c *controllerTest) expectVerdict(t *testing.T, kind, name string, want ...string) {
	t.Helper()
	eventually(t, "the status of "+kind+" "+name, func() error {
		policy := c.policy(t, kind, "market", name)
		s := c.status(t, policy)
		got := []string{}
		if len(s.Conditions) != 3 || s.ObservedGeneration != policy.GetGeneration() {
			return fmt.Errorf("generation %d has %+v", policy.GetGeneration(), s)
		}
		for _, condition := range s.Conditions {
			if well := condition.Type == "Accepted"; condition.Status == metav1.ConditionTrue != well {
				got = append(got, fmt.Sprintf("%s=%s %s %s", condition.Type, condition.Status, condition.Reason, condition.Message))
			}
			if condition.ObservedGeneration != policy.GetGeneration() {
				return fmt.Errorf("generation %d has the condition %+v", policy.GetGeneration(), condition)
			}
		}
		if s.CurrentStatus != "" {
			got = append(got, s.CurrentStatus+": "+s.Reason)
		}
		return same(append([]string{}, want...), got)
	})
}

// versions returns the resourceVersions of the policies of market.
func (c *controllerTest) versions(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for kind, group := range groups {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(group.WithKind(kind + "List"))
		if err := c.List(t.Context(), list, client.InNamespace("market")); err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			all[kind+" "+list.Items[i].GetName()] = list.Items[i].GetResourceVersion()
		}
	}
	return all
}

// expectMarker creates a policy, waits for its status, and deletes the policy. The controller
// has then checked all older objects.
func (c *controllerTest) expectMarker(t *testing.T) {
	t.Helper()
	c.apply(t, decode(t, `
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: marker, namespace: market}
spec: {matches: [{name: all, pathRegex: .*, methods: [GET]}]}
`)...)
	c.expectVerdict(t, "HTTPRouteGroup", "marker")
	c.delete(t, "HTTPRouteGroup", "marker")
}
