package source

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// GatewayClassPrefix begins the names of the GatewayClasses of the mesh. The rest is the name of the
// driver.
const GatewayClassPrefix = "outrigger-"

const kindGateway = "Gateway"

// maxGatewayName is the length of the values of labels.
const maxGatewayName = 63

// gatewayClass returns nil for a class of another controller.
func gatewayClass(obj *gateway.GatewayClass, n *notes) mesh.Digester {
	if obj.Spec.ControllerName != ControllerName {
		return nil
	}
	class, ok := strings.CutPrefix(obj.Name, GatewayClassPrefix)
	if !ok || class == "" {
		n.add(fact.ReasonInvalidParameters, "metadata.name", "the name says no class of proxy, so the gateways of this class get no configuration; call it %sCLASS, such as %senvoy", GatewayClassPrefix, GatewayClassPrefix)
		return nil
	}
	if obj.Spec.ParametersRef != nil {
		n.add(fact.ReasonInvalidParameters, "spec.parametersRef", "parameters are not supported, so the gateways of this class get no configuration; remove the reference")
		return nil
	}
	return mesh.Seal(&fact.GatewayClass{Name: obj.Name, Class: class})
}

func gatewayOf(obj *gateway.Gateway, n *notes) mesh.Digester {
	g := &fact.Gateway{Name: nameOf(&obj.ObjectMeta), Age: ageOf(&obj.ObjectMeta), Class: string(obj.Spec.GatewayClassName)}
	for i := range obj.Spec.Listeners {
		l := n.listener(i, g.Namespace, &obj.Spec.Listeners[i])
		if l.Terminates && !l.Unusable && obj.Spec.TLS != nil && obj.Spec.TLS.Frontend != nil {
			// Without it, clients would get in whom this is to keep out.
			l.Unusable = true
			n.add(fact.ReasonUnsupportedValue, index("spec.listeners", i)+".tls", "certificates of clients are not verified yet, so the listener takes no connections; remove spec.tls.frontend, or use another gateway")
		}
		g.Listeners = append(g.Listeners, l)
	}
	n.checkConflicts(g.Listeners)
	if len(obj.Name) > maxGatewayName {
		n.add(ReasonInvalid, "metadata.name", "the name is longer than %d letters, so no pod can have it in its label %s; make a Gateway with a shorter name", maxGatewayName, fact.GatewayLabel)
	}
	// An IPAddress without a value asks for any.
	if slices.ContainsFunc(obj.Spec.Addresses, func(a gateway.GatewaySpecAddress) bool {
		return a.Value != "" || deref(a.Type, gateway.IPAddressType) != gateway.IPAddressType
	}) {
		n.add(fact.ReasonUnsupportedAddress, "spec.addresses", "an address cannot be asked for; remove it, and use an annotation of spec.infrastructure that the load balancer understands")
	}
	if of := obj.Spec.Infrastructure; of != nil && of.ParametersRef != nil {
		n.add(fact.ReasonInvalidParameters, "spec.infrastructure.parametersRef", "parameters are not supported; remove the reference")
	}
	if obj.Spec.TLS != nil && obj.Spec.TLS.Backend != nil {
		n.add(ReasonNoEffect, "spec.tls.backend", "backends are called by the mesh's own TLS, so this has no effect; remove it")
	}
	return mesh.Seal(g)
}

