package dir

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"

	"github.com/outrigger-mesh/outrigger/internal/source"
)

// kind says how a kind is read.
type kind struct {
	// versions are the supported versions, which have the same fields. Objects are
	// converted to the first.
	versions   []string
	namespaced bool
	// ours is true for the mesh's own kinds and false for those of Kubernetes and Gateway
	// API.
	ours bool
	// grants is true for kinds whose objects may allow or route more without a field that is
	// unknown here because it is misspelt.
	grants bool
}

// codec decodes JSON to typed objects.
type codec struct {
	// kinds are those of the table, the workload kinds, ServiceAccount, ConfigMap and Secret. All others
	// are ignored, and so are ConfigMaps and Secrets without facts.
	kinds map[schema.GroupKind]kind
	// decoder works like the API server's: field names are case-sensitive, and nothing is
	// converted or defaulted. Together with an object it may return an error about unknown
	// fields, to be checked with runtime.AsStrictDecodingError.
	decoder runtime.Decoder
}

func newCodec(table []source.Kind) *codec {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // Impossible: the kinds are compiled in and tested.
		}
	}
	v1 := kind{versions: []string{"v1"}, namespaced: true}
	kinds := map[schema.GroupKind]kind{
		{Kind: "ServiceAccount"}:                       v1,
		{Kind: "ConfigMap"}:                            v1,
		{Kind: "Secret"}:                               v1,
		{Group: appsv1.GroupName, Kind: "Deployment"}:  v1,
		{Group: appsv1.GroupName, Kind: "StatefulSet"}: v1,
		{Group: appsv1.GroupName, Kind: "DaemonSet"}:   v1,
		{Group: appsv1.GroupName, Kind: "ReplicaSet"}:  v1,
		{Group: batchv1.GroupName, Kind: "Job"}:        v1,
		{Group: batchv1.GroupName, Kind: "CronJob"}:    v1,
	}
	if table == nil {
		table = source.Kinds()
	}
	for _, k := range table {
		k.AddToScheme(scheme)
		kinds[k.GroupKind()] = kind{
			versions: k.Versions, namespaced: k.Scope() == meta.RESTScopeNamespace,
			ours:   k.Role == source.Policy || k.Role == source.Configuration,
			grants: k.Role == source.Policy && k.Kind != "Retry" && k.Kind != "UpstreamTrafficSetting",
		}
	}
	return &codec{kinds, json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Strict: true})}
}

func (c *codec) reads(group, name string) bool {
	_, ok := c.kinds[schema.GroupKind{Group: group, Kind: name}]
	return ok
}

// ours reports whether the group's kinds are the mesh's own.
func (c *codec) ours(group string) bool {
	for of, kind := range c.kinds {
		if of.Group == group && kind.ours {
			return true
		}
	}
	return false
}
