package root_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	controllerconfig "sigs.k8s.io/controller-runtime/pkg/config"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/identity/publish"
	"github.com/outrigger-mesh/outrigger/internal/identity/root"
	"github.com/outrigger-mesh/outrigger/internal/identity/store"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// cluster is an API server, as its administrator sees it.
type cluster struct {
	client.Client
	config *rest.Config
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	ctrllog.SetLogger(logr.Discard())
	config := apiserver.Start(t)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, rbacv1.AddToScheme, v1alpha2.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	all := &cluster{c, config}
	for _, name := range []string{"osm-system", "ingress"} {
		all.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	text, err := os.ReadFile("testdata/rights.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rights, err := apiserver.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range rights {
		if err := apiserver.Apply(t.Context(), c, object); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// user is the control plane's configuration.
func (c *cluster) user() *rest.Config {
	config := rest.CopyConfig(c.config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:osm-system:outrigger-controller",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:osm-system", "system:authenticated"},
	}
	return config
}

func (c *cluster) create(t *testing.T, object client.Object) {
	t.Helper()
	if err := c.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

// change changes an object and retries on conflicts.
func change[T client.Object](t *testing.T, c *cluster, object T, f func(T)) {
	t.Helper()
	for {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			t.Fatal(err)
		}
		f(object)
		err := c.Update(t.Context(), object)
		if err == nil {
			return
		}
		if !apierrors.IsConflict(err) {
			t.Fatal(err)
		}
	}
}

func (c *cluster) remove(t *testing.T, object client.Object) {
	t.Helper()
	if err := c.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

// put writes a Secret of the control plane as a user would.
func (c *cluster) put(t *testing.T, name string, data map[string][]byte) {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "osm-system", Name: name}, Data: data}
	err := c.Create(t.Context(), secret)
	if apierrors.IsAlreadyExists(err) {
		change(t, c, secret, func(s *corev1.Secret) { s.Data = data })
		return
	}
	if err != nil {
		t.Fatal(err)
	}
}

// reset deletes a test's leftovers and creates the Secrets that the chart creates.
func (c *cluster) reset(t *testing.T) {
	t.Helper()
	for _, kind := range []client.Object{&corev1.Secret{}, &v1alpha2.MeshRootCertificate{}, &v1alpha2.MeshConfig{}, &corev1.Event{}} {
		for _, namespace := range []string{"osm-system", "ingress"} {
			if err := c.DeleteAllOf(t.Context(), kind, client.InNamespace(namespace)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range []string{"outrigger-ca-bundle", "outrigger-ca-state"} {
		c.put(t, name, nil)
	}
	for _, name := range []string{"gateway", "unallowed"} {
		c.create(t, gatewaySecret(name))
	}
}

// plane is a control plane on the cluster with only the rights it needs.
type plane struct {
	*running
	identity *identity.Manager
	stop     func()
}

// options returns the options of a Roots on the cluster.
func (c *cluster) options(t *testing.T) root.Options {
	t.Helper()
	set, err := kubernetes.NewForConfig(c.user())
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(c.user())
	if err != nil {
		t.Fatal(err)
	}
	return root.Options{
		Secrets:     store.NewKube(set, "osm-system", discard()),
		Objects:     root.NewKubeObjects(objects, "osm-system", discard()),
		TrustDomain: func() string { return "cluster.local" },
	}
}

// start starts a new control plane.
func (c *cluster) start(t *testing.T, opts root.Options) *plane {
	t.Helper()
	ids, err := identity.NewManager(identity.Options{
		DNSNames: []string{"outrigger-controller.osm-system.svc"}, TrustDomain: func() string { return "cluster.local" }, Log: discard(),
	})
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{running: run(t, opts), identity: ids}
	skip := true
	log := slog.New(slog.NewTextHandler(p.log, nil))
	mgr, err := manager.New(c.user(), manager.Options{
		Scheme:         kube.Scheme(),
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return kube.Mapper(), nil },
		Cache:          kube.CacheOptions("osm-system", "osm-mesh-config", log),
		Metrics:        metricsserver.Options{BindAddress: "0"},
		Logger:         logr.Discard(),
		Controller:     controllerconfig.Controller{SkipNameValidation: &skip},
	})
	if err != nil {
		t.Fatal(err)
	}
	facts, err := kube.New(c.user(), kube.Options{Namespace: "osm-system", MeshConfigName: "osm-mesh-config", Cache: mgr.GetCache(), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		publish.AddStatus(mgr, p.Roots),
		publish.AddBundle(mgr, ids, "osm", log),
		publish.AddGateway(mgr, p.Roots, ids, facts, log),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var ending sync.WaitGroup
	ending.Go(func() { ids.Run(ctx) })
	ending.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			t.Errorf("the manager: %v", err)
		}
	})
	ending.Go(func() {
		if err := facts.Start(ctx); err != nil {
			t.Errorf("the source: %v", err)
		}
	})
	p.pass(ids)
	p.stop = sync.OnceFunc(func() {
		cancel()
		p.running.stop()
		ending.Wait()
		if log := p.log.String(); strings.Contains(log, "forbidden") {
			t.Errorf("rights are missing:\n%s", log)
		}
	})
	t.Cleanup(p.stop)
	return p
}

// TestCluster is a single test because its subtests share one server.
func TestCluster(t *testing.T) {
	c := startCluster(t)
	for name, test := range map[string]func(*testing.T, *cluster){
		"replicas":           testReplicas,
		"objects":            testObjects,
		"open service mesh":  testOpenServiceMesh,
		"bundle":             testBundle,
		"ingress gateway":    testGateway,
		"status and events":  testStatus,
		"missing rights":     testMissingRights,
		"no kind":            testNoKind,
		"schema of the kind": testSchema,
	} {
		t.Run(name, func(t *testing.T) {
			c.reset(t)
			test(t, c)
		})
	}
}

// testReplicas checks that replicas started at the same time agree on one CA and notice its
// replacement.
func testReplicas(t *testing.T, c *cluster) {
	opts := c.options(t)
	opts.Propagation = 2 * time.Second
	var all []*running
	for range 4 {
		all = append(all, run(t, opts))
	}
	var first string
	eventually(t, func() string {
		first, _ = all[0].now(t)
		return map[bool]string{true: "nothing signs"}[first == ""]
	})
	for _, r := range all {
		r.want(t, first, first)
		if log := r.log.String(); strings.Contains(log, "level=WARN") || strings.Contains(log, "level=ERROR") {
			t.Errorf("a replica complains that it was not the first:\n%s", log)
		}
	}
	var secret corev1.Secret
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "osm-system", Name: "outrigger-ca-bundle"}, &secret); err != nil {
		t.Fatal(err)
	}
	if got := parse(t, secret.Data["ca.crt"])[0].Subject.CommonName; got != first || secret.Type != corev1.SecretTypeOpaque {
		t.Errorf("the Secret of type %s holds %q, want Opaque and %q", secret.Type, got, first)
	}
	c.put(t, "outrigger-ca-bundle", goodCA(t, "two").data())
	for _, r := range all {
		r.want(t, "two", "two", first)
		r.noProblems(t)
	}
	c.put(t, "outrigger-ca-bundle", map[string][]byte{"ca.crt": []byte("?"), "ca.key": []byte("?")})
	for _, r := range all {
		r.problem(t, "Secret osm-system/outrigger-ca-bundle: Unusable: Secret osm-system/outrigger-ca-bundle: own CA")
		r.want(t, "two", "two", first)
	}
	run(t, opts).want(t, "two", "two", first)
}

