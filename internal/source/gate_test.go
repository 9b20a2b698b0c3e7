package source_test

import "testing"

func TestEgress(t *testing.T) {
	const sources = `sources: [` + cart + `]`
	const from = `{"sources":[{"namespace":"shop","name":"cart"}],`
	check(t, egress, []row{
		{"hosts, ranges and ports", `{` + sources + `, hosts: [B.example.com, "*.a.example.com", b.example.com], ipAddresses: [10.0.0.5/8, "2001:db8::/32", 10.0.0.0/8], ports: [{number: 443, protocol: HTTPS}, {number: 80, protocol: http}, {number: 25, protocol: tcp-server-first}]}`,
			from + `"hosts":["b.example.com","*.a.example.com"],"ranges":["10.0.0.0/8","2001:db8::/32"],"ports":[{"number":25,"protocol":"tcp"},{"number":80,"protocol":"http"},{"number":443,"protocol":"tls"}]}`, nil},
		{"TLS without hosts is TCP", `{` + sources + `, ports: [{number: 443, protocol: https}]}`, from + `"ports":[{"number":443,"protocol":"tcp"}]}`, nil},
		{"matches", `{` + sources + `, hosts: [a.b], ports: [{number: 80, protocol: http}], matches: [{apiGroup: specs.smi-spec.io/v1alpha4, kind: HTTPRouteGroup, name: g}, {apiGroup: policy.openservicemesh.io/v1alpha1, kind: UpstreamTrafficSetting, name: u}]}`,
			from + `"hosts":["a.b"],"ports":[{"number":80,"protocol":"http"}],"groups":["g"],"settings":["u"]}`, nil},
		{"settings only match everything", `{` + sources + `, hosts: [a.b], ports: [{number: 80, protocol: http}], matches: [{kind: UpstreamTrafficSetting, name: u}]}`,
			from + `"hosts":["a.b"],"ports":[{"number":80,"protocol":"http"}],"settings":["u"]}`, nil},

		{"sources that are nobody", `{sources: [{kind: Service, name: a, namespace: shop}, ` + cart + `], ports: [{number: 1, protocol: tcp}]}`, from + `"ports":[{"number":1,"protocol":"tcp"}]}`, []string{"UnknownKind spec.sources[0].kind"}},
		{"a source with a certificate", `{sources: [{kind: ServiceAccount, name: a, namespace: shop, mtls: {issuer: osm}}], ports: [{number: 1, protocol: tcp}]}`, `nothing`, []string{"NotSupported spec.sources[0].mtls"}},
		{"no sources", `{sources: [], ports: [{number: 1, protocol: tcp}]}`, `nothing`, []string{"Missing spec.sources"}},
		{"no ports", `{` + sources + `, hosts: [a.b], ports: []}`, `nothing`, []string{"Missing spec.ports"}},
		{"hosts that are none leave the others", `{` + sources + `, hosts: ["*", a.b, "a.b:80", "", "x.*.b", http://a.b], ports: [{number: 80, protocol: http}]}`, from + `"hosts":["a.b"],"ports":[{"number":80,"protocol":"http"}]}`,
			[]string{"Invalid spec.hosts[0]", "Invalid spec.hosts[2]", "Invalid spec.hosts[3]", "Invalid spec.hosts[4]", "Invalid spec.hosts[5]"}},
		{"only hosts that are none close what is matched by host", `{` + sources + `, hosts: ["*"], ports: [{number: 80, protocol: http}, {number: 443, protocol: https}, {number: 25, protocol: tcp}]}`,
			from + `"ports":[{"number":25,"protocol":"tcp"}]}`, []string{"Missing spec.hosts", "Invalid spec.hosts[0]"}},
		{"ranges that are none leave the others", `{` + sources + `, ipAddresses: [10.0.0.1, "::ffff:10.0.0.0/104", 10.0.0.0/8], ports: [{number: 25, protocol: tcp}]}`,
			from + `"ranges":["10.0.0.0/8"],"ports":[{"number":25,"protocol":"tcp"}]}`, []string{"Invalid spec.ipAddresses[0]", "Invalid spec.ipAddresses[1]"}},
		{"only ranges that are none are not any address", `{` + sources + `, hosts: [a.b], ipAddresses: [10.0.0.1], ports: [{number: 25, protocol: tcp}, {number: 80, protocol: http}]}`, `nothing`,
			[]string{"Missing spec.ipAddresses", "Invalid spec.ipAddresses[0]"}},
		{"ports that are none leave the others", `{` + sources + `, ports: [{number: 0, protocol: tcp}, {number: 53, protocol: udp}, {number: 25, protocol: tcp}]}`,
			from + `"ports":[{"number":25,"protocol":"tcp"}]}`, []string{"Invalid spec.ports[0].number", "UnknownProtocol spec.ports[1].protocol"}},
		{"a port with two protocols", `{` + sources + `, hosts: [a.b], ports: [{number: 80, protocol: http}, {number: 80, protocol: tcp}, {number: 80, protocol: HTTP}]}`,
			from + `"hosts":["a.b"],"ports":[{"number":80,"protocol":"http"}]}`, []string{"Conflict spec.ports[1]"}},
		{"HTTP without hosts and ranges", `{` + sources + `, ports: [{number: 80, protocol: http}]}`, `nothing`, []string{"Missing spec.hosts"}},
		{"matches of other kinds may have been meant to limit it", `{` + sources + `, hosts: [a.b], ports: [{number: 80, protocol: http}, {number: 443, protocol: https}], matches: [{kind: TCPRoute, name: t}]}`,
			`nothing`, []string{"Missing spec.matches", "UnknownKind spec.matches[0].kind"}},
		{"beside others too", `{` + sources + `, hosts: [a.b], ports: [{number: 80, protocol: http}], matches: [{kind: HTTPRouteGroup, name: g}, {kind: UpstreamTrafficSettings, name: t}]}`,
			`nothing`, []string{"Missing spec.matches", "UnknownKind spec.matches[1].kind"}},
		{"two settings", `{` + sources + `, ports: [{number: 1, protocol: tcp}], matches: [{kind: UpstreamTrafficSetting, name: u}, {kind: UpstreamTrafficSetting, name: v}]}`,
			from + `"ports":[{"number":1,"protocol":"tcp"}],"settings":["u"]}`, []string{"Duplicate spec.matches"}},
	})
}