// listener reads a listener. One that cannot be used gets a Problem.
func (n *notes) listener(i int, namespace string, from *gateway.Listener) fact.GatewayListener {
	path := index("spec.listeners", i)
	l := fact.GatewayListener{Index: i, Name: string(from.Name), Host: strings.ToLower(string(deref(from.Hostname, ""))), Protocol: mesh.HTTP}
	unusable := func(reason, at, format string, args ...any) {
		l.Unusable = true
		n.add(reason, at, format+"; the listener takes no connections until then", args...)
	}
	if from.Port < 1 || from.Port > maxPort {
		unusable(ReasonInvalid, path+".port", "%d is not a port; use 1 to %d", from.Port, maxPort)
	} else {
		l.Port = uint16(from.Port)
	}
	if isOwnPort(l.Port) {
		unusable(fact.ReasonPortUnavailable, path+".port", "the gateway's pods use port %d themselves; choose another one", l.Port)
	}
	kinds := []fact.RouteKind{fact.HTTPRoute, fact.GRPCRoute}
	switch from.Protocol {
	case gateway.HTTPProtocolType:
	case gateway.TCPProtocolType:
		l.Protocol, l.Host, kinds = mesh.TCP, "", []fact.RouteKind{fact.TCPRoute}
	case gateway.HTTPSProtocolType:
		l.Terminates = true
		if modeOf(from) != gateway.TLSModeTerminate {
			unusable(fact.ReasonUnsupportedValue, path+".tls.mode", "requests within TLS that is passed through cannot be routed; use the mode Terminate, or the protocol TLS")
		}
	case gateway.TLSProtocolType:
		l.Protocol, l.ByServerName, kinds = mesh.TCP, true, []fact.RouteKind{fact.TLSRoute}
		switch modeOf(from) {
		case gateway.TLSModePassthrough:
		case gateway.TLSModeTerminate:
			l.Terminates = true
		default:
			unusable(fact.ReasonUnsupportedValue, path+".tls.mode", "%q is not supported; use Terminate or Passthrough", string(modeOf(from)))
		}
	default:
		kinds = nil
		unusable(fact.ReasonUnsupportedProtocol, path+".protocol", "%q is not supported; use HTTP, HTTPS, TLS or TCP", string(from.Protocol))
	}
	if l.Terminates {
		n.certificates(path+".tls.certificateRefs", namespace, from, &l)
	}
	if l.Host != "" && !isDNSName(strings.TrimPrefix(l.Host, "*.")) {
		unusable(ReasonInvalid, path+".hostname", "%q is not a host; write a DNS name, such as api.example.com or *.example.com", l.Host)
	}
	n.allowedRoutes(path+".allowedRoutes", from, kinds, &l)
	return l
}

func modeOf(l *gateway.Listener) gateway.TLSModeType {
	if l.TLS == nil {
		return gateway.TLSModeTerminate
	}
	return deref(l.TLS.Mode, gateway.TLSModeTerminate)
}

// certificates sets the Secrets that a listener in the namespace refers to. Other references get a Problem.
func (n *notes) certificates(path, namespace string, from *gateway.Listener, l *fact.GatewayListener) {
	if from.TLS == nil || len(from.TLS.CertificateRefs) == 0 {
		n.add(fact.ReasonInvalidCertificateRef, path, "there is no certificate to present, so the listener takes no connections; name a Secret of the type kubernetes.io/tls")
		return
	}
	for i, ref := range from.TLS.CertificateRefs {
		field := index(path, i)
		secret := mesh.Name{Namespace: string(deref(ref.Namespace, gateway.Namespace(namespace))), Name: string(ref.Name)}
		if deref(ref.Group, "") != "" || deref(ref.Kind, kindSecret) != kindSecret {
			n.add(fact.ReasonInvalidCertificateRef, field, "%s is not supported; name a Secret of the type kubernetes.io/tls", string(deref(ref.Kind, kindSecret)))
			continue
		}
		if !isObjectLabel(secret.Namespace) || !isObjectName(secret.Name) {
			n.add(fact.ReasonInvalidCertificateRef, field, "%q is not the name of a Secret; correct it", secret.String())
			continue
		}
		l.Certificates = append(l.Certificates, fact.CertificateRef{Field: field, Secret: secret})
	}
}

// isOwnPort reports whether the pods of gateways listen at the port for other reasons.
func isOwnPort(port uint16) bool {
	return port >= driver.AdminPort && port <= driver.MetricsPort || port == driver.AgentPort
}

