package kube_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source/dir"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// receiver receives the facts of a Feed.
type receiver struct {
	mu     sync.Mutex
	facts  map[string]fact.Fact
	synced chan struct{}
	// changed has a token if facts have changed.
	changed chan struct{}
}

// feed starts a Source with a Feed.
func feed(t *testing.T, config *rest.Config, log *slog.Logger) *receiver {
	t.Helper()
	s := newSource(t, config, log)
	start(t, s)
	r := &receiver{facts: make(map[string]fact.Fact), synced: make(chan struct{}), changed: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Feed(ctx, mapper(), r.apply, func() { close(r.synced) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Feed: %v", err)
		}
	})
	return r
}

func (r *receiver) apply(facts ...fact.Fact) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range facts {
		if f.Content == nil && len(f.Problems) == 0 {
			delete(r.facts, f.Object.String())
		} else {
			r.facts[f.Object.String()] = f
		}
	}
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *receiver) waitForSync(t *testing.T) {
	t.Helper()
	select {
	case <-r.synced:
	case <-time.After(soon):
		t.Fatal("not synced")
	}
}

// until waits until the condition holds.
func (r *receiver) until(t *testing.T, what string, holds func(map[string]fact.Fact) bool) {
	t.Helper()
	late := time.After(soon)
	for {
		r.mu.Lock()
		ok := holds(r.facts)
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-r.changed:
		case <-late:
			t.Fatalf("%s: the facts are %v", what, slices.Sorted(maps.Keys(r.facts)))
		}
	}
}

func (r *receiver) has(name string) func(map[string]fact.Fact) bool {
	return func(facts map[string]fact.Fact) bool { _, ok := facts[name]; return ok }
}

func (r *receiver) hasNot(name string) func(map[string]fact.Fact) bool {
	return func(facts map[string]fact.Fact) bool { _, ok := facts[name]; return !ok }
}

// digests returns the digests of the facts, without the namespaces of every API server.
func (r *receiver) digests() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return digests(slices.Collect(maps.Values(r.facts)))
}

func digests(facts []fact.Fact) map[string]string {
	all := make(map[string]string)
	for _, f := range facts {
		text := fmt.Sprint(f.Problems)
		if f.Content != nil {
			text += f.Content.Digest().String()
		}
		all[f.Object.String()] = text
	}
	return all
}

// manifests are objects of every kind, as a cluster would have them: with pods, EndpointSlices,
// and addresses that the API server accepts.
const manifests = "testdata/objects.yaml"

func readManifests(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(manifests)
	if err != nil {
		t.Fatal(err)
	}
	all, err := apiserver.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// applyManifests creates all objects, pods with their status, and removes them when
// the test ends.
func (c *cluster) applyManifests(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	all := readManifests(t)
	for _, obj := range all {
		status, hasStatus := obj.Object["status"]
		created := obj.DeepCopy()
		c.createOrKeep(t, created)
		if hasStatus && obj.GetKind() == "Pod" {
			created.Object["status"] = status
			if err := c.Status().Update(t.Context(), created); err != nil {
				t.Fatal(err)
			}
		}
	}
	return all
}

// createOrKeep creates an object. A namespace may exist already, because deleted namespaces never
// disappear without a controller.
func (c *cluster) createOrKeep(t *testing.T, obj *unstructured.Unstructured) {
	t.Helper()
	if obj.GetKind() == "Namespace" {
		if err := apiserver.Apply(t.Context(), c.Client, obj); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := c.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.IgnoreNotFound(c.Delete(context.Background(), obj, client.GracePeriodSeconds(0)))
	})
}

