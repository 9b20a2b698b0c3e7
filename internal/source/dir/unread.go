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

// isOfMeshes reports whether kinds of the group configure meshes: whoever writes such an
// object expects something of it, so that it is not read must not go unsaid.
func isOfMeshes(group string) bool {
	return slices.ContainsFunc([]string{"openservicemesh.io", "smi-spec.io", "flomesh.io", "gateway.networking.k8s.io"}, func(domain string) bool {
		return group == domain || strings.HasSuffix(group, "."+domain)
	})
}

// insteadOf says what to do about an object of a kind that is not read.
func insteadOf(gvk schema.GroupVersionKind) string {
	switch {
	case gvk.Group == "metrics.smi-spec.io":
		return "read the proxies' own metrics at port 15010, and remove it"
	case gvk.Group == "gateway.networking.k8s.io":
		return "for traffic within the mesh use TrafficTarget, HTTPRouteGroup and TrafficSplit; for a gateway's controller it may stay, in another folder"
	case gvk.Kind == "AccessControl":
		return "use IngressBackend"
	case strings.HasPrefix(gvk.Group, "plugin."):
		return "sidecars take no plugins; remove it"
	}
	return "remove it"
}

// unknown notes that the kind of an object is not read.
func (f *file) unknown(h head, format string, args ...any) {
	f.problems = append(f.problems, mesh.Problem{Object: h.ref(), Reason: source.ReasonUnknownKind, Message: fmt.Sprintf(format, args...)})
}

// changedSince says what else changes with the version of an object.
func changedSince(gvk schema.GroupVersionKind) string {
	if gvk.Kind == "TrafficSplit" && gvk.Version == "v1alpha1" {
		return ", and write the weights as whole numbers: those of v1alpha1 are quantities, of which 500m is a half and 1 is 1000m"
	}
	return ""
}

// errHeaderMap is what is wrong with a match whose headers are one map.
var errHeaderMap = errors.New("the headers of a match are a map, and must be a list of maps: write \"headers: [{x-user: alice}, {x-version: v2}]\", or each as a line that begins with \"- \"")

// isHeaderMap reports whether the headers of one of an HTTPRouteGroup's matches are a map.
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
