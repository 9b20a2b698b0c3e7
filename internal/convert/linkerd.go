package convert

import (
	"encoding/json"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	outrigger "github.com/outrigger-mesh/outrigger/apis/outrigger/v1alpha1"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// linkerdPolicy is the spec of Linkerd's AuthorizationPolicy.
type linkerdPolicy struct {
	TargetRef linkerdRef `json:"targetRef"`
	// Required must all hold.
	Required []linkerdRef `json:"requiredAuthenticationRefs"`
}

type linkerdRef struct {
	Group     string `json:"group"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

// linkerdServer is the spec of a Server, a port of some pods.
type linkerdServer struct {
	PodSelector   *metav1.LabelSelector `json:"podSelector"`
	Port          any                   `json:"port"`
	ProxyProtocol string                `json:"proxyProtocol"`
	AccessPolicy  string                `json:"accessPolicy"`

	ExternalWorkloadSelector any `json:"externalWorkloadSelector"`
}

// linkerd converts an AuthorizationPolicy.
func (o *otherMeshes) linkerd(object *unstructured.Unstructured) {
	b := o.cannot(object)
	var from linkerdPolicy
	b.decode(object, &from)
	name := mesh.Name{Namespace: object.GetNamespace(), Name: object.GetName()}
	spec := outrigger.AccessPolicySpec{Action: outrigger.ActionAllow}
	rule := outrigger.AccessRule{Sources: b.linkerdSources(o, name.Namespace, from.Required)}
	switch target := from.TargetRef; {
	case target.Kind == "Namespace":
		spec.TargetRefs = []outrigger.AccessTarget{{Kind: "Pod", Selector: &metav1.LabelSelector{}}}
	case target.Kind == "Server" && target.Group == groupLinkerd:
		spec.TargetRefs = b.linkerdServer(o, mesh.Name{Namespace: name.Namespace, Name: target.Name}, &rule)
	case target.Kind == "HTTPRoute":
		spec.TargetRefs = b.linkerdRoute(o, target.Group, mesh.Name{Namespace: name.Namespace, Name: target.Name}, &rule)
	default:
		b.because("spec.targetRef", "%q is not a kind of target that is read here", target.Kind)
	}
	spec.Rules = []outrigger.AccessRule{rule}
	b.limit(spec.Rules)
	if b.any {
		return
	}
	if len(rule.Ports) > 0 {
		b.note(b.object, "spec.targetRef", "a policy closes all ports of these pods to everybody whom no policy allows, where a Server closes its own; add a rule for the others")
	}
	o.write(name, spec)
}

func (o *otherMeshes) find(group, kind string, name mesh.Name) *unstructured.Unstructured {
	return o.objects[schema.GroupKind{Group: group, Kind: kind}][name]
}

// linkerdServer adds the port of a Server to a rule, and returns its pods.
func (b *obstacles) linkerdServer(o *otherMeshes, name mesh.Name, rule *outrigger.AccessRule) []outrigger.AccessTarget {
	object := o.find(groupLinkerd, "Server", name)
	if object == nil {
		b.because("spec.targetRef", "there is no Server %s among the objects", name)
		return nil
	}
	var server linkerdServer
	b.decode(object, &server)
	if server.PodSelector == nil {
		b.because("spec.targetRef", "Server %s does not select pods", name)
	}
	port, _ := server.Port.(float64)
	if port != float64(uint16(port)) || port == 0 {
		b.because("spec.targetRef", "Server %s has the port %v, and a policy has port numbers", name, server.Port)
	}
	rule.Ports = []int32{int32(port)}
	return []outrigger.AccessTarget{{Kind: "Pod", Selector: server.PodSelector}}
}

// linkerdRoute adds the matches of an HTTPRoute for a Server to a rule, and returns the Server's pods.
func (b *obstacles) linkerdRoute(o *otherMeshes, group string, name mesh.Name, rule *outrigger.AccessRule) []outrigger.AccessTarget {
	object := o.find(group, "HTTPRoute", name)
	if object == nil {
		b.because("spec.targetRef", "there is no HTTPRoute %s of %s among the objects", name, group)
		return nil
	}
	var route struct {
		ParentRefs []linkerdRef `json:"parentRefs"`
		Rules      []struct {
			Matches []gateway.HTTPRouteMatch `json:"matches"`
		} `json:"rules"`
	}
	if content, err := json.Marshal(object.Object["spec"]); err != nil || json.Unmarshal(content, &route) != nil {
		b.because("spec.targetRef", "HTTPRoute %s cannot be read", name)
		return nil
	}
	if len(route.ParentRefs) != 1 || route.ParentRefs[0].Kind != "Server" {
		b.because("spec.targetRef", "HTTPRoute %s is not one of a single Server", name)
		return nil
	}
	for _, r := range route.Rules {
		if len(r.Matches) == 0 {
			r.Matches = []gateway.HTTPRouteMatch{{}}
		}
		rule.HTTP = append(rule.HTTP, r.Matches...)
	}
	if len(rule.HTTP) == 0 {
		b.because("spec.targetRef", "HTTPRoute %s has no rule", name)
	}
	return b.linkerdServer(o, mesh.Name{Namespace: name.Namespace, Name: route.ParentRefs[0].Name}, rule)
}

// linkerdSources returns the callers, or nil for everybody.
func (b *obstacles) linkerdSources(o *otherMeshes, namespace string, required []linkerdRef) []outrigger.AccessSource {
	if len(required) > 1 {
		b.because("spec.requiredAuthenticationRefs", "a caller must satisfy all of several, and a source of a policy has one property")
	}
	var sources []outrigger.AccessSource
	for i, ref := range required {
		field := fmt.Sprintf("spec.requiredAuthenticationRefs[%d]", i)
		name := mesh.Name{Namespace: ref.Namespace, Name: ref.Name}
		if name.Namespace == "" {
			name.Namespace = namespace
		}
		object := o.find(groupLinkerd, ref.Kind, name)
		switch {
		case ref.Kind == "ServiceAccount":
			sources = append(sources, accountOf(name.Namespace, name.Name))
		case object == nil:
			b.because(field, "there is no %s %s among the objects", ref.Kind, name)
		case ref.Kind == "MeshTLSAuthentication":
			sources = append(sources, b.linkerdIdentities(field, object)...)
		case ref.Kind == "NetworkAuthentication":
			sources = append(sources, b.linkerdNetworks(field, object)...)
		default:
			b.because(field, "%q is not a kind of authentication that is read here", ref.Kind)
		}
		if len(sources) == 0 {
			b.because(field, "it names no caller")
		}
	}
	return sources
}

func (b *obstacles) linkerdIdentities(field string, object *unstructured.Unstructured) []outrigger.AccessSource {
	var spec struct {
		Identities   []string     `json:"identities"`
		IdentityRefs []linkerdRef `json:"identityRefs"`
	}
	b.decode(object, &spec)
	var sources []outrigger.AccessSource
	for _, ref := range spec.IdentityRefs {
		namespace := ref.Namespace
		if namespace == "" {
			namespace = object.GetNamespace()
		}
		switch ref.Kind {
		case "ServiceAccount":
			sources = append(sources, accountOf(namespace, ref.Name))
		case "Namespace":
			if ref.Name == "" {
				ref.Name = namespace
			}
			sources = append(sources, accountOf(ref.Name, ""))
		default:
			b.because(field, "%q is not a kind of identity", ref.Kind)
		}
	}
	for _, identity := range spec.Identities {
		parts := strings.Split(identity, ".")
		switch {
		case identity == "*":
			sources = append(sources, everyIdentity())
		case len(parts) < 5 || parts[2] != "serviceaccount" || parts[3] != "identity" || strings.Contains(strings.Join(parts[1:], ""), "*") || parts[0] != "*" && strings.Contains(parts[0], "*"):
			b.because(field, "%q is not the identity of one service account or of all of a namespace", identity)
		case parts[0] == "*":
			sources = append(sources, accountOf(parts[1], ""))
		default:
			sources = append(sources, accountOf(parts[1], parts[0]))
		}
	}
	return sources
}

func (b *obstacles) linkerdNetworks(field string, object *unstructured.Unstructured) []outrigger.AccessSource {
	var spec struct {
		Networks []struct {
			CIDR   string   `json:"cidr"`
			Except []string `json:"except"`
		} `json:"networks"`
	}
	b.decode(object, &spec)
	var sources []outrigger.AccessSource
	for _, network := range spec.Networks {
		b.unless(network.Except, field, "ranges of addresses cannot be excepted")
		sources = append(sources, b.block(field, network.CIDR)...)
	}
	return sources
}
