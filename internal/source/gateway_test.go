package source_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const gatewayKind = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway"

// TestGateway reads gateways of any class, since classes are other objects.
func TestGateway(t *testing.T) {
	with := func(listeners string) string { return `{gatewayClassName: k, listeners: [` + listeners + `]}` }
	const (
		begin = `{"class":"k","listeners":[`
		http  = `"kinds":["HTTPRoute","GRPCRoute"]`
		same  = `,"same":true`
	)
	check(t, gatewayKind, []row{
		{"a listener", with(`{name: a, port: 80, protocol: HTTP, hostname: "*.Example.com"}`),
			begin + `{"index":0,"name":"a","port":80,"host":"*.example.com","protocol":"http",` + http + same + `}]}`, nil},
		{"any namespace, one kind", with(`{name: a, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}, kinds: [{kind: GRPCRoute}, {kind: GRPCRoute}]}}`),
			begin + `{"index":0,"name":"a","port":80,"protocol":"http","kinds":["GRPCRoute"],"all":true` + same + `}]}`, nil},
		{"a selector", with(`{name: a, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {a: b}}}}}`),
			begin + `{"index":0,"name":"a","port":80,"protocol":"http",` + http + `,"namespaces":"=a=b"}]}`, nil},
		{"a selector that is none selects nothing", with(`{name: a, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {"a b": c}}}}}`),
			begin + `{"index":0,"name":"a","port":80,"protocol":"http",` + http + `}]}`, []string{"Invalid spec.listeners[0].allowedRoutes.namespaces.selector"}},
		{"nobody, also by a word that is not known", with(`{name: a, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: None}}}, {name: b, port: 81, protocol: HTTP, allowedRoutes: {namespaces: {from: Some}}}`),
			begin + `{"index":0,"name":"a","port":80,"protocol":"http",` + http + `},{"index":1,"name":"b","port":81,"protocol":"http",` + http + `}]}`, []string{"Invalid spec.listeners[1].allowedRoutes.namespaces.from"}},
		{"kinds of other protocols", with(`{name: a, port: 80, protocol: HTTP, allowedRoutes: {kinds: [{kind: TCPRoute}, {group: example.com, kind: HTTPRoute}]}}`),
			begin + `{"index":0,"name":"a","port":80,"protocol":"http","kinds":null` + same + `}]}`,
			[]string{"InvalidRouteKinds spec.listeners[0].allowedRoutes.kinds[0]", "InvalidRouteKinds spec.listeners[0].allowedRoutes.kinds[1]"}},
		{"TCP and TLS", with(`{name: a, port: 81, protocol: TCP, hostname: a.example.com}, {name: b, port: 443, protocol: TLS, hostname: b.example.com, tls: {mode: Passthrough}}`),
			begin + `{"index":0,"name":"a","port":81,"protocol":"tcp","kinds":["TCPRoute"]` + same + `},{"index":1,"name":"b","port":443,"host":"b.example.com","protocol":"tcp","byServerName":true,"kinds":["TLSRoute"]` + same + `}]}`, nil},
		{"TLS that ends at the gateway", with(`{name: a, port: 443, protocol: HTTPS, hostname: a.example.com, tls: {certificateRefs: [{name: a}, {name: b, namespace: front}]}}, {name: b, port: 444, protocol: TLS, tls: {mode: Terminate, certificateRefs: [{name: a}]}}`),
			begin + `{"index":0,"name":"a","port":443,"host":"a.example.com","protocol":"http","terminates":true,"certificates":[{"field":"spec.listeners[0].tls.certificateRefs[0]","secret":{"namespace":"shop","name":"a"}},{"field":"spec.listeners[0].tls.certificateRefs[1]","secret":{"namespace":"front","name":"b"}}],` + http + same + `},` +
				`{"index":1,"name":"b","port":444,"protocol":"tcp","byServerName":true,"terminates":true,"certificates":[{"field":"spec.listeners[1].tls.certificateRefs[0]","secret":{"namespace":"shop","name":"a"}}],"kinds":["TLSRoute"]` + same + `}]}`, nil},
		{"certificates that are none", with(`{name: a, port: 443, protocol: HTTPS}, {name: b, port: 444, protocol: HTTPS, tls: {certificateRefs: [{kind: ConfigMap, name: a}, {name: "A B"}]}}`),
			begin + `{"index":0,"name":"a","port":443,"protocol":"http","terminates":true,` + http + same + `},{"index":1,"name":"b","port":444,"protocol":"http","terminates":true,` + http + same + `}]}`,
			[]string{"InvalidCertificateRef spec.listeners[0].tls.certificateRefs", "InvalidCertificateRef spec.listeners[1].tls.certificateRefs[0]", "InvalidCertificateRef spec.listeners[1].tls.certificateRefs[1]"}},
		{"modes that do not fit", with(`{name: a, port: 443, protocol: HTTPS, tls: {mode: Passthrough, certificateRefs: [{name: a}]}}, {name: b, port: 444, protocol: TLS, tls: {mode: Some}}`),
			begin + `{"index":0,"name":"a","port":443,"protocol":"http","terminates":true,"certificates":[{"field":"spec.listeners[0].tls.certificateRefs[0]","secret":{"namespace":"shop","name":"a"}}],` + http + same + `,"unusable":true},{"index":1,"name":"b","port":444,"protocol":"tcp","byServerName":true,"kinds":["TLSRoute"]` + same + `,"unusable":true}]}`,
			[]string{"UnsupportedValue spec.listeners[0].tls.mode", "UnsupportedValue spec.listeners[1].tls.mode"}},
		{"certificates of clients, which nobody would verify", `{gatewayClassName: k, tls: {frontend: {default: {validation: {caCertificateRefs: [{group: "", kind: ConfigMap, name: a}]}}}}, listeners: [{name: a, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: a}]}}]}`,
			begin + `{"index":0,"name":"a","port":443,"protocol":"http","terminates":true,"certificates":[{"field":"spec.listeners[0].tls.certificateRefs[0]","secret":{"namespace":"shop","name":"a"}}],` + http + same + `,"unusable":true}]}`,
			[]string{"UnsupportedValue spec.listeners[0].tls"}},
		{"protocols that are not supported", with(`{name: a, port: 443, protocol: UDP}, {name: b, port: 444, protocol: HTTPS, tls: {certificateRefs: [{name: a}]}}, {name: c, port: 444, protocol: HTTP}`),
			begin + `{"index":0,"name":"a","port":443,"protocol":"http","kinds":null` + same + `,"unusable":true},{"index":1,"name":"b","port":444,"protocol":"http","terminates":true,"certificates":[{"field":"spec.listeners[1].tls.certificateRefs[0]","secret":{"namespace":"shop","name":"a"}}],` + http + same + `},{"index":2,"name":"c","port":444,"protocol":"http",` + http + same + `,"unusable":true}]}`,
			[]string{"UnsupportedProtocol spec.listeners[0].protocol", "ProtocolConflict spec.listeners[2]"}},
		{"ports of the proxy and of nobody", with(`{name: a, port: 15000, protocol: HTTP}, {name: b, port: 15901, protocol: TCP}, {name: c, port: 70000, protocol: HTTP}, {name: d, port: 0, protocol: HTTP}`),
			begin + `{"index":0,"name":"a","port":15000,"protocol":"http",` + http + same + `,"unusable":true},{"index":1,"name":"b","port":15901,"protocol":"tcp","kinds":["TCPRoute"]` + same + `,"unusable":true},{"index":2,"name":"c","port":0,"protocol":"http",` + http + same + `,"unusable":true},{"index":3,"name":"d","port":0,"protocol":"http",` + http + same + `,"unusable":true}]}`,
			[]string{"PortUnavailable spec.listeners[0].port", "PortUnavailable spec.listeners[1].port", "Invalid spec.listeners[2].port", "Invalid spec.listeners[3].port"}},
		{"listeners in conflict", with(`{name: a, port: 80, protocol: HTTP}, {name: b, port: 80, protocol: HTTP, hostname: "A"}, {name: c, port: 80, protocol: HTTP, hostname: a}, {name: d, port: 80, protocol: TCP}, {name: e, port: 80, protocol: HTTP}`),
			begin + `{"index":0,"name":"a","port":80,"protocol":"http",` + http + same + `},{"index":1,"name":"b","port":80,"host":"a","protocol":"http",` + http + same + `},{"index":2,"name":"c","port":80,"host":"a","protocol":"http",` + http + same + `,"unusable":true},{"index":3,"name":"d","port":80,"protocol":"tcp","kinds":["TCPRoute"]` + same + `,"unusable":true},{"index":4,"name":"e","port":80,"protocol":"http",` + http + same + `,"unusable":true}]}`,
			[]string{"HostnameConflict spec.listeners[2]", "ProtocolConflict spec.listeners[3]", "HostnameConflict spec.listeners[4]"}},
		{"two modes of TLS at a port", with(`{name: a, port: 443, protocol: TLS, hostname: a.example.com, tls: {mode: Passthrough}}, {name: b, port: 443, protocol: TLS, hostname: b.example.com, tls: {certificateRefs: [{name: a}]}}, {name: c, port: 444, protocol: TLS, hostname: c.example.com, tls: {mode: Passthrough}}`),
			begin + `{"index":0,"name":"a","port":443,"host":"a.example.com","protocol":"tcp","byServerName":true,"kinds":null` + same + `,"unusable":true},` +
				`{"index":1,"name":"b","port":443,"host":"b.example.com","protocol":"tcp","byServerName":true,"terminates":true,"certificates":[{"field":"spec.listeners[1].tls.certificateRefs[0]","secret":{"namespace":"shop","name":"a"}}],"kinds":null` + same + `,"unusable":true},` +
				`{"index":2,"name":"c","port":444,"host":"c.example.com","protocol":"tcp","byServerName":true,"kinds":["TLSRoute"]` + same + `}]}`,
			[]string{"ProtocolConflict spec.listeners[0]", "ProtocolConflict spec.listeners[1]"}},
		{"what is not supported", `{gatewayClassName: k, listeners: [{name: a, port: 80, protocol: HTTP}], addresses: [{value: 192.0.2.1}], infrastructure: {parametersRef: {group: "", kind: ConfigMap, name: a}}}`,
			begin + `{"index":0,"name":"a","port":80,"protocol":"http",` + http + same + `}]}`, []string{"UnsupportedAddress spec.addresses", "InvalidParameters spec.infrastructure.parametersRef"}},
		{"any address", `{gatewayClassName: k, listeners: [{name: a, port: 80, protocol: HTTP}], addresses: [{type: IPAddress}]}`,
			begin + `{"index":0,"name":"a","port":80,"protocol":"http",` + http + same + `}]}`, nil},
		{"any address of a kind that there may not be", `{gatewayClassName: k, listeners: [{name: a, port: 80, protocol: HTTP}], addresses: [{type: Hostname}]}`,
			begin + `{"index":0,"name":"a","port":80,"protocol":"http",` + http + same + `}]}`, []string{"UnsupportedAddress spec.addresses"}},
		{"a host that is none", with(`{name: a, port: 80, protocol: HTTP, hostname: "a b"}`),
			begin + `{"index":0,"name":"a","port":80,"host":"a b","protocol":"http",` + http + same + `,"unusable":true}]}`, []string{"Invalid spec.listeners[0].hostname"}},
	})
}

