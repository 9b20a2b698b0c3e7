package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	release "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	semver "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
)

// minimum is the oldest Kubernetes that the chart can be installed on.
const minimum = "1.30"

// helmManager is the field manager of the program helm, so that both programs can change the
// same fields without a conflict.
const helmManager = "helm"

// clusterFlags select the cluster, as kubectl's flags of these names do.
type clusterFlags struct{ kubeconfig, context string }

func (f *clusterFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file; the default is $KUBECONFIG, ~/.kube/config, or the pod's service account")
	flags.StringVar(&f.context, "context", "", "context of the kubeconfig file")
}

// target is a namespace of a cluster, with its clients.
type target struct {
	namespace string
	config    *rest.Config
	kube      kubernetes.Interface
	objects   dynamic.Interface
	mapper    *restmapper.DeferredDiscoveryRESTMapper
	cached    discovery.CachedDiscoveryInterface
	loader    clientcmd.ClientConfig
	helm      *action.Configuration
	stderr    io.Writer
	mu        sync.Mutex
}

func newTarget(flags clusterFlags, namespace string, stderr io.Writer) (*target, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = flags.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: flags.context}
	overrides.Context.Namespace = namespace
	t := &target{namespace: namespace, stderr: stderr, loader: clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)}
	config, err := t.loader.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the cluster: %w; give --kubeconfig", err)
	}
	config.UserAgent = "outrigger"
	// The defaults are for long-running programs.
	config.QPS, config.Burst = 50, 100
	config.WarningHandler = rest.NoWarnings{}
	t.config = config
	if t.kube, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("creating a client for %s: %w", config.Host, err)
	}
	if t.objects, err = dynamic.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("creating a client for %s: %w", config.Host, err)
	}
	t.cached = memory.NewMemCacheClient(t.kube.Discovery())
	t.mapper = restmapper.NewDeferredDiscoveryRESTMapper(t.cached)
	kube.ManagedFieldsManager = helmManager
	t.helm = action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler))
	if err := t.helm.Init(t, namespace, os.Getenv("HELM_DRIVER")); err != nil {
		return nil, fmt.Errorf("preparing Helm: %w", err)
	}
	return t, nil
}

// ToRESTConfig and the next three methods implement Helm's RESTClientGetter.
func (t *target) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(t.config), nil }

// ToDiscoveryClient returns the discovery client, which the mapper uses too.
func (t *target) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	return t.cached, nil
}

// ToRESTMapper returns the target's mapper.
func (t *target) ToRESTMapper() (meta.RESTMapper, error) { return t.mapper, nil }

// ToRawKubeConfigLoader returns the loader of the kubeconfig.
func (t *target) ToRawKubeConfigLoader() clientcmd.ClientConfig { return t.loader }

// say writes a line of progress.
func (t *target) say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	terminal.Fprintf(t.stderr, format+"\n", args...)
}

// resource returns the client for an object's kind and namespace.
func (t *target) resource(obj *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	kind := obj.GroupVersionKind()
	mapping, err := t.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		return t.objects.Resource(mapping.Resource).Namespace(cmp.Or(obj.GetNamespace(), t.namespace)), nil
	}
	return t.objects.Resource(mapping.Resource), nil
}

// reachable returns an error if the server does not answer or is too old.
func (t *target) reachable() error {
	found, err := t.kube.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("asking the API server at %s for its version: %w", t.config.Host, err)
	}
	version, err := semver.ParseGeneric(found.GitVersion)
	if err != nil {
		return fmt.Errorf("the API server's version: %w", err)
	}
	if version.LessThan(semver.MustParseGeneric(minimum)) {
		return usage.Refusalf("the cluster is Kubernetes %s, and the mesh needs %s or newer", found.GitVersion, minimum)
	}
	return nil
}

// needed is a right that the command needs.
type needed struct{ verb, group, resource string }

// allowed returns an error with all rights that the user lacks, so that no change stops halfway.
func (t *target) allowed(ctx context.Context, rights []needed) error {
	missing := make([]string, len(rights))
	failed := make([]error, len(rights))
	var asking sync.WaitGroup
	for i, right := range rights {
		asking.Go(func() {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: right.verb, Group: right.group, Resource: right.resource},
			}}
			review, err := t.kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			switch {
			case err != nil:
				failed[i] = err
			case !review.Status.Allowed:
				missing[i] = right.verb + " " + strings.TrimSuffix(right.resource+"."+right.group, ".")
			}
		})
	}
	asking.Wait()
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("asking which rights the user has: %w", err)
	}
	missing = slices.DeleteFunc(missing, func(s string) bool { return s == "" })
	if len(missing) > 0 {
		return usage.Refusalf("the user of the kubeconfig lacks the rights: %s; ask for them in the whole cluster, for example with the ClusterRole cluster-admin", strings.Join(missing, ", "))
	}
	return nil
}