func object(t *testing.T, c *cluster, name string, intent v1alpha2.MeshRootCertificateIntent) *v1alpha2.MeshRootCertificate {
	t.Helper()
	o := tresor(name, intent)
	c.create(t, &o)
	return &o
}

// testObjects checks that changes of objects are noticed.
func testObjects(t *testing.T, c *cluster) {
	opts := c.options(t)
	opts.Propagation = time.Second
	c.put(t, "outrigger-ca-bundle", goodCA(t, "one").data())
	r := run(t, opts)
	r.want(t, "one", "one")
	c.put(t, "new", goodCA(t, "two").data())
	o := object(t, c, "new", passive)
	r.want(t, "one", "one", "two")
	change(t, c, o, func(o *v1alpha2.MeshRootCertificate) { o.Spec.Intent = active })
	r.want(t, "two", "one", "two")
	c.put(t, "new", goodCA(t, "three").data())
	r.want(t, "three", "one", "two", "three")
	c.remove(t, o)
	r.want(t, "one", "one", "two", "three")

	// A missing Secret is not created, and an empty one is filled.
	c.remove(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "osm-system", Name: "new"}})
	object(t, c, "new", passive)
	r.problem(t, "MeshRootCertificate osm-system/new: Unavailable: spec.provider.tresor.ca.secretRef: there is no such Secret: Secret osm-system/new; "+
		"the controller fills it but may not create Secrets, so create it: kubectl create secret generic new --namespace osm-system")
	c.put(t, "new", nil)
	r.noProblems(t)
}

