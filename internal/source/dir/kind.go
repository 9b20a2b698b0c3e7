package dir

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"

	access "github.com/outrigger-mesh/outrigger/apis/access/v1alpha3"
	config "github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	policy "github.com/outrigger-mesh/outrigger/apis/policy/v1alpha1"
	specs "github.com/outrigger-mesh/outrigger/apis/specs/v1alpha4"
	split "github.com/outrigger-mesh/outrigger/apis/split/v1alpha4"
)

// kind is how a kind is read.
type kind struct {
	// versions are those that are read. All have the same fields; the objects are of
	// the first.
	versions   []string
	namespaced bool
	// ours says that the kind is the mesh's and not Kubernetes' own.
	ours bool
}

// codec makes typed objects of JSON.
type codec struct {
	kinds map[schema.GroupKind]kind
	// decoder reads as the API server does: names of fields keep their case, and
	// nothing is converted or defaulted. Beside an object it may return an error that
	// runtime.AsStrictDecodingError knows, about fields that the object has not.
	decoder runtime.Decoder
}

func newCodec() *codec {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, discoveryv1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme,
		config.AddToScheme, access.AddToScheme, specs.AddToScheme, split.AddToScheme, policy.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err) // The kinds are compiled in, so it fails always or never.
		}
	}
	return &codec{kinds(), json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Strict: true})}
}

func (c *codec) reads(group, name string) bool {
	_, ok := c.kinds[schema.GroupKind{Group: group, Kind: name}]
	return ok
}

// ours reports whether kinds of the group are the mesh's own.
func (c *codec) ours(group string) bool {
	for of, kind := range c.kinds {
		if of.Group == group && kind.ours {
			return true
		}
	}
	return false
}

// kinds returns the kinds that are read. Objects of any other kind are none of the
// mesh's business.
func kinds() map[schema.GroupKind]kind {
	v1 := kind{versions: []string{"v1"}, namespaced: true}
	ours := func(versions ...string) kind { return kind{versions: versions, namespaced: true, ours: true} }
	return map[schema.GroupKind]kind{
		{Kind: "Namespace"}:      {versions: []string{"v1"}},
		{Kind: "Pod"}:            v1,
		{Kind: "Service"}:        v1,
		{Kind: "ServiceAccount"}: v1,

		{Group: discoveryv1.GroupName, Kind: "EndpointSlice"}: v1,

		{Group: appsv1.GroupName, Kind: "Deployment"}:  v1,
		{Group: appsv1.GroupName, Kind: "StatefulSet"}: v1,
		{Group: appsv1.GroupName, Kind: "DaemonSet"}:   v1,
		{Group: appsv1.GroupName, Kind: "ReplicaSet"}:  v1,
		{Group: batchv1.GroupName, Kind: "Job"}:        v1,
		{Group: batchv1.GroupName, Kind: "CronJob"}:    v1,

		{Group: config.GroupName, Kind: "MeshConfig"}:             ours("v1alpha2", "v1alpha1"),
		{Group: config.GroupName, Kind: "MeshRootCertificate"}:    ours("v1alpha2"),
		{Group: access.GroupName, Kind: "TrafficTarget"}:          ours("v1alpha3"),
		{Group: specs.GroupName, Kind: "HTTPRouteGroup"}:          ours("v1alpha4"),
		{Group: specs.GroupName, Kind: "TCPRoute"}:                ours("v1alpha4"),
		{Group: split.GroupName, Kind: "TrafficSplit"}:            ours("v1alpha4", "v1alpha2"),
		{Group: policy.GroupName, Kind: "Egress"}:                 ours("v1alpha1"),
		{Group: policy.GroupName, Kind: "IngressBackend"}:         ours("v1alpha1"),
		{Group: policy.GroupName, Kind: "Retry"}:                  ours("v1alpha1"),
		{Group: policy.GroupName, Kind: "UpstreamTrafficSetting"}: ours("v1alpha1"),
	}
}