// installRights returns the rights that installing and upgrading need. They do not include the
// rights in the roles of the chart, which the API server requires of the user too.
func installRights(dryRun bool) []needed {
	if dryRun {
		return nil
	}
	return []needed{
		{"patch", "apiextensions.k8s.io", "customresourcedefinitions"},
		{"create", "", "namespaces"},
		{"create", "", "secrets"},
		{"create", "", "serviceaccounts"},
		{"create", "apps", "deployments"},
		{"create", "admissionregistration.k8s.io", "mutatingwebhookconfigurations"},
		{"create", "rbac.authorization.k8s.io", "clusterroles"},
		{"create", "rbac.authorization.k8s.io", "clusterrolebindings"},
	}
}

// releaseName is the name of the Helm release of a revision.
func releaseName(revision string) string {
	if revision == "" || revision == defaultRevision {
		return "outrigger"
	}
	return "outrigger-" + revision
}

// last returns the latest revision of a Helm release, or nil if there is none.
func (t *target) last(name string) (*release.Release, error) {
	found, err := t.helm.Releases.Last(name)
	if errors.Is(err, driver.ErrReleaseNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the Helm release %s in namespace %s: %w", name, t.namespace, err)
	}
	rel, ok := found.(*release.Release)
	if !ok {
		return nil, fmt.Errorf("the Helm release %s in namespace %s has an unknown format", name, t.namespace)
	}
	return rel, nil
}

// releases returns the latest revisions of all releases of the chart in the namespace.
func (t *target) releases() ([]*release.Release, error) {
	all, err := t.helm.Releases.ListReleases()
	if err != nil {
		return nil, fmt.Errorf("listing Helm releases in namespace %s: %w", t.namespace, err)
	}
	newest := make(map[string]*release.Release)
	for _, found := range all {
		rel, ok := found.(*release.Release)
		if !ok || rel.Chart == nil || rel.Chart.Name() != "outrigger" {
			continue
		}
		if had := newest[rel.Name]; had == nil || had.Version < rel.Version {
			newest[rel.Name] = rel
		}
	}
	return slices.SortedFunc(maps.Values(newest), func(a, b *release.Release) int { return strings.Compare(a.Name, b.Name) }), nil
}

// revisionOf returns the value revision of a release.
func revisionOf(config map[string]any) string {
	revision, _, _ := unstructured.NestedString(config, "revision")
	return cmp.Or(revision, defaultRevision)
}

// meshOf returns the value osm.meshName of a release.
func meshOf(config map[string]any) string {
	name, _, _ := unstructured.NestedString(config, "osm", "meshName")
	return cmp.Or(name, "osm")
}

// exists returns the object in the cluster, or nil.
func (t *target) exists(ctx context.Context, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	resource, err := t.resource(obj)
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", title(obj), err)
	}
	found, err := resource.Get(ctx, obj.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", title(obj), err)
	}
	return found, nil
}

// named returns an object that has only a kind and a name.
func named(apiVersion, kind, namespace, name string) *unstructured.Unstructured {
	obj := &unstructured.Unstructured{Object: map[string]any{}}
	obj.SetAPIVersion(apiVersion)
	obj.SetKind(kind)
	obj.SetNamespace(namespace)
	obj.SetName(name)
	return obj
}

// title returns the name of an object for messages.
func title(obj *unstructured.Unstructured) string {
	if obj.GetNamespace() != "" {
		return obj.GetKind() + " " + obj.GetNamespace() + "/" + obj.GetName()
	}
	return obj.GetKind() + " " + obj.GetName()
}

// namespaceGone waits until the control plane's namespace, whose deletion has begun, is gone.
func (t *target) namespaceGone(ctx context.Context) error {
	for {
		found, err := t.kube.CoreV1().Namespaces().Get(ctx, t.namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if pauseErr := pause(ctx); pauseErr != nil {
			if err == nil && len(found.Status.Conditions) > 0 {
				pauseErr = fmt.Errorf("%s", found.Status.Conditions[len(found.Status.Conditions)-1].Message)
			}
			return fmt.Errorf("namespace %s is still being deleted: %w", t.namespace, pauseErr)
		}
	}
}
