package dir

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// isOfMeshes reports whether the group's kinds configure meshes. Such objects must not be
// ignored silently.
func isOfMeshes(group string) bool {
	return slices.ContainsFunc([]string{"openservicemesh.io", "smi-spec.io", "flomesh.io", "gateway.networking.k8s.io"}, func(domain string) bool {
		return group == domain || strings.HasSuffix(group, "."+domain)
	})
}

// insteadOf returns advice about an object of an unsupported kind.
func insteadOf(gvk schema.GroupVersionKind) string {
	switch {
	case gvk.Group == "metrics.smi-spec.io":
		return "read the proxies' own metrics at port 15010, and remove it"
	case gvk.Group == "gateway.networking.k8s.io":
		return "for traffic within the mesh, use the routes of Services (docs/gateway-api.md) and TrafficTarget; if it is for a gateway controller, move it to another folder"
	case gvk.Kind == "AccessControl":
		return "use IngressBackend"
	case strings.HasPrefix(gvk.Group, "plugin."):
		return "sidecars don't support plugins; remove it"
	}
	return "remove it"
}

// unknown adds a Problem about an unsupported kind.
func (f *file) unknown(h head, format string, args ...any) {
	f.problems = append(f.problems, mesh.Problem{Object: h.ref(), Reason: source.ReasonUnknownKind, Message: fmt.Sprintf(format, args...)})
}

// changedSince describes what else changed with the version of an object.
func changedSince(gvk schema.GroupVersionKind) string {
	if gvk.Kind == "TrafficSplit" && gvk.Version == "v1alpha1" {
		return ", and write the weights as whole numbers: in v1alpha1 they are quantities, where 500m is a half and 1 is 1000m"
	}
	return ""
}

// errHeaderMap reports a match whose headers are a map instead of a list.
var errHeaderMap = errors.New("the headers of a match must be a list of maps, not a map: write \"headers: [{x-user: alice}, {x-version: v2}]\", or each on a line that begins with \"- \"")

// isHeaderMap reports whether a match of an HTTPRouteGroup has a map of headers.
func isHeaderMap(kind string, object []byte) bool {
	var group struct {
		Spec struct {
			Matches []struct {
				Headers json.RawMessage `json:"headers"`
			} `json:"matches"`
		} `json:"spec"`
	}
	if kind != "HTTPRouteGroup" || json.Unmarshal(object, &group) != nil {
		return false
	}
	return slices.ContainsFunc(group.Spec.Matches, func(m struct {
		Headers json.RawMessage `json:"headers"`
	}) bool {
		return strings.HasPrefix(strings.TrimSpace(string(m.Headers)), "{")
	})
}
