package source_test

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/apis/status"
	"github.com/outrigger-mesh/outrigger/internal/audit"
	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/dir"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// TestKindsAndCRDs holds that every CRD has a row, and every row that is not Kubernetes'
// or Gateway API's a CRD: with the name, the scope and the versions of the row.
func TestKindsAndCRDs(t *testing.T) {
	type row struct {
		Kind, Scope string
		Versions    []string
	}
	rows := make(map[string]row)
	for _, kind := range source.Kinds() {
		if kind.Role == source.Policy || kind.Role == source.Configuration {
			scope := map[meta.RESTScope]string{meta.RESTScopeNamespace: "Namespaced", meta.RESTScopeRoot: "Cluster"}[kind.Scope()]
			rows[kind.Resource().String()] = row{kind.Kind, scope, slices.Sorted(slices.Values(kind.Versions))}
		}
	}
	files, err := filepath.Glob("../../charts/outrigger/crds/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	crds := make(map[string]row)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(text, &crd); err != nil {
			t.Fatal(err)
		}
		r := row{Kind: crd.Spec.Names.Kind, Scope: string(crd.Spec.Scope)}
		for _, version := range crd.Spec.Versions {
			r.Versions = append(r.Versions, version.Name)
		}
		slices.Sort(r.Versions)
		crds[crd.Name] = r
	}
	if diff := cmp.Diff(crds, rows); diff != "" {
		t.Errorf("kinds (-CRDs +table):\n%s", diff)
	}
}

// Mirror is a kind that there is in this test only.
type Mirror struct {
	metav1.TypeMeta
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Service string `json:"service"`
	} `json:"spec"`
	Status status.Status `json:"status"`
}

func (m *Mirror) DeepCopyObject() runtime.Object {
	c := *m
	m.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	m.Status.DeepCopyInto(&c.Status)
	return &c
}

type MirrorList struct {
	metav1.TypeMeta
	metav1.ListMeta `json:"metadata"`
	Items           []Mirror `json:"items"`
}

func (l *MirrorList) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = slices.Clone(l.Items)
	return &c
}

var mirrorVersion = schema.GroupVersion{Group: "mirror.example.com", Version: "v1"}

// mirrors is the row of the Mirror, whose facts are of a type that the catalog has. One
// without a service is wrong.
func mirrors() source.Kind {
	add := func(scheme *runtime.Scheme) error {
		scheme.AddKnownTypes(mirrorVersion, &Mirror{}, &MirrorList{})
		metav1.AddToGroupVersion(scheme, mirrorVersion)
		return nil
	}
	f := func(obj *Mirror, add func(reason, field, format string, args ...any)) mesh.Digester {
		if obj.Spec.Service == "" {
			add(source.ReasonMissing, "spec.service", "there is no service")
			return nil
		}
		return mesh.Seal(&fact.Split{Name: mesh.Name{Namespace: obj.Namespace, Name: obj.Name}, Root: obj.Spec.Service})
	}
	return source.NewPolicy(mirrorVersion.WithKind("Mirror"), add, f, func(m *Mirror) *status.Status { return &m.Status })
}

func mirrorMapper() source.MapperOptions {
	return source.MapperOptions{
		MeshName: "osm", Kinds: append(source.Kinds(), mirrors()), Resolver: source.NewResolver(options(nil)),
		SidecarClass: func(*corev1.Pod) string { return "" },
	}
}

// TestNewKindInFolder reads a kind that only a row of the table knows.
func TestNewKindInFolder(t *testing.T) {
	const manifest = "apiVersion: mirror.example.com/v1\nkind: Mirror\nmetadata: {name: hall, namespace: shop}\nspec: {service: web}\n"
	file := filepath.Join(t.TempDir(), "mirror.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	facts, problems, err := dir.Load([]string{file}, dir.Options{Mapper: mirrorMapper()})
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	for _, f := range facts {
		if split, ok := f.Content.(*fact.Split); ok && f.Object.Kind == "Mirror" && split.Root == "web" {
			return
		}
	}
	t.Errorf("there is no fact of the Mirror: %v", facts)
}

// TestNewKindInCluster reads a kind that only a row of the table knows from an API
// server, and writes there what is wrong with an object of it.
func TestNewKindInCluster(t *testing.T) {
	config := apiserver.Start(t)
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "mirrors.mirror.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: mirrorVersion.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: "Mirror", ListKind: "MirrorList", Plural: "mirrors", Singular: "mirror"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: mirrorVersion.Version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: new(true),
				}},
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
			}},
		},
	}
	if _, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{crd}}); err != nil {
		t.Fatal(err)
	}
	ctrllog.SetLogger(logr.Discard())
	log := slog.New(slog.DiscardHandler)
	opts := kube.CacheOptions("osm-system", "osm-mesh-config", log)
	mirrors().AddToScheme(opts.Scheme)
	mapper, _ := opts.Mapper.(*meta.DefaultRESTMapper)
	mapper.Add(mirrors().GroupVersionKind, mirrors().Scope())
	made, err := cache.New(config, opts)
	if err != nil {
		t.Fatal(err)
	}
	facts, err := kube.New(config, kube.Options{Namespace: "osm-system", MeshConfigName: "osm-mesh-config", Cache: made, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	mgr, err := manager.New(config, manager.Options{
		Scheme: opts.Scheme, Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper, nil },
		NewCache:       func(*rest.Config, cache.Options) (cache.Cache, error) { return made, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	joined := catalog.New(catalog.Options{Log: log})
	reader := source.NewMapper(mirrorMapper())
	ctx, cancel := context.WithCancel(t.Context())
	if err := audit.AddPolicies(ctx, mgr, joined, reader, audit.NewMetrics(prometheus.NewRegistry())); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 4)
	go func() { done <- mgr.Start(ctx) }()
	go func() { done <- facts.Start(ctx) }()
	go func() { done <- facts.Feed(ctx, reader, joined.Apply, joined.Synced) }()
	go func() { joined.Run(ctx); done <- nil }()
	t.Cleanup(func() {
		cancel()
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})

	shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{metadata.MonitoredBy: "osm"}}}
	good, bad := &Mirror{}, &Mirror{}
	good.Namespace, good.Name, good.Spec.Service = "shop", "good", "web"
	bad.Namespace, bad.Name = "shop", "bad"
	for _, obj := range []client.Object{shop, good, bad} {
		if err := mgr.GetClient().Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	accepted := func(name string) string {
		var mirror Mirror
		if err := mgr.GetAPIReader().Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: name}, &mirror); err != nil {
			t.Fatal(err)
		}
		if c := meta.FindStatusCondition(mirror.Status.Conditions, source.ConditionAccepted); c != nil {
			return string(c.Status) + " " + c.Reason
		}
		return ""
	}
	late := time.Now().Add(time.Minute)
	for accepted("good") != "True Accepted" || accepted("bad") != "False Missing" {
		if time.Now().After(late) {
			t.Fatalf("the status of the good one is %q, of the bad one %q; facts: %v", accepted("good"), accepted("bad"), joined.Facts("Mirror"))
		}
		time.Sleep(50 * time.Millisecond)
	}
	for _, f := range joined.Facts("Mirror") {
		if split, ok := f.Content.(*fact.Split); ok && split.Root == "web" {
			return
		}
	}
	t.Errorf("there is no fact of the good Mirror: %v", joined.Facts("Mirror"))
}
