package source_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
)

const podHead = "apiVersion: v1\nkind: Pod"

func TestWorkload(t *testing.T) {
	for _, tt := range []struct {
		row
		meta, status string
	}{
		{row: row{"plain", `{serviceAccountName: cart}`, `{"uid":"","serviceAccount":"cart"}`, nil}},
		{row: row{"no service account is the default one", `{}`, `{"uid":"","serviceAccount":"default"}`, nil}},
		{row: row{"the older name of the service account", `{serviceAccount: cart}`, `{"uid":"","serviceAccount":"cart"}`, nil}},
		{row: row{"a service account that cannot be", `{serviceAccountName: a/sa/b}`, `nothing`, []string{"Invalid spec.serviceAccountName"}}},
		{
			row:  row{"identity, class, zone and mode", `{}`, `{"uid":"u1","serviceAccount":"default","labels":{"topology.kubernetes.io/zone":"z1"},"class":"pipy","zone":"z1","inboundTLS":"Permissive"}`, nil},
			meta: `, uid: u1, labels: {topology.kubernetes.io/zone: z1}, annotations: {class: pipy, openservicemesh.io/inbound-tls-mode: Permissive}`,
		},
		{
			row:  row{"ports with the PROXY protocol", `{}`, `{"uid":"","serviceAccount":"default","proxyProtocol":[80,3306]}`, []string{"Invalid metadata.annotations[openservicemesh.io/proxy-protocol-port-list]", "Invalid metadata.annotations[openservicemesh.io/proxy-protocol-port-list]", "Invalid metadata.annotations[openservicemesh.io/proxy-protocol-port-list]"}},
			meta: `, annotations: {openservicemesh.io/proxy-protocol-port-list: "3306, 80,3306,0,80-90,70000"}`,
		},
		{
			row:  row{"a mode that is none is the strict one", `{}`, `{"uid":"","serviceAccount":"default","inboundTLS":"Strict"}`, []string{"Invalid metadata.annotations[openservicemesh.io/inbound-tls-mode]"}},
			meta: `, annotations: {openservicemesh.io/inbound-tls-mode: permissive}`,
		},
		{
			row:  row{"access logs", `{}`, `{"uid":"","serviceAccount":"default","accessLog":{"enabled":true,"sampled":100000}}`, nil},
			meta: `, annotations: {openservicemesh.io/access-log: "0.1"}`,
		},
		{
			row:  row{"services that it may know", `{}`, `{"uid":"","serviceAccount":"default","outboundServices":[{"namespace":"bank","name":"*"},{"namespace":"shop","name":"cart"}]}`, nil},
			meta: `, annotations: {openservicemesh.io/outbound-services: "cart, bank/*, shop/cart"}`,
		},
		{
			row:  row{"all services", `{}`, `{"uid":"","serviceAccount":"default","outboundServices":[{"namespace":"*","name":"*"}]}`, nil},
			meta: `, annotations: {openservicemesh.io/outbound-services: "*"}`,
		},
		{
			row:  row{"a list that is none is that of the namespace", `{}`, `{"uid":"","serviceAccount":"default"}`, []string{"Invalid metadata.annotations[openservicemesh.io/outbound-services]"}},
			meta: `, annotations: {openservicemesh.io/outbound-services: "cart, */cart"}`,
		},
		{
			row:  row{"a level that is none is that of the namespace", `{}`, `{"uid":"","serviceAccount":"default"}`, []string{"Invalid metadata.annotations[openservicemesh.io/access-log]"}},
			meta: `, annotations: {openservicemesh.io/access-log: "false"}`,
		},
		{
			row:  row{"of a Deployment", `{}`, `{"uid":"","serviceAccount":"default","labels":{"pod-template-hash":"abc"},"owner":{"kind":"deployment","name":"web"}}`, nil},
			meta: `, labels: {pod-template-hash: abc}, ownerReferences: [{kind: Backup, name: nightly}, {kind: ReplicaSet, name: web-abc, controller: true}]`,
		},
		{
			row:  row{"of a ReplicaSet without a Deployment", `{}`, `{"uid":"","serviceAccount":"default","owner":{"kind":"replicaset","name":"web-abc"}}`, nil},
			meta: `, ownerReferences: [{kind: ReplicaSet, name: web-abc, controller: true}]`,
		},
		{
			row:  row{"of an object that does not control it", `{}`, `{"uid":"","serviceAccount":"default"}`, nil},
			meta: `, ownerReferences: [{kind: Backup, name: nightly}]`,
		},
		{
			row:    row{"addresses of both families", `{}`, `{"uid":"","serviceAccount":"default","addresses":["10.0.0.1","fd00::1"]}`, nil},
			status: `{podIP: "fd00::1", podIPs: [{ip: "fd00::1"}, {ip: "::ffff:10.0.0.1"}, {ip: bad}]}`,
		},
		{
			row:    row{"the node's network", `{hostNetwork: true}`, `{"uid":"","serviceAccount":"default"}`, nil},
			status: `{podIP: 10.0.0.1}`,
		},
		{row: row{"ended well", `{}`, `{"uid":"","serviceAccount":"default","ended":true}`, nil}, status: `{phase: Succeeded}`},
		{row: row{"ended badly", `{}`, `{"uid":"","serviceAccount":"default","ended":true}`, nil}, status: `{phase: Failed}`},
		{
			row:    row{"ready, on a node that does not report", `{}`, `{"uid":"","serviceAccount":"default","ready":true}`, nil},
			status: `{conditions: [{type: Ready, status: "False"}, {type: ContainersReady, status: "True"}]}`,
		},
		{
			row:    row{"with containers that are not ready", `{}`, `{"uid":"","serviceAccount":"default"}`, nil},
			status: `{conditions: [{type: Ready, status: "False"}, {type: ContainersReady, status: "False"}]}`,
		},
		{
			row:    row{"with a readiness gate that does not hold", `{readinessGates: [{conditionType: a}, {conditionType: b}]}`, `{"uid":"","serviceAccount":"default"}`, nil},
			status: `{conditions: [{type: a, status: "True"}, {type: b, status: "False"}, {type: ContainersReady, status: "True"}]}`,
		},
		{
			row:    row{"with a readiness gate that holds", `{readinessGates: [{conditionType: a}]}`, `{"uid":"","serviceAccount":"default","ready":true}`, nil},
			status: `{conditions: [{type: a, status: "True"}, {type: ContainersReady, status: "True"}]}`,
		},
		{row: row{"not ended", `{}`, `{"uid":"","serviceAccount":"default"}`, nil}, status: `{phase: Unknown}`},
		{row: row{"ports", `
  containers:
  - {name: a, ports: [{name: web, containerPort: 8080}, {containerPort: 53, protocol: UDP}, {containerPort: 81, protocol: TCP}]}
  - {name: b, ports: [{name: web, containerPort: 80}, {containerPort: 81}]}
  - {name: outrigger-proxy, ports: [{name: metrics, containerPort: 15010}]}
  initContainers:
  - {name: once, ports: [{name: once, containerPort: 82}]}
  - {name: beside, restartPolicy: Always, ports: [{name: beside, containerPort: 83}]}
  - {name: outrigger-init, restartPolicy: Always, ports: [{containerPort: 84}]}`,
			`{"uid":"","serviceAccount":"default","ports":[{"number":80},{"number":81},{"name":"beside","number":83},{"name":"web","number":8080}]}`, nil}},
		{row: row{"ports that are none", `
  containers: [{name: a, ports: [{containerPort: 0}, {containerPort: 65536}, {containerPort: 65535}]}]
  initContainers: [{name: b, ports: []}, {name: c, restartPolicy: Always, ports: [{containerPort: -1}]}]`,
			`{"uid":"","serviceAccount":"default","ports":[{"number":65535}]}`,
			[]string{"Invalid spec.containers[0].ports[0].containerPort", "Invalid spec.containers[0].ports[1].containerPort", "Invalid spec.initContainers[1].ports[0].containerPort"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := podHead + "\nmetadata: {name: x, namespace: shop" + tt.meta + "}\nspec: " + tt.spec
			if tt.status != "" {
				text += "\nstatus: " + tt.status
			}
			expect(t, factOf(t, text), tt.row)
		})
	}
}

func TestNamespace(t *testing.T) {
	for _, tt := range []row{
		{"member", `labels: {openservicemesh.io/monitored-by: osm}`, `{"name":"shop","member":true,"labels":{"kubernetes.io/metadata.name":"shop","openservicemesh.io/monitored-by":"osm"}}`, nil},
		{"of another mesh", `labels: {openservicemesh.io/monitored-by: other}`, `{"name":"shop","member":false,"labels":{"kubernetes.io/metadata.name":"shop","openservicemesh.io/monitored-by":"other"}}`, nil},
		{"of none", `labels: {}`, `{"name":"shop","member":false,"labels":{"kubernetes.io/metadata.name":"shop"}}`, nil},
		{"kept out", `labels: {openservicemesh.io/monitored-by: osm, openservicemesh.io/ignore: "false"}`, `{"name":"shop","member":false,"labels":{"kubernetes.io/metadata.name":"shop","openservicemesh.io/ignore":"false","openservicemesh.io/monitored-by":"osm"}}`, nil},
		{"mode", `annotations: {openservicemesh.io/inbound-tls-mode: Strict}`, `{"name":"shop","member":false,"inboundTLS":"Strict","labels":{"kubernetes.io/metadata.name":"shop"}}`, nil},
		{"access logs", `annotations: {openservicemesh.io/access-log: none}`, `{"name":"shop","member":false,"accessLog":{"enabled":false,"sampled":0},"labels":{"kubernetes.io/metadata.name":"shop"}}`, nil},
		{"a mode that is none is the strict one", `annotations: {openservicemesh.io/inbound-tls-mode: on}`, `{"name":"shop","member":false,"inboundTLS":"Strict","labels":{"kubernetes.io/metadata.name":"shop"}}`,
			[]string{"Invalid metadata.annotations[openservicemesh.io/inbound-tls-mode]"}},
		{"services that its pods may know", `annotations: {openservicemesh.io/outbound-services: cart}`, `{"name":"shop","member":false,"labels":{"kubernetes.io/metadata.name":"shop"},"outboundServices":[{"namespace":"shop","name":"cart"}]}`, nil},
		{"an empty list of services", `annotations: {openservicemesh.io/outbound-services: ""}`, `{"name":"shop","member":false,"labels":{"kubernetes.io/metadata.name":"shop"}}`,
			[]string{"Invalid metadata.annotations[openservicemesh.io/outbound-services]"}},
		{"an audit", `annotations: {openservicemesh.io/access-mode: Audit}`, `{"name":"shop","member":false,"labels":{"kubernetes.io/metadata.name":"shop"},"audit":true}`, nil},
		{"a default", `annotations: {openservicemesh.io/default-access: audit}`, `{"name":"shop","member":false,"labels":{"kubernetes.io/metadata.name":"shop"},"defaultAccess":"Audit"}`, nil},
		{"a default in capitals", `annotations: {openservicemesh.io/default-access: Allow}`, `{"name":"shop","member":false,"labels":{"kubernetes.io/metadata.name":"shop"},"defaultAccess":"Allow"}`, nil},
		{"a default that is none denies", `annotations: {openservicemesh.io/default-access: ""}`, `{"name":"shop","member":false,"labels":{"kubernetes.io/metadata.name":"shop"},"defaultAccess":"Deny"}`,
			[]string{"Invalid metadata.annotations[openservicemesh.io/default-access]"}},
		{"an access mode that is none", `annotations: {openservicemesh.io/access-mode: audit}`, `{"name":"shop","member":false,"labels":{"kubernetes.io/metadata.name":"shop"}}`,
			[]string{"Invalid metadata.annotations[openservicemesh.io/access-mode]"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			expect(t, factOf(t, "{apiVersion: v1, kind: Namespace, metadata: {name: shop, "+strings.Replace(tt.spec, ": on}", `: "on"}`, 1)+"}}"), tt)
		})
	}
}

func TestService(t *testing.T) {
	check(t, "apiVersion: v1\nkind: Service", []row{
		{"dual stack", `{clusterIP: "fd00::1", clusterIPs: ["fd00::1", 10.1.0.1]}`, `{"addresses":["10.1.0.1","fd00::1"]}`, nil},
		{"the older field", `{clusterIP: 10.1.0.1}`, `{"addresses":["10.1.0.1"]}`, nil},
		{"headless", `{clusterIP: None, clusterIPs: [None]}`, `{"headless":true}`, nil},
		{"another name", `{type: ExternalName, externalName: API.example.com., clusterIP: 10.1.0.1}`, `{"externalName":"api.example.com"}`, nil},
		{"an address elsewhere", `{type: ExternalName, externalName: 192.0.2.1}`, `{"externalName":"192.0.2.1"}`, nil},
		{"a name with digits", `{type: ExternalName, externalName: 127.example.com}`, `{"externalName":"127.example.com"}`, nil},
		{"another name that is none", `{type: ExternalName, externalName: "a b"}`, `{"namespace":"shop","name":"x"}`, []string{"Invalid spec.externalName"}},
		{"sticky", `{sessionAffinity: ClientIP}`, `{"stickyClients":true}`, nil},
		{"not sticky", `{sessionAffinity: None}`, `{"namespace":"shop","name":"x"}`, nil},
		{"close", `{trafficDistribution: PreferClose}`, `{"preferZone":true}`, nil},
		{"same zone", `{trafficDistribution: PreferSameZone}`, `{"preferZone":true}`, nil},
		{"same node", `{trafficDistribution: PreferSameNode}`, `{"preferZone":true}`, nil},
		{"any", `{trafficDistribution: Random}`, `{"namespace":"shop","name":"x"}`, nil},
		{"targets", `{ports: [{name: b, port: 81, targetPort: web}, {name: a, port: 80}, {name: c, port: 82, targetPort: 8082}]}`,
			`{"ports":[{"name":"a","port":80,"target":80,"protocol":"http","assumed":true},{"name":"b","port":81,"targetName":"web","protocol":"http","assumed":true},{"name":"c","port":82,"target":8082,"protocol":"http","assumed":true}]}`, nil},
		{"what is not TCP is not captured", `{ports: [{name: a, port: 53, protocol: UDP}, {name: b, port: 54, protocol: SCTP}, {name: c, port: 53, protocol: TCP}]}`,
			`{"ports":[{"name":"c","port":53,"target":53,"protocol":"http","assumed":true}]}`, nil},
		{"ports that are none", `{ports: [{name: a, port: 0}, {name: b, port: 65536}, {name: c, port: 80, targetPort: 70000}, {name: d, port: 81}]}`,
			`{"ports":[{"name":"d","port":81,"target":81,"protocol":"http","assumed":true}]}`,
			[]string{"Invalid spec.ports[0].port", "Invalid spec.ports[1].port", "Invalid spec.ports[2].targetPort"}},
		{"ports that are there twice", `{ports: [{name: a, port: 80}, {name: b, port: 80}, {name: a, port: 81}]}`,
			`{"ports":[{"name":"a","port":80,"target":80,"protocol":"http","assumed":true}]}`, []string{"Duplicate spec.ports[1]", "Duplicate spec.ports[2]"}},
		{"a name that probably means something else than HTTP", `{ports: [{name: mongo, port: 80}, {name: postgres-main, port: 81}, {name: redis, port: 82, appProtocol: redis}, {name: mongoose, port: 83}]}`,
			`{"ports":[{"name":"mongo","port":80,"target":80,"protocol":"http","assumed":true},{"name":"postgres-main","port":81,"target":81,"protocol":"http","assumed":true},{"name":"redis","port":82,"target":82,"protocol":"tcp"},{"name":"mongoose","port":83,"target":83,"protocol":"http","assumed":true}]}`,
			[]string{"Advice spec.ports[0].name", "Advice spec.ports[1].name"}},
		{"a number that probably means something else than HTTP", `{ports: [{port: 3306}, {name: web, port: 80, targetPort: 5432}, {name: http-mq, port: 5672}, {name: cache, port: 6379, appProtocol: redis}, {name: api, port: 8080}]}`,
			`{"ports":[{"name":"web","port":80,"target":5432,"protocol":"http","assumed":true},{"port":3306,"target":3306,"protocol":"http","assumed":true},{"name":"http-mq","port":5672,"target":5672,"protocol":"http"},{"name":"cache","port":6379,"target":6379,"protocol":"tcp"},{"name":"api","port":8080,"target":8080,"protocol":"http","assumed":true}]}`,
			[]string{"Advice spec.ports[0]", "Advice spec.ports[1]"}},
		{"an unknown protocol", `{ports: [{port: 80, appProtocol: example.com/own}]}`,
			`{"ports":[{"port":80,"target":80,"protocol":"tcp"}]}`, []string{"UnknownProtocol spec.ports[0].appProtocol"}},
	})
	for _, annotation := range []string{"topology-mode: Auto", "topology-aware-hints: auto"} {
		fact := factOf(t, "{apiVersion: v1, kind: Service, metadata: {name: x, namespace: shop, annotations: {service.kubernetes.io/"+annotation+"}}}")
		expect(t, fact, row{want: `{"preferZone":true}`})
	}
}

func TestProtocols(t *testing.T) {
	for port, want := range map[string]string{
		`name: ""`:                   "http",
		`name: web`:                  "http",
		`name: http`:                 "http",
		`name: http-web`:             "http",
		`name: httpweb`:              "http",
		`name: HTTP2-web`:            "http2",
		`name: grpc`:                 "grpc",
		`name: gRPC-web2`:            "grpc",
		`name: grpc-web`:             "http",
		`name: tcp`:                  "tcp",
		`name: tcp-db`:               "tcp",
		`name: tcpdb`:                "http",
		`name: tcp-server-first`:     "tcp-server-first",
		`name: tcp-server-first-db`:  "tcp-server-first",
		`name: tcp-server-firstling`: "tcp",
		`name: https-web`:            "tcp",
		`name: mysql`:                "http",

		`name: tcp-db, appProtocol: http`:            "http",
		`name: tcp-db, appProtocol: ""`:              "tcp",
		`name: a, appProtocol: HTTPS`:                "tcp",
		`name: a, appProtocol: grpc`:                 "grpc",
		`name: a, appProtocol: gRPC-web`:             "http",
		`name: a, appProtocol: h2c`:                  "http2",
		`name: a, appProtocol: http2`:                "http2",
		`name: a, appProtocol: kubernetes.io/h2c`:    "http2",
		`name: a, appProtocol: kubernetes.io/ws`:     "http",
		`name: a, appProtocol: kubernetes.io/wss`:    "tcp",
		`name: a, appProtocol: tcp`:                  "tcp",
		`name: a, appProtocol: tcp-server-first`:     "tcp-server-first",
		`name: a, appProtocol: mysql`:                "tcp-server-first",
		`name: a, appProtocol: smtp`:                 "tcp-server-first",
		`name: a, appProtocol: postgresql`:           "tcp",
		`name: http-a, appProtocol: kubernetes.io/x`: "tcp",
	} {
		fact := factOf(t, "{apiVersion: v1, kind: Service, metadata: {name: x, namespace: shop}, spec: {ports: [{port: 80, "+port+"}]}}")
		if got := says(t, fact); !strings.Contains(got, `"protocol":"`+want+`"`) {
			t.Errorf("%s gives %s, want the protocol %s", port, got, want)
		}
		if unknown := slices.ContainsFunc(fact.Problems, func(p mesh.Problem) bool { return !p.IsAdvice() }); unknown != strings.Contains(port, "kubernetes.io/x") {
			t.Errorf("%s gives Problems %v", port, fact.Problems)
		}
	}
}

func TestEndpointSlice(t *testing.T) {
	const labels = `labels: {kubernetes.io/service-name: web}`
	for _, tt := range []struct {
		row
		labels string
	}{
		{row{"of no service", `{addressType: IPv4, endpoints: [{addresses: [10.0.0.1]}]}`, `nothing`, nil}, `labels: {}`},
		{row{"of DNS names", `{addressType: FQDN, endpoints: [{addresses: [a.example.com]}]}`, `nothing`, []string{"NotSupported addressType"}}, labels},
		{row{"conditions that are not known", `{addressType: IPv4, endpoints: [{addresses: [10.0.0.1]}]}`,
			`{"service":"web","endpoints":[{"addresses":["10.0.0.1"],"ready":true,"serving":true}]}`, nil}, labels},
		{row{"not ready", `{addressType: IPv4, endpoints: [{addresses: [10.0.0.1], conditions: {ready: false}}]}`,
			`{"service":"web","endpoints":[{"addresses":["10.0.0.1"]}]}`, nil}, labels},
		{row{"terminating", `{addressType: IPv4, endpoints: [{addresses: [10.0.0.1], conditions: {ready: false, serving: true, terminating: true}}]}`,
			`{"service":"web","endpoints":[{"addresses":["10.0.0.1"],"serving":true,"terminating":true}]}`, nil}, labels},
		{row{"workloads, host names and zones, in the order of addresses", `
addressType: IPv6
endpoints:
- {addresses: ["fd00::2", "fd00::9"], hostname: db-0, zone: z1, targetRef: {kind: Pod, namespace: shop, name: db-0}}
- {addresses: ["fd00::1"], targetRef: {kind: Pod, name: db-1}}
- {addresses: ["fd00::3"], targetRef: {kind: Pod, namespace: other, name: db-2}}
- {addresses: ["fd00::4"], targetRef: {kind: Node, name: db-3}}`,
			`{"service":"web","endpoints":[{"addresses":["fd00::1"],"workload":"db-1","ready":true,"serving":true},` +
				`{"addresses":["fd00::2"],"workload":"db-0","hostname":"db-0","zone":"z1","ready":true,"serving":true},` +
				`{"addresses":["fd00::3"],"ready":true,"serving":true},{"addresses":["fd00::4"],"ready":true,"serving":true}]}`, nil}, labels},
		{row{"ports", `{addressType: IPv4, endpoints: [], ports: [{name: b, port: 81}, {port: 80, protocol: TCP}, {name: u, port: 53, protocol: UDP}, {name: any}, {name: bad, port: 0}]}`,
			`{"service":"web","ports":[{"port":80},{"name":"b","port":81}]}`, []string{"Invalid ports[4].port"}}, labels},
		{row{"addresses that are none", `{addressType: IPv4, endpoints: [{addresses: []}, {addresses: [nowhere]}, {addresses: ["fe80::1%eth0"]}, {addresses: [10.0.0.1]}]}`,
			`{"service":"web","endpoints":[{"addresses":["10.0.0.1"],"ready":true,"serving":true}]}`,
			[]string{"Invalid endpoints[1].addresses[0]", "Invalid endpoints[2].addresses[0]"}}, labels},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := tt.spec
			if strings.HasPrefix(spec, "{") {
				spec = strings.TrimSuffix(strings.TrimPrefix(spec, "{"), "}")
				expect(t, factOf(t, "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: x, namespace: shop, "+tt.labels+"}, "+spec+"}"), tt.row)
				return
			}
			expect(t, factOf(t, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: x, namespace: shop, "+tt.labels+"}"+spec), tt.row)
		})
	}
}

// TestLocalNames has the spellings in which resolvers find the caller's own host or link.
func TestLocalNames(t *testing.T) {
	var rows []row
	for _, name := range []string{
		"127.0.0.1", "127.0.0.1.", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "0x7F.0.0.0x1", "0", "0.0.0.0", "169.254.169.254", "0xa9fea9fe", "2852039166",
		"169.254.43518", "224.0.0.1", "localhost", "LOCALHOST.", "a.localhost", "localhost.localdomain", "ip6-localhost", "::1", "[::1]", "::ffff:127.0.0.1", "fe80::1", "127.0.0.1.5", "127.0.0.256", "08.0.0.1",
	} {
		rows = append(rows, row{name, `{type: ExternalName, externalName: "` + name + `"}`, `{"namespace":"shop","name":"x"}`, []string{"Invalid spec.externalName"}})
	}
	check(t, "apiVersion: v1\nkind: Service", rows)
}
