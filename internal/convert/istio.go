package convert

import (
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	outrigger "github.com/outrigger-mesh/outrigger/apis/outrigger/v1alpha1"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// istioRoot is the namespace whose policies are for all namespaces.
const istioRoot = "istio-system"

// istioPolicy is the spec of Istio's AuthorizationPolicy.
type istioPolicy struct {
	Selector *struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	TargetRef  *istioTarget  `json:"targetRef"`
	TargetRefs []istioTarget `json:"targetRefs"`
	Action     string        `json:"action"`
	Rules      []istioRule   `json:"rules"`
	Provider   any           `json:"provider"`
}

type istioTarget struct {
	Group, Kind, Name, Namespace string
}

type istioRule struct {
	From []struct {
		Source istioSource `json:"source"`
	} `json:"from"`
	To []struct {
		Operation istioOperation `json:"operation"`
	} `json:"to"`
	When []struct {
		Key       string   `json:"key"`
		Values    []string `json:"values"`
		NotValues []string `json:"notValues"`
	} `json:"when"`
}

type istioSource struct {
	Principals           []string `json:"principals"`
	NotPrincipals        []string `json:"notPrincipals"`
	RequestPrincipals    []string `json:"requestPrincipals"`
	NotRequestPrincipals []string `json:"notRequestPrincipals"`
	Namespaces           []string `json:"namespaces"`
	NotNamespaces        []string `json:"notNamespaces"`
	IPBlocks             []string `json:"ipBlocks"`
	NotIPBlocks          []string `json:"notIpBlocks"`
	RemoteIPBlocks       []string `json:"remoteIpBlocks"`
	NotRemoteIPBlocks    []string `json:"notRemoteIpBlocks"`
	ServiceAccounts      []string `json:"serviceAccounts"`
	NotServiceAccounts   []string `json:"notServiceAccounts"`
}

type istioOperation struct {
	Hosts      []string `json:"hosts"`
	NotHosts   []string `json:"notHosts"`
	Ports      []string `json:"ports"`
	NotPorts   []string `json:"notPorts"`
	Methods    []string `json:"methods"`
	NotMethods []string `json:"notMethods"`
	Paths      []string `json:"paths"`
	NotPaths   []string `json:"notPaths"`
}

// istio converts an AuthorizationPolicy.
func (o *otherMeshes) istio(object *unstructured.Unstructured) {
	b := o.cannot(object)
	var from istioPolicy
	b.decode(object, &from)
	spec := outrigger.AccessPolicySpec{Action: outrigger.ActionAllow, Rules: []outrigger.AccessRule{}}
	switch from.Action {
	case "", "ALLOW":
	case "DENY":
		spec.Action = outrigger.ActionDeny
	case "AUDIT":
		b.because("spec.action", "it only asks for logs; access logs have every refused request")
	case "CUSTOM":
		b.because("spec.action", "an external service is asked mesh-wide, by spec.externalAuthorization of the MeshConfig")
	default:
		b.because("spec.action", "%q is not an action", from.Action)
	}
	for i, rule := range from.Rules {
		spec.Rules = append(spec.Rules, b.istioRules(fmt.Sprintf("spec.rules[%d]", i), rule, object.GetNamespace(), spec.Action == outrigger.ActionDeny)...)
	}
	if spec.Action == outrigger.ActionDeny && len(from.Rules) == 0 {
		b.because("spec.rules", "a denial without rules denies nothing")
	}
	b.limit(spec.Rules)
	name := mesh.Name{Namespace: object.GetNamespace(), Name: object.GetName()}
	selector := &metav1.LabelSelector{}
	if from.Selector != nil {
		selector.MatchLabels = from.Selector.MatchLabels
	}
	if from.TargetRef != nil {
		from.TargetRefs = append(from.TargetRefs, *from.TargetRef)
	}
	for i, target := range from.TargetRefs {
		if target.Kind != "Service" || target.Group != "" && target.Group != "core" || target.Namespace != "" && target.Namespace != name.Namespace {
			b.because(fmt.Sprintf("spec.targetRefs[%d]", i), "only Services of the policy's namespace can be targets")
		}
		spec.TargetRefs = append(spec.TargetRefs, outrigger.AccessTarget{Kind: "Service", Name: target.Name})
	}
	if len(spec.TargetRefs) == 0 {
		spec.TargetRefs = []outrigger.AccessTarget{{Kind: "Pod", Selector: selector}}
	}
	switch {
	case name.Namespace == istioRoot && spec.Action != outrigger.ActionDeny:
		b.because("spec", "a policy of %s closes all namespaces to everybody else, and a ClusterAccessPolicy that allows closes none; annotate the namespaces with openservicemesh.io/default-access: deny, and write a ClusterAccessPolicy for whom it allows", istioRoot)
	case b.any:
	case name.Namespace == istioRoot && len(spec.Rules) > mostAccessRules:
		b.because("spec.rules", "a ClusterAccessPolicy has at most %d rules", mostAccessRules)
	case name.Namespace == istioRoot:
		policy := &outrigger.ClusterAccessPolicy{ObjectMeta: metav1.ObjectMeta{Name: o.name(mesh.Name{Name: name.Name})}}
		policy.Spec = outrigger.ClusterAccessPolicySpec{Action: spec.Action, Rules: spec.Rules}
		if from.Selector != nil {
			policy.Spec.PodSelector = selector
		}
		o.made = append(o.made, asObject(outrigger.SchemeGroupVersion.String(), "ClusterAccessPolicy", policy))
	default:
		o.write(name, spec)
	}
}

// istioCallers are the sources of rules of their own. A nil list of sources is everybody.
type istioCallers struct{ sources, except []outrigger.AccessSource }

// istioRules returns a rule for each combination of callers and operations.
func (b *obstacles) istioRules(field string, rule istioRule, namespace string, denies bool) []outrigger.AccessRule {
	for i, condition := range rule.When {
		why := "a policy has no such condition"
		if strings.HasPrefix(condition.Key, "request.auth.") {
			why = "it is about tokens of users: write the issuer and its keys into a TokenPolicy, and the condition into token of a rule of an AccessPolicy"
		}
		b.because(fmt.Sprintf("%s.when[%d].key", field, i), "%s: %s", condition.Key, why)
	}
	var named []outrigger.AccessSource
	var callers []istioCallers
	for i, from := range rule.From {
		sources, except := b.istioSource(fmt.Sprintf("%s.from[%d].source", field, i), from.Source, namespace, denies)
		if sources != nil && except == nil {
			named = append(named, sources...)
		} else {
			callers = append(callers, istioCallers{sources, except})
		}
	}
	if len(rule.From) == 0 || len(named) > 0 {
		callers = append(callers, istioCallers{sources: named})
	}
	operations := []outrigger.AccessRule{{}}
	if len(rule.To) > 0 {
		operations = nil
	}
	for i, to := range rule.To {
		operations = append(operations, b.istioOperation(fmt.Sprintf("%s.to[%d].operation", field, i), to.Operation))
	}
	var rules []outrigger.AccessRule
	for _, who := range callers {
		for _, what := range operations {
			rules = append(rules, outrigger.AccessRule{Sources: who.sources, NotSources: who.except, Ports: what.Ports, HTTP: what.HTTP})
		}
	}
	return rules
}

func (b *obstacles) istioSource(field string, s istioSource, namespace string, denies bool) (sources, except []outrigger.AccessSource) {
	const tokens = "it is about tokens of users: write the issuer and its keys into a TokenPolicy, and the condition into token of a rule of an AccessPolicy"
	b.unless(s.RequestPrincipals, field+".requestPrincipals", tokens)
	b.unless(s.NotRequestPrincipals, field+".notRequestPrincipals", tokens)
	const forwarded = "no policy trusts addresses that headers name"
	b.unless(s.RemoteIPBlocks, field+".remoteIpBlocks", forwarded)
	b.unless(s.NotRemoteIPBlocks, field+".notRemoteIpBlocks", forwarded)
	b.unless(s.NotIPBlocks, field+".notIpBlocks", "ranges of addresses cannot be excepted")
	if denies {
		b.unless(s.IPBlocks, field+".ipBlocks", "ranges of addresses can only be allowed")
	}
	kinds := 0
	for _, one := range []struct {
		name string
		list []string
		read func(field, text string) []outrigger.AccessSource
		into *[]outrigger.AccessSource
	}{
		{"principals", s.Principals, b.istioPrincipal, &sources},
		{"namespaces", s.Namespaces, b.istioNamespace, &sources},
		{"ipBlocks", s.IPBlocks, b.block, &sources},
		{"serviceAccounts", s.ServiceAccounts, b.istioAccount(namespace), &sources},
		{"notPrincipals", s.NotPrincipals, b.istioPrincipal, &except},
		{"notNamespaces", s.NotNamespaces, b.istioNamespace, &except},
		{"notServiceAccounts", s.NotServiceAccounts, b.istioAccount(namespace), &except},
	} {
		for i, text := range one.list {
			*one.into = append(*one.into, one.read(fmt.Sprintf("%s.%s[%d]", field, one.name, i), text)...)
		}
		if one.into == &sources && len(one.list) > 0 {
			kinds++
		}
	}
	if kinds > 1 {
		b.because(field, "the caller must have all of several kinds of properties, and a policy has one kind for each source")
	}
	return sources, except
}

// istioPrincipal reads "cluster.local/ns/shop/sa/cart".
func (b *obstacles) istioPrincipal(field, text string) []outrigger.AccessSource {
	if text == "*" {
		return []outrigger.AccessSource{everyIdentity()}
	}
	parts := strings.Split(text, "/")
	if len(parts) == 4 && parts[1] == "ns" && parts[3] == "*" {
		parts = []string{parts[0], "ns", parts[2], "sa", "*"}
	}
	if len(parts) != 5 || parts[1] != "ns" || parts[3] != "sa" || strings.Contains(strings.Join(parts[:4], ""), "*") || parts[4] != "*" && strings.Contains(parts[4], "*") {
		b.because(field, "%q is not the identity of one service account or of all of a namespace", text)
		return nil
	}
	switch {
	case parts[4] == "*" && parts[0] != "cluster.local":
		b.because(field, "a namespace of another trust domain cannot be named")
		return nil
	case parts[4] == "*":
		return []outrigger.AccessSource{accountOf(parts[2], "")}
	case parts[0] != "cluster.local":
		return []outrigger.AccessSource{{SPIFFE: "spiffe://" + text}}
	}
	return []outrigger.AccessSource{accountOf(parts[2], parts[4])}
}

func (b *obstacles) istioNamespace(field, text string) []outrigger.AccessSource {
	switch {
	case text == "*":
		return []outrigger.AccessSource{everyIdentity()}
	case strings.Contains(text, "*"):
		b.because(field, "namespaces are selected by their labels, not by a pattern; write a source with namespaces")
		return nil
	}
	return []outrigger.AccessSource{accountOf(text, "")}
}

// istioAccount reads "cart" and "shop/cart".
func (b *obstacles) istioAccount(namespace string) func(field, text string) []outrigger.AccessSource {
	return func(field, text string) []outrigger.AccessSource {
		of, name, found := strings.Cut(text, "/")
		if !found {
			of, name = namespace, text
		}
		if strings.Contains(text, "*") {
			b.because(field, "%q is not the name of a service account", text)
		}
		return []outrigger.AccessSource{accountOf(of, name)}
	}
}

// istioOperation returns a rule for any caller.
func (b *obstacles) istioOperation(field string, op istioOperation) outrigger.AccessRule {
	b.unless(op.Hosts, field+".hosts", "a policy is for the pods that receive a request, whatever host it names")
	const not = "a policy says what requests are, not what they are not; a policy with action: Deny can come first"
	b.unless(op.NotHosts, field+".notHosts", not)
	b.unless(op.NotPorts, field+".notPorts", not)
	b.unless(op.NotMethods, field+".notMethods", not)
	b.unless(op.NotPaths, field+".notPaths", not)
	var rule outrigger.AccessRule
	for i, text := range op.Ports {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			b.because(fmt.Sprintf("%s.ports[%d]", field, i), "%q is not a port", text)
		}
		rule.Ports = append(rule.Ports, int32(port))
	}
	var paths []*gateway.HTTPPathMatch
	for i, text := range op.Paths {
		paths = append(paths, b.pathOf(fmt.Sprintf("%s.paths[%d]", field, i), text))
	}
	var named []*gateway.HTTPMethod
	for i, text := range op.Methods {
		named = append(named, b.methodOf(fmt.Sprintf("%s.methods[%d]", field, i), text))
	}
	if len(op.Paths) == 0 && len(op.Methods) == 0 {
		return rule
	}
	if len(paths) == 0 {
		paths = []*gateway.HTTPPathMatch{nil}
	}
	if len(named) == 0 {
		named = []*gateway.HTTPMethod{nil}
	}
	for _, path := range paths {
		for _, method := range named {
			rule.HTTP = append(rule.HTTP, gateway.HTTPRouteMatch{Path: path, Method: method})
		}
	}
	return rule
}