// testFeed creates, changes and deletes objects of every kind.
func (c *cluster) testFeed(t *testing.T) {
	objects := c.applyManifests(t)
	r := feed(t, c.config, slog.New(slog.DiscardHandler))
	r.waitForSync(t)
	// Once it is synced, all initial facts have been applied.
	kinds := make(map[string]bool)
	for _, obj := range objects {
		ref := mesh.ObjectRef{APIVersion: obj.GetAPIVersion(), Kind: obj.GetKind(), Namespace: obj.GetNamespace(), Name: obj.GetName()}
		if obj.GetKind() == "ServiceAccount" {
			continue
		}
		kinds[obj.GetKind()] = true
		if _, ok := r.digests()[ref.String()]; !ok {
			t.Errorf("there is no fact of %s", ref)
		}
	}
	for _, kind := range mapper().Kinds() {
		if _, ok := mapper().Ref(kind.New()); ok && !kinds[kind.Kind] {
			t.Errorf("%s has no %s", manifests, kind.Kind)
		}
	}

	// Change every object.
	for _, obj := range objects {
		ref := mesh.ObjectRef{APIVersion: obj.GetAPIVersion(), Kind: obj.GetKind(), Namespace: obj.GetNamespace(), Name: obj.GetName()}
		change := changes()[ref.FullKind()]
		if change == "" {
			continue
		}
		before := r.digests()[ref.String()]
		if err := c.Patch(t.Context(), obj.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(change))); err != nil {
			t.Fatal(err)
		}
		r.until(t, "a change of "+ref.String(), func(facts map[string]fact.Fact) bool {
			now := digests([]fact.Fact{facts[ref.String()]})
			return now[ref.String()] != before
		})
	}
	// Delete every object.
	for _, obj := range objects {
		if obj.GetKind() == "Namespace" || obj.GetKind() == "ServiceAccount" {
			continue
		}
		ref := mesh.ObjectRef{APIVersion: obj.GetAPIVersion(), Kind: obj.GetKind(), Namespace: obj.GetNamespace(), Name: obj.GetName()}
		if err := c.Delete(t.Context(), obj.DeepCopy(), client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
		r.until(t, "the end of "+ref.String(), r.hasNot(ref.String()))
	}
}

// changes returns a merge patch for each kind that changes its fact.
func changes() map[string]string {
	return map[string]string{
		"Namespace":                          `{"metadata":{"labels":{"openservicemesh.io/monitored-by":"changed"}}}`,
		"Pod":                                `{"metadata":{"annotations":{"openservicemesh.io/inbound-tls-mode":"Permissive"}}}`,
		"Service":                            `{"spec":{"sessionAffinity":"ClientIP"}}`,
		"EndpointSlice":                      `{"endpoints":[]}`,
		"MeshConfig":                         `{"spec":{"traffic":{"enableEgress":true}}}`,
		"TrafficTarget":                      `{"spec":{"sources":[{"kind":"ServiceAccount","name":"changed","namespace":"shop"}]}}`,
		"AccessPolicy":                       `{"spec":{"action":"Deny"}}`,
		"ClusterAccessPolicy":                `{"spec":{"action":"Deny"}}`,
		"TokenPolicy":                        `{"spec":{"issuers":[{"issuer":"changed","jwks":"{}"}]}}`,
		"HTTPRouteGroup":                     `{"spec":{"matches":[{"name":"changed"}]}}`,
		"TCPRoute":                           `{"spec":{"matches":{"ports":[1]}}}`,
		"TrafficSplit":                       `{"spec":{"backends":[{"service":"changed","weight":1}]}}`,
		"HTTPRoute":                          `{"spec":{"rules":[{"backendRefs":[{"name":"changed","port":80}]}]}}`,
		"GRPCRoute":                          `{"spec":{"rules":[{"backendRefs":[{"name":"changed","port":80}]}]}}`,
		"TCPRoute.gateway.networking.k8s.io": `{"spec":{"rules":[{"backendRefs":[{"name":"changed","port":80}]}]}}`,
		"TLSRoute":                           `{"spec":{"rules":[{"backendRefs":[{"name":"changed","port":80}]}]}}`,
		"Gateway":                            `{"spec":{"listeners":[{"name":"http","port":81,"protocol":"HTTP"}]}}`,
		"GatewayClass":                       `{"spec":{"parametersRef":{"group":"","kind":"ConfigMap","name":"changed"}}}`,
		"ReferenceGrant":                     `{"spec":{"to":[{"group":"","kind":"Service","name":"changed"}]}}`,
		"Egress":                             `{"spec":{"hosts":["changed.example.com"]}}`,
		"IngressBackend":                     `{"spec":{"sources":[{"kind":"IPRange","name":"10.0.0.0/8"}]}}`,
		"Retry":                              `{"spec":{"retryPolicy":{"numRetries":7}}}`,
		"UpstreamTrafficSetting":             `{"spec":{"timeouts":{"request":"7s"}}}`,
	}
}