// TestGatewayName refuses a name that no label of a pod can have.
func TestGatewayName(t *testing.T) {
	for length, want := range map[int][]string{63: nil, 64: {"Invalid metadata.name"}} {
		f := factOf(t, gatewayKind+"\nmetadata: {name: "+strings.Repeat("a", length)+", namespace: shop}\nspec: {gatewayClassName: k, listeners: [{name: a, port: 80, protocol: HTTP}]}")
		if got := brief(f.Problems); !slices.Equal(got, want) {
			t.Errorf("a name of %d letters has the Problems %q, want %q", length, got, want)
		}
	}
}

// TestGatewayClass reads the classes of this controller only.
func TestGatewayClass(t *testing.T) {
	const class = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass"
	check(t, class, []row{
		{"another controller's", `{controllerName: example.com/a}`, `nothing`, nil},
		{"without the class of a proxy", `{controllerName: outrigger.openservicemesh.io/controller}`, `nothing`, []string{"InvalidParameters metadata.name"}},
	})
}

// TestAssumedCertificates holds that a reader without the right to read Secrets takes those of Gateways as usable.
func TestAssumedCertificates(t *testing.T) {
	a, b := mesh.Name{Namespace: "shop", Name: "a"}, mesh.Name{Namespace: "bank", Name: "b"}
	gateway := func(name string, refs ...mesh.Name) fact.Fact {
		g := &fact.Gateway{Listeners: []fact.GatewayListener{{}}}
		for _, ref := range refs {
			g.Listeners[0].Certificates = append(g.Listeners[0].Certificates, fact.CertificateRef{Secret: ref})
		}
		return fact.Fact{Object: mesh.ObjectRef{Kind: "Gateway", Name: name}, Content: mesh.Seal(g)}
	}
	var got []mesh.ObjectRef
	for _, f := range source.AssumedCertificates([]fact.Fact{gateway("one", a, b), gateway("two", a), {Object: mesh.ObjectRef{Kind: "Gateway", Name: "gone"}}}) {
		got = append(got, f.Object)
		if c := f.Content.(*fact.ServerCertificate); c.Flaw != nil || c.Chain.IsZero() {
			t.Errorf("%s is assumed to be %+v", f.Object, c)
		}
	}
	if want := []mesh.ObjectRef{source.SecretRef(a), source.SecretRef(b)}; !slices.Equal(got, want) {
		t.Errorf("assumed are %v, want %v", got, want)
	}
}