func TestIngress(t *testing.T) {
	const backends = `backends: [{name: a, port: {number: 80, protocol: http}}]`
	const secure = `backends: [{name: a, port: {number: 80, protocol: https}}]`
	const opened = `{"backends":[{"service":"a","port":80}],`
	const openedSecure = `{"backends":[{"service":"a","port":80,"tls":true}],`
	const gateway = `sources: [{kind: Service, name: gw, namespace: edge}]`
	const fromGateway = `"sources":[{"service":{"namespace":"edge","name":"gw"}}]}`
	check(t, ingressBackend, []row{
		{"by service", `{` + backends + `, ` + gateway + `}`, opened + fromGateway, nil},
		{"by range", `{` + backends + `, sources: [{kind: IPRange, name: 10.0.0.1/8}]}`, opened + `"sources":[{"range":"10.0.0.0/8"}]}`, nil},
		{"by principal", `{` + secure + `, sources: [{kind: AuthenticatedPrincipal, name: gw.v2.edge.cluster.local}, {kind: AuthenticatedPrincipal, name: "*"}]}`,
			openedSecure + `"sources":[{"principal":"gw.v2.edge.cluster.local"},{"principal":"*"}]}`, nil},
		{"TLS", `{backends: [{name: a, port: {number: 80, protocol: HTTPS}, tls: {skipClientCertValidation: true, sniHosts: [A.example.com, "*.b.example.com"]}}], ` + gateway + `}`,
			`{"backends":[{"service":"a","port":80,"tls":true,"sniHosts":["a.example.com","*.b.example.com"],"skipClientCert":true}],` + fromGateway, nil},
		{"TLS fields of plaintext", `{backends: [{name: a, port: {number: 80, protocol: http}, tls: {skipClientCertValidation: false, sniHosts: [a.b]}}], ` + gateway + `}`, opened + fromGateway, nil},
		{"matches", `{` + backends + `, ` + gateway + `, matches: [{kind: HTTPRouteGroup, name: g}]}`, opened + `"sources":[{"service":{"namespace":"edge","name":"gw"}}],"groups":["g"]}`, nil},

		{"no sources are not all", `{` + backends + `, sources: []}`, `nothing`, []string{"Missing spec.sources"}},
		{"a source of another kind lets nobody in", `{` + backends + `, sources: [{kind: Namespace, name: edge}, {kind: Service, name: gw, namespace: edge}]}`, `nothing`, []string{"UnknownKind spec.sources[0].kind"}},
		{"a bad address leaves the others", `{` + backends + `, sources: [{kind: IPRange, name: 10.0.0.1}, {kind: Service, name: gw}, {kind: Service, name: gw, namespace: edge}]}`, opened + fromGateway,
			[]string{"Invalid spec.sources[0].name", "Invalid spec.sources[1].namespace"}},
		{"without its addresses a principal is let in from nowhere", `{` + secure + `, sources: [{kind: IPRange, name: 10.0.0.1}, {kind: AuthenticatedPrincipal, name: "*"}]}`, `nothing`,
			[]string{"Missing spec.sources", "Invalid spec.sources[0].name"}},
		{"without its principals an address is not enough", `{` + secure + `, sources: [{kind: IPRange, name: 10.0.0.0/8}, {kind: AuthenticatedPrincipal, name: gw}]}`, `nothing`,
			[]string{"Missing spec.sources", "Invalid spec.sources[1].name"}},
		{"principals show nothing in plaintext", `{` + backends + `, sources: [{kind: AuthenticatedPrincipal, name: "*"}]}`, `nothing`, []string{"Invalid spec.backends[0].port.protocol"}},
		{"and an address does not stand for one of the principals", `{backends: [{name: a, port: {number: 80, protocol: https}}, {name: b, port: {number: 81, protocol: http}}], sources: [{kind: IPRange, name: 10.0.0.0/8}, {kind: AuthenticatedPrincipal, name: "*"}]}`,
			openedSecure + `"sources":[{"range":"10.0.0.0/8"},{"principal":"*"}]}`, []string{"Invalid spec.backends[1].port.protocol"}},
		{"a certificate of nobody in particular lets nobody in", `{backends: [{name: a, port: {number: 80, protocol: https}}, {name: b, port: {number: 81, protocol: https}, tls: {skipClientCertValidation: true}}], ` + gateway + `}`,
			`{"backends":[{"service":"b","port":81,"tls":true,"skipClientCert":true}],` + fromGateway, []string{"Missing spec.backends[0].tls"}},
		{"no backends", `{backends: [], ` + gateway + `}`, `nothing`, []string{"Missing spec.backends"}},
		{"backends that are none leave the others", `{backends: [{name: "", port: {number: 1, protocol: http}}, {name: b, port: {number: 0, protocol: http}}, {name: b, port: {number: 1, protocol: tcp}}, {name: a, port: {number: 80, protocol: http}}, {name: a, port: {number: 80, protocol: https}, tls: {skipClientCertValidation: true}}], ` + gateway + `}`,
			opened + fromGateway, []string{"Invalid spec.backends[0].name", "Invalid spec.backends[1].port.number", "UnknownProtocol spec.backends[2].port.protocol", "Duplicate spec.backends[4]"}},
		{"only server names that are none are not any", `{backends: [{name: a, port: {number: 80, protocol: https}, tls: {sniHosts: ["*"]}}], ` + gateway + `}`, `nothing`,
			[]string{"Missing spec.backends[0].tls.sniHosts", "Invalid spec.backends[0].tls.sniHosts[0]"}},
		{"only matches of other kinds are not all requests", `{` + backends + `, ` + gateway + `, matches: [{kind: UpstreamTrafficSetting, name: u}]}`, `nothing`,
			[]string{"Missing spec.matches", "UnknownKind spec.matches[0].kind"}},
	})
}
