package convert

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	outrigger "github.com/outrigger-mesh/outrigger/apis/outrigger/v1alpha1"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// The API groups of the policies of other meshes.
const (
	groupIstio   = "security.istio.io"
	groupLinkerd = "policy.linkerd.io"
)

// IsOtherMesh reports whether AccessPolicies reads objects of a kind as those of another mesh.
func IsOtherMesh(kind schema.GroupKind) bool {
	return kind.Group == groupIstio || kind.Group == groupLinkerd || kind == schema.GroupKind{Group: gateway.GroupName, Kind: "HTTPRoute"}
}

// otherMeshes converts the policies of other meshes, and ignores all other objects.
func (p *policies) otherMeshes(objects []*unstructured.Unstructured) {
	o := &otherMeshes{policies: p, objects: map[schema.GroupKind]map[mesh.Name]*unstructured.Unstructured{}}
	for _, object := range objects {
		kind := object.GroupVersionKind().GroupKind()
		if o.objects[kind] == nil {
			o.objects[kind] = map[mesh.Name]*unstructured.Unstructured{}
		}
		o.objects[kind][mesh.Name{Namespace: object.GetNamespace(), Name: object.GetName()}] = object
	}
	for _, object := range objects {
		switch kind := object.GroupVersionKind().GroupKind(); kind {
		case schema.GroupKind{Group: groupIstio, Kind: "AuthorizationPolicy"}:
			o.istio(object)
		case schema.GroupKind{Group: groupIstio, Kind: "PeerAuthentication"}:
			o.cannot(object).because("spec", "who may call in plaintext is not a policy; set the annotation openservicemesh.io/inbound-tls-mode of pods or namespaces to Strict or Permissive")
		case schema.GroupKind{Group: groupIstio, Kind: "RequestAuthentication"}:
			o.cannot(object).because("spec", "it names issuers of tokens: write a TokenPolicy with the issuer, and its jwksUri as jwksFrom.url, or its jwks; spec.traffic.tokenKeys of the MeshConfig must allow the host")
		case schema.GroupKind{Group: groupLinkerd, Kind: "AuthorizationPolicy"}:
			o.linkerd(object)
		case schema.GroupKind{Group: groupLinkerd, Kind: "ServerAuthorization"}:
			o.cannot(object).because("spec", "it is the older form of Linkerd's AuthorizationPolicy; convert it to one first")
		}
	}
}

type otherMeshes struct {
	*policies
	objects map[schema.GroupKind]map[mesh.Name]*unstructured.Unstructured
}

// obstacles collects what of an object has no equal.
type obstacles struct {
	*policies
	object mesh.ObjectRef
	any    bool
}

func (o *otherMeshes) cannot(object *unstructured.Unstructured) *obstacles {
	return &obstacles{policies: o.policies, object: mesh.ObjectRef{
		APIVersion: object.GetAPIVersion(), Kind: object.GetKind(), Namespace: object.GetNamespace(), Name: object.GetName(),
	}}
}

func (b *obstacles) because(field, format string, args ...any) {
	b.any = true
	b.note(b.object, field, format, args...)
}

// unless adds an obstacle if a list is not empty.
func (b *obstacles) unless(list []string, field, format string) {
	if len(list) > 0 {
		b.because(field, "%s", format)
	}
}

// decode reads the spec of an object, and reports fields that are not known here.
func (b *obstacles) decode(object *unstructured.Unstructured, spec any) {
	content, err := json.Marshal(object.Object["spec"])
	if err == nil {
		decoder := json.NewDecoder(bytes.NewReader(content))
		decoder.DisallowUnknownFields()
		err = decoder.Decode(spec)
	}
	if err != nil {
		b.because("spec", "it cannot be read: %v", err)
	}
}

// accountOf is a service account, or all of a namespace without a name.
func accountOf(namespace, name string) outrigger.AccessSource {
	return outrigger.AccessSource{ServiceAccount: &outrigger.AccessServiceAccount{Namespace: namespace, Name: name}}
}

// everyIdentity are all service accounts of all namespaces.
func everyIdentity() outrigger.AccessSource {
	return outrigger.AccessSource{Namespaces: &metav1.LabelSelector{}}
}

// block returns a range for an address or a range.
func (b *obstacles) block(field, text string) []outrigger.AccessSource {
	prefix, err := netip.ParsePrefix(text)
	if address, notAddress := netip.ParseAddr(text); notAddress == nil {
		prefix, err = netip.PrefixFrom(address, address.BitLen()), nil
	}
	if err != nil {
		b.because(field, "%q is not a range of addresses", text)
		return nil
	}
	b.note(b.object, field, "here a range allows callers without an identity of the mesh only")
	return []outrigger.AccessSource{{IPBlock: prefix.String()}}
}

// pathOf returns the match of a path that is exact, or ends or begins with a star. It is nil for all
// paths.
func (b *obstacles) pathOf(field, pattern string) *gateway.HTTPPathMatch {
	expression := ""
	switch {
	case pattern == "*":
		return nil
	case strings.Contains(pattern, "{"):
		expression = strings.NewReplacer(`\{\*\*\}`, ".*", `\{\*\}`, "[^/]+").Replace(regexp.QuoteMeta(pattern))
		if strings.Contains(expression, `\{`) {
			b.because(field, "%q is not a template of a path", pattern)
		}
	case strings.HasSuffix(pattern, "*"):
		expression = regexp.QuoteMeta(strings.TrimSuffix(pattern, "*")) + ".*"
	case strings.HasPrefix(pattern, "*"):
		expression = ".*" + regexp.QuoteMeta(strings.TrimPrefix(pattern, "*"))
	case isExactPath(pattern):
		return &gateway.HTTPPathMatch{Type: new(gateway.PathMatchExact), Value: &pattern}
	default:
		expression = regexp.QuoteMeta(pattern)
	}
	if len(expression) > longestPath {
		b.because(field, "it is longer than the %d bytes of a path", longestPath)
	}
	return &gateway.HTTPPathMatch{Type: new(gateway.PathMatchRegularExpression), Value: &expression}
}

// limit reports rules with more elements than the CRD allows.
func (b *obstacles) limit(rules []outrigger.AccessRule) {
	for i, rule := range rules {
		if len(rule.Sources) > mostSources || len(rule.NotSources) > mostSources || len(rule.Ports) > mostPorts || len(rule.HTTP) > mostRequests {
			b.because(fmt.Sprintf("spec.rules[%d]", i), "a rule of a policy has at most %d sources, %d ports and %d matches; split it", mostSources, mostPorts, mostRequests)
		}
	}
}

var methods = []string{"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"}

func (b *obstacles) methodOf(field, name string) *gateway.HTTPMethod {
	if !slices.Contains(methods, name) {
		b.because(field, "%q is not one of the methods %s", name, strings.Join(methods, ", "))
	}
	return new(gateway.HTTPMethod(name))
}
