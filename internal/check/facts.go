package check

import (
	"context"
	"fmt"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/page"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Options name the mesh and the ways to query its parts.
type Options struct {
	Config *rest.Config
	// Mesh is the name of the mesh, Namespace that of the control plane's namespace,
	// MeshConfig that of the MeshConfig, Webhook that of the webhook configuration, and
	// Revision that of the injector's revision.
	Mesh, Namespace, MeshConfig, Webhook, Revision string
	// Version is the version of this program.
	Version string
	// Pre is set before an installation, when there is no mesh to query. Strict is set to ask
	// only for the Traffic.
	Pre, Strict bool
	// Decide returns a function with the injector's decision about a pod. The function must
	// read no other namespaces than the given ones.
	Decide func(ctx context.Context, namespaces map[string]*inject.Namespace) (func(pod *corev1.Pod) inject.Result, error)
	// Proxies returns the proxies of all controllers. Ask requests a page of a pod.
	Proxies func(ctx context.Context) ([]registry.Proxy, error)
	Ask     func(ctx context.Context, pod corev1.Pod, path string) ([]byte, error)
	// Releases returns what is known of the versions of a class's proxy; nil if nothing is.
	Releases func(class string) *driver.Releases
	// Traffic returns what the proxies have counted.
	Traffic func(ctx context.Context) (*traffic.Report, error)
}

// fact is a value that was read, or the error.
type fact[T any] struct {
	value T
	err   error
}

func read[T any](value T, err error) fact[T] { return fact[T]{value, err} }

// Facts are the input of the checks.
type Facts struct {
	options Options
	now     time.Time

	version fact[string]
	// skew is how far this machine's clock is ahead of the API server's.
	skew  fact[time.Duration]
	nodes fact[[]corev1.Node]
	crds  fact[[]unstructured.Unstructured]
	hooks fact[[]admissionv1.MutatingWebhookConfiguration]
	// policies and bindings are those that inject sidecars; only read if the controller makes them.
	policies fact[[]admissionv1.MutatingAdmissionPolicy]
	bindings fact[[]admissionv1.MutatingAdmissionPolicyBinding]
	// home is the control plane's namespace, nil if it does not exist.
	home fact[*corev1.Namespace]
	// refused are the missing rights, as VERB RESOURCE.
	refused fact[[]string]

	deployments fact[[]appsv1.Deployment]
	control     fact[[]corev1.Pod]
	renewed     fact[time.Time]
	ready       map[string]error
	versions    map[string]fact[string]
	meshConfig  fact[*unstructured.Unstructured]
	// members are the namespaces of the mesh, and pods the pods in them.
	members fact[[]corev1.Namespace]
	pods    fact[[]corev1.Pod]
	bundles map[string]fact[string]
	// kubeletBundle is the ClusterTrustBundle; only read if the MeshConfig lets kubelets
	// request certificates.
	kubeletBundle fact[*unstructured.Unstructured]
	proxies       fact[[]registry.Proxy]
	// gateways are the Gateways whose class is the mesh's.
	gateways fact[[]unstructured.Unstructured]
	decide   fact[func(*corev1.Pod) inject.Result]
	dryRun   fact[*corev1.Pod]
	tried    string
	traffic  fact[*traffic.Report]
}

// Gather reads the Facts. It returns an error only if the API server does not answer;
// everything else that cannot be read becomes a finding.
func Gather(ctx context.Context, options Options) (*Facts, error) {
	client, err := kubernetes.NewForConfig(options.Config)
	if err != nil {
		return nil, fmt.Errorf("creating a client for %s: %w", options.Config.Host, err)
	}
	objects, err := dynamic.NewForConfig(options.Config)
	if err != nil {
		return nil, fmt.Errorf("creating a client for %s: %w", options.Config.Host, err)
	}
	f := &Facts{options: options, now: time.Now()}
	if f.version, f.skew, err = server(ctx, options.Config, client); err != nil {
		return nil, err
	}
	if options.Strict {
		f.traffic = read(options.Traffic(ctx))
		return f, nil
	}
	f.nodes = read(page.All[corev1.Node](ctx, client.CoreV1().Nodes().List, metav1.ListOptions{}))
	f.crds = read(page.All[unstructured.Unstructured](ctx, objects.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).List, metav1.ListOptions{}))
	f.hooks = read(page.All[admissionv1.MutatingWebhookConfiguration](ctx, client.AdmissionregistrationV1().MutatingWebhookConfigurations().List, metav1.ListOptions{}))
	namespaces := read(page.All[corev1.Namespace](ctx, client.CoreV1().Namespaces().List, metav1.ListOptions{}))
	f.home.err, f.members.err = namespaces.err, namespaces.err
	for i := range namespaces.value {
		if namespaces.value[i].Name == options.Namespace {
			f.home.value = &namespaces.value[i]
		}
	}
	if options.Pre {
		f.refused = ownRights(ctx, client, options.Namespace)
		return f, nil
	}
	f.gatherMesh(ctx, client, objects, namespaces.value)
	return f, nil
}