// testNoKind checks that an API server without the kind counts as having no objects.
func testNoKind(t *testing.T, c *cluster) {
	server, err := apiserver.Run()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}()
	objects, err := dynamic.NewForConfig(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	store, dir := dirStore(t)
	put(t, dir, "outrigger-ca-bundle", goodCA(t, "one").data())
	r := run(t, root.Options{Secrets: store, Objects: root.NewKubeObjects(objects, "osm-system", discard())})
	r.want(t, "one", "one")
	r.stop()
}

// testStatus checks the objects' status and the Events about problems.
func testStatus(t *testing.T, c *cluster) {
	c.put(t, "outrigger-ca-bundle", goodCA(t, "one").data())
	opts := c.options(t)
	opts.Propagation = time.Second
	p := c.start(t, opts)
	p.want(t, "one", "one")
	c.put(t, "new", goodCA(t, "two").data())
	o := object(t, c, "new", active)
	wantStatus(t, c, o, "active", "Accepted=True/Accepted Degraded=False/NotDegraded Needed=True/Signing NoEffect=False/AllInEffect Signing=True/Signing Trusted=True/Trusted")
	change(t, c, o, func(o *v1alpha2.MeshRootCertificate) {
		o.Spec.TrustDomain = "example.com"
		o.Spec.Provider.Tresor.CA.SecretRef.Namespace = "shop"
	})
	wantStatus(t, c, o, "active", "Accepted=False/OtherNamespace Degraded=False/NotDegraded Needed=True/Signing NoEffect=True/NoEffect Signing=True/Signing Trusted=True/Trusted")
	wantEvent(t, c, "MeshRootCertificate new NoEffect: spec.trustDomain: every identity")
	wantEvent(t, c, "MeshRootCertificate new OtherNamespace: spec.provider.tresor.ca.secretRef.namespace: Secrets are read")
	c.remove(t, o)
	p.want(t, "one", "one", "two")
	c.put(t, "outrigger-ca-bundle", map[string][]byte{"ca.crt": []byte("?"), "ca.key": []byte("?")})
	wantEvent(t, c, "Secret outrigger-ca-bundle Unusable: Secret osm-system/outrigger-ca-bundle: own CA")
	p.want(t, "one", "one", "two")
}

func wantStatus(t *testing.T, c *cluster, o *v1alpha2.MeshRootCertificate, state, conditions string) {
	t.Helper()
	eventually(t, func() string {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, c := range o.Status.Conditions {
			if c.ObservedGeneration == o.Generation {
				all = append(all, fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason))
			}
		}
		slices.Sort(all)
		return cmp.Diff([]string{state, conditions}, []string{o.Status.State, strings.Join(all, " ")})
	})
}