// testSameAsDirectory compares the facts with those of two sets of files: the server's objects as
// kubectl get -o yaml writes them, and the manifests themselves.
func (c *cluster) testSameAsDirectory(t *testing.T) {
	objects := c.applyManifests(t)
	r := feed(t, c.config, slog.New(slog.DiscardHandler))
	r.waitForSync(t)
	for _, obj := range objects {
		if obj.GetKind() == "Namespace" {
			name := "Namespace " + obj.GetName()
			r.until(t, name, r.has(name))
		}
	}
	want := r.digests()

	folder := t.TempDir()
	var list unstructured.UnstructuredList
	for _, kind := range slices.Sorted(maps.Keys(changes())) {
		i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool {
			return mesh.ObjectRef{APIVersion: o.GetAPIVersion(), Kind: o.GetKind()}.FullKind() == kind
		})
		list = unstructured.UnstructuredList{}
		list.SetGroupVersionKind(objects[i].GroupVersionKind().GroupVersion().WithKind(objects[i].GetKind() + "List"))
		if err := c.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		text, err := yaml.Marshal(list.UnstructuredContent())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, kind+".yaml"), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	facts, problems, err := dir.Load([]string{folder}, dir.Options{Mapper: mapperOptions()})
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	if diff := cmp.Diff(want, digests(facts)); diff != "" {
		t.Errorf("facts (-API server +directory):\n%s", diff)
	}

	// The manifests have neither UIDs nor times.
	facts, problems, err = dir.Load([]string{manifests}, dir.Options{Mapper: mapperOptions()})
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	got := plainFacts(facts)
	r.mu.Lock()
	fromServer := plainFacts(slices.Collect(maps.Values(r.facts)))
	r.mu.Unlock()
	for name, f := range got {
		if diff := cmp.Diff(fromServer[name], f); diff != "" {
			t.Errorf("%s (-API server +directory):\n%s", name, diff)
		}
	}
	if len(got) < len(objects)-1 {
		t.Errorf("there are facts of %d objects, of %d", len(got), len(objects))
	}
}

// plainFacts returns the facts as text, without UIDs and times.
func plainFacts(facts []fact.Fact) map[string]string {
	all := make(map[string]string)
	for _, f := range facts {
		text, err := yaml.Marshal(f.Content)
		if err != nil {
			panic(err)
		}
		var lines []string
		for line := range strings.SplitSeq(string(text), "\n") {
			if !strings.HasPrefix(line, "uid:") && !strings.HasPrefix(line, "created:") {
				lines = append(lines, line)
			}
		}
		all[f.Object.String()] = strings.Join(lines, "\n") + fmt.Sprint(f.Problems)
	}
	return all
}