// server returns the API server's version, and the difference of the clocks by the Date of
// an answer.
func server(ctx context.Context, config *rest.Config, client kubernetes.Interface) (version fact[string], skew fact[time.Duration], err error) {
	http1, err := rest.HTTPClientFor(config)
	if err != nil {
		return version, skew, err
	}
	host, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return version, skew, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, host.JoinPath("version").String(), nil)
	if err != nil {
		return version, skew, err
	}
	before := time.Now()
	response, err := http1.Do(request)
	if err != nil {
		return version, skew, fmt.Errorf("asking the API server %s: %w", host.Host, err)
	}
	defer response.Body.Close()
	date, failed := http.ParseTime(response.Header.Get("Date"))
	// The header is in whole seconds.
	half := time.Since(before) / 2
	skew = read(before.Add(half).Sub(date.Add(time.Second/2)), failed)
	info, failed := client.Discovery().ServerVersion()
	if failed != nil {
		return version, skew, fmt.Errorf("asking the API server %s for its version: %w", host.Host, failed)
	}
	return read(info.GitVersion, nil), skew, nil
}

// ownRights returns the rights to create parts of an installation that the user lacks.
func ownRights(ctx context.Context, client kubernetes.Interface, namespace string) fact[[]string] {
	return refusedOf([]authorizationv1.ResourceAttributes{
		{Resource: "namespaces"},
		{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
		{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
		{Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"},
		{Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations"},
		{Namespace: namespace, Resource: "serviceaccounts"},
		{Namespace: namespace, Resource: "services"},
		{Namespace: namespace, Resource: "configmaps"},
		{Namespace: namespace, Resource: "secrets"},
		{Namespace: namespace, Group: "apps", Resource: "deployments"},
		{Namespace: namespace, Group: "rbac.authorization.k8s.io", Resource: "roles"},
		{Namespace: namespace, Group: "rbac.authorization.k8s.io", Resource: "rolebindings"},
	}, func(r *authorizationv1.ResourceAttributes) (bool, error) {
		r.Verb = "create"
		answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: r},
		}, metav1.CreateOptions{})
		return err == nil && answer.Status.Allowed, err
	})
}

// accountRights returns the rights that the controller's service account lacks: those to
// watch all kinds, and others from a list.
func accountRights(ctx context.Context, client kubernetes.Interface, namespace string) fact[[]string] {
	var rights []authorizationv1.ResourceAttributes
	for _, kind := range source.Kinds() {
		right := authorizationv1.ResourceAttributes{Verb: "watch", Group: kind.Group, Resource: kind.Resource().Resource}
		if kind.Role == source.Configuration {
			right.Namespace = namespace
		}
		// The right is limited to one MeshConfig by name, so a review without a name fails.
		if kind.GroupVersionKind != source.MeshConfig().GroupVersionKind {
			rights = append(rights, right)
		}
	}
	return refusedOf(append(rights, []authorizationv1.ResourceAttributes{
		{Verb: "create", Group: "authentication.k8s.io", Resource: "tokenreviews"},
		{Verb: "create", Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
		{Verb: "create", Resource: "configmaps"}, {Verb: "create", Resource: "events"},
		{Verb: "create", Group: "coordination.k8s.io", Resource: "leases", Namespace: namespace},
	}...), func(r *authorizationv1.ResourceAttributes) (bool, error) {
		answer, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User:               "system:serviceaccount:" + namespace + ":outrigger-controller",
				Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
				ResourceAttributes: r,
			},
		}, metav1.CreateOptions{})
		return err == nil && answer.Status.Allowed, err
	})
}

// refusedOf returns the rights that are not granted.
func refusedOf(rights []authorizationv1.ResourceAttributes, allowed func(*authorizationv1.ResourceAttributes) (bool, error)) fact[[]string] {
	var refused []string
	for i := range rights {
		switch ok, err := allowed(&rights[i]); {
		case err != nil:
			return fact[[]string]{err: err}
		case !ok:
			refused = append(refused, rights[i].Verb+" "+rights[i].Resource)
		}
	}
	return fact[[]string]{value: refused}
}
