package source

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/outrigger-mesh/outrigger/apis/status"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// NewPolicy returns a row for a kind that exists only in a test.
func NewPolicy[T any, P object[T]](gvk schema.GroupVersionKind, types func(*runtime.Scheme) error,
	fact func(obj P, add func(reason, field, format string, args ...any)) mesh.Digester, field func(P) *status.Status,
) Kind {
	return kind(Policy, gvk, types, plain(func(obj P, n *notes) mesh.Digester { return fact(obj, n.add) }), smi(field))
}