// testFeedNotAllowed has a user with the rights for a Source, which are not enough for a Feed: the
// Feed waits, and logs what to do.
func (c *cluster) testFeedNotAllowed(t *testing.T) {
	var log syncBuffer
	r := feed(t, c.reader, slog.New(slog.NewTextHandler(&log, nil)))
	for _, kind := range []string{"*v1.Pod", "*v1.Service", "*v1.EndpointSlice", "*v1alpha3.TrafficTarget"} {
		for deadline := time.Now().Add(soon); ; time.Sleep(20 * time.Millisecond) {
			text := log.String()
			if i := strings.Index(text, "kind="+kind+" "); i >= 0 && strings.Contains(text[:i], "allow the control plane's service account to get, list and watch them") {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the log does not report %s:\n%s", kind, text)
			}
		}
	}
	select {
	case <-r.synced:
		t.Error("it is synced without having read pods")
	default:
	}
}

// testFeedNoCRD deletes some of the CRDs, which testNoCRD has created before.
func (c *cluster) testFeedNoCRD(t *testing.T) {
	crds := []string{"traffictargets.access.smi-spec.io", "retries.policy.openservicemesh.io"}
	for _, name := range crds {
		c.deleteCRD(t, name)
	}
	var log syncBuffer
	r := feed(t, c.config, slog.New(slog.NewTextHandler(&log, nil)))
	r.waitForSync(t)
	for _, name := range crds {
		if n := strings.Count(log.String(), "crd="+name); n != 1 {
			t.Errorf("the log reports %s %d times:\n%s", name, n, log.String())
		}
	}
	// Other kinds of the same group are still read.
	objects := readManifests(t)
	for _, obj := range objects {
		switch obj.GetKind() {
		case "Egress":
			c.createOrKeep(t, obj.DeepCopy())
			r.until(t, "an Egress", r.has("Egress shop/out"))
		}
	}
	folder := filepath.Join("..", "..", "..", "charts", "outrigger", "crds")
	if _, err := envtest.InstallCRDs(c.config, envtest.CRDInstallOptions{Paths: []string{folder}, ErrorIfPathMissing: true}); err != nil {
		t.Fatal(err)
	}
	for _, obj := range objects {
		switch obj.GetKind() {
		case "TrafficTarget", "Retry":
			created := obj.DeepCopy()
			c.createOrKeep(t, created)
			name := mesh.ObjectRef{Kind: created.GetKind(), Namespace: created.GetNamespace(), Name: created.GetName()}.String()
			r.until(t, name, r.has(name))
		}
	}
}

// deleteCRD deletes a CRD and waits until the API server no longer serves it. Discovery lists the
// kind for a moment after the CRD is gone.
func (c *cluster) deleteCRD(t *testing.T, name string) {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(crd), crd); err != nil {
		t.Fatal(err)
	}
	asked, err := discovery.NewDiscoveryClientForConfig(c.config)
	if err != nil {
		t.Fatal(err)
	}
	served := func() bool {
		for _, version := range crd.Spec.Versions {
			list, err := asked.ServerResourcesForGroupVersionWithContext(t.Context(), crd.Spec.Group+"/"+version.Name)
			if err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
			if err == nil && slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == crd.Spec.Names.Plural }) {
				return true
			}
		}
		var gone apiextensionsv1.CustomResourceDefinition
		return !apierrors.IsNotFound(c.Get(t.Context(), client.ObjectKeyFromObject(crd), &gone))
	}
	c.delete(t, crd)
	for deadline := time.Now().Add(soon); served(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the CRD %s is still served", name)
		}
	}
}

// TestFeedWithoutServer has no API server: the Feed waits, logs it, and retries.
func TestFeedWithoutServer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	var log syncBuffer
	r := feed(t, &rest.Config{Host: "http://" + listener.Addr().String(), QPS: -1}, slog.New(slog.NewTextHandler(&log, nil)))
	const want = "querying the API server for the TrafficTarget CRD failed; retrying"
	for deadline := time.Now().Add(soon); strings.Count(log.String(), want) < 2; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the log does not say twice %q:\n%s", want, log.String())
		}
	}
	select {
	case <-r.synced:
		t.Error("it is synced without having read anything")
	default:
	}
}
