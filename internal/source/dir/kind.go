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
	// kinds are those of the table, and those that have pods or that pods name. Objects
	// of any other kind are none of the mesh's business.
	kinds map[schema.GroupKind]kind
	// decoder reads as the API server does: names of fields keep their case, and
	// nothing is converted or defaulted. Beside an object it may return an error that
	// runtime.AsStrictDecodingError knows, about fields that the object has not.
	decoder runtime.Decoder
}

func newCodec(table []source.Kind) *codec {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // The kinds are compiled in, so it fails always or never.
		}
	}
	v1 := kind{versions: []string{"v1"}, namespaced: true}
	kinds := map[schema.GroupKind]kind{
		{Kind: "ServiceAccount"}:                       v1,
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
		kinds[k.GroupKind()] = kind{versions: k.Versions, namespaced: k.Scope() == meta.RESTScopeNamespace, ours: k.Role != source.Cluster}
	}
	return &codec{kinds, json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Strict: true})}
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