// wantEvent waits for a Warning Event with a prefix in the control plane's namespace.
func wantEvent(t *testing.T, c *cluster, want string) {
	t.Helper()
	eventually(t, func() string {
		var list corev1.EventList
		if err := c.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, e := range list.Items {
			text := fmt.Sprintf("%s %s %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
			if strings.HasPrefix(text, want) {
				return ""
			}
			all = append(all, text)
		}
		return fmt.Sprintf("no Event begins %q, but there are\n%s", want, strings.Join(all, "\n"))
	})
}

// testMissingRights checks that a missing right is reported with a hint, and that granting
// it later suffices.
func testMissingRights(t *testing.T, c *cluster) {
	c.put(t, "outrigger-ca-bundle", goodCA(t, "one").data())
	r := run(t, c.options(t))
	r.want(t, "one", "one")
	c.put(t, "forbidden", goodCA(t, "two").data())
	object(t, c, "forbidden", passive)
	r.problem(t, "MeshRootCertificate osm-system/forbidden: Unavailable: spec.provider.tresor.ca.secretRef: reading Secret osm-system/forbidden: secrets \"forbidden\" is forbidden")
	eventually(t, func() string {
		for _, p := range r.Problems() {
			if strings.Contains(p.Message, "allow the controller's service account to get, list, watch and update that Secret") {
				return ""
			}
		}
		return "the way out is not named"
	})
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "osm-system", Name: "outrigger-controller"}}
	set := func(names ...string) {
		change(t, c, role, func(r *rbacv1.Role) { r.Rules[len(r.Rules)-1].ResourceNames = names })
	}
	set("outrigger-ca-bundle", "outrigger-ca-state", "new", "forbidden")
	defer set("outrigger-ca-bundle", "outrigger-ca-state", "new")
	r.want(t, "one", "one", "two")
}

// testSchema checks that the API server rejects invalid objects and accepts those that Open
// Service Mesh accepted.
func testSchema(t *testing.T, c *cluster) {
	for name, f := range map[string]func(*v1alpha2.MeshRootCertificate){
		"intent":      func(o *v1alpha2.MeshRootCertificate) { o.Spec.Intent = "both" },
		"no intent":   func(o *v1alpha2.MeshRootCertificate) { o.Spec.Intent = "" },
		"no provider": func(o *v1alpha2.MeshRootCertificate) { o.Spec.Provider = v1alpha2.ProviderSpec{} },
		"two": func(o *v1alpha2.MeshRootCertificate) {
			o.Spec.Provider.CertManager = &v1alpha2.CertManagerProviderSpec{IssuerName: "a"}
		},
		"no issuer": func(o *v1alpha2.MeshRootCertificate) {
			o.Spec.Provider = v1alpha2.ProviderSpec{CertManager: &v1alpha2.CertManagerProviderSpec{}}
		},
		"vault's port": func(o *v1alpha2.MeshRootCertificate) { *o = vault("a", active); o.Spec.Provider.Vault.Port = 70000 },
		"vault's token": func(o *v1alpha2.MeshRootCertificate) {
			*o = vault("a", active)
			o.Spec.Provider.Vault.Token.SecretKeyRef.Key = ""
		},
	} {
		o := tresor("bad", active)
		f(&o)
		if err := c.Create(t.Context(), &o); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v, want it to be refused", name, err)
		}
	}
	text, err := os.ReadFile("testdata/osm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	exported, err := apiserver.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(c.config)
	if err != nil {
		t.Fatal(err)
	}
	resource := objects.Resource(v1alpha2.SchemeGroupVersion.WithResource("meshrootcertificates")).Namespace("osm-system")
	for _, object := range exported {
		created, err := resource.Create(t.Context(), object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		if err != nil {
			t.Errorf("%s: %v", object.GetName(), err)
			continue
		}
		if diff := cmp.Diff(object.Object["spec"], created.Object["spec"]); diff != "" {
			t.Errorf("%s: the spec has changed (-sent +got):\n%s", object.GetName(), diff)
		}
	}
}