// allowedRoutes sets which routes may attach. What is not understood lets no route attach.
func (n *notes) allowedRoutes(path string, from *gateway.Listener, all []fact.RouteKind, l *fact.GatewayListener) {
	allowed := from.AllowedRoutes
	l.Same, l.Kinds = true, all
	if allowed == nil {
		return
	}
	if len(allowed.Kinds) > 0 {
		l.Kinds = nil
	}
	for i, kind := range allowed.Kinds {
		name := fact.RouteKind(kind.Kind)
		if deref(kind.Group, gateway.GroupName) != gateway.GroupName || !slices.Contains(all, name) {
			n.add(fact.ReasonInvalidRouteKinds, index(path+".kinds", i), "%s is not a kind of route for a listener of the protocol %s, and is ignored; remove it", string(kind.Kind), string(from.Protocol))
		} else if !slices.Contains(l.Kinds, name) {
			l.Kinds = append(l.Kinds, name)
		}
	}
	if allowed.Namespaces == nil {
		return
	}
	switch from := deref(allowed.Namespaces.From, gateway.NamespacesFromSame); from {
	case gateway.NamespacesFromSame:
	case gateway.NamespacesFromAll:
		l.All = true
	case gateway.NamespacesFromSelector:
		l.Same = false
		selector, err := metav1.LabelSelectorAsSelector(allowed.Namespaces.Selector)
		if err != nil {
			n.add(ReasonInvalid, path+".namespaces.selector", "%q is not a selector of labels, so no route may attach; correct it", err.Error())
			selector = labels.Nothing()
		}
		l.Namespaces = fact.NewSelector(selector)
	case gateway.NamespacesFromNone:
		l.Same = false
	default:
		l.Same = false
		n.add(ReasonInvalid, path+".namespaces.from", "%q is not All, Same, Selector or None, so no route may attach; correct it", string(from))
	}
}

// checkConflicts makes all but the first of the listeners unusable that have one port and host, and
// those whose protocol differs from that of an earlier listener of the port.
func (n *notes) checkConflicts(listeners []fact.GatewayListener) {
	n.checkModes(listeners)
	for i := range listeners {
		l := &listeners[i]
		if l.Unusable {
			continue
		}
		for _, former := range listeners[:i] {
			if former.Unusable || former.Port != l.Port {
				continue
			}
			if former.Protocol != l.Protocol || former.ByServerName != l.ByServerName || former.Terminates != l.Terminates {
				l.Unusable = true
				n.add(fact.ReasonProtocolConflict, index("spec.listeners", i), "the listener %s has another protocol at port %d; give each its own port", former.Name, l.Port)
				break
			}
			if former.Host == l.Host {
				l.Unusable = true
				host := "all hosts"
				if l.Host != "" {
					host = fmt.Sprintf("the host %q", l.Host)
				}
				n.add(fact.ReasonHostnameConflict, index("spec.listeners", i), "the listener %s also takes %s at port %d; give each its own hostname or port", former.Name, host, l.Port)
				break
			}
		}
	}
}

// checkModes refuses the listeners of a port for TLS of which some terminate it and some do not: all of them, and
// with no kinds of routes, as the conformance suite demands.
func (n *notes) checkModes(listeners []fact.GatewayListener) {
	byName := func(l *fact.GatewayListener) bool { return l.ByServerName && !l.Unusable }
	var mixed []int
	for i := range listeners {
		l := &listeners[i]
		if byName(l) && slices.ContainsFunc(listeners, func(o fact.GatewayListener) bool {
			return byName(&o) && o.Port == l.Port && o.Terminates != l.Terminates
		}) {
			mixed = append(mixed, i)
		}
	}
	for _, i := range mixed {
		listeners[i].Unusable, listeners[i].Kinds = true, nil
		n.add(fact.ReasonProtocolConflict, index("spec.listeners", i), "other listeners at port %d have another mode of TLS; give each mode its own port", listeners[i].Port)
	}
}

// gatewayParents returns the parents that are gateways and have no unknown fields.
func (n *notes) gatewayParents(namespace string, refs []gateway.ParentReference, later *laterFields) []fact.GatewayParent {
	var parents []fact.GatewayParent
	for i := range refs {
		if !isGatewayParent(refs[i]) {
			continue
		}
		name := mesh.Name{Namespace: string(deref(refs[i].Namespace, gateway.Namespace(namespace))), Name: string(refs[i].Name)}
		if fields := later.below(index("spec.parentRefs", i)); len(fields) > 0 {
			n.add(fact.ReasonNoMatchingParent, index("spec.parentRefs", i), "%q is not known and may restrict the route, which has no effect there; correct its name, or remove it", fields[0])
			continue
		}
		port := deref(refs[i].Port, 0)
		if !isObjectLabel(name.Namespace) || !isObjectName(name.Name) || port < 0 || port > maxPort {
			continue // No Gateway has such a name.
		}
		parents = append(parents, fact.GatewayParent{Index: i, Gateway: name, Listener: string(deref(refs[i].SectionName, "")), Port: uint16(port)})
	}
	return parents
}

func isGatewayParent(ref gateway.ParentReference) bool {
	return deref(ref.Group, gateway.GroupName) == gateway.GroupName && deref(ref.Kind, kindGateway) == kindGateway
}
