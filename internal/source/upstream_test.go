package source_test

import "testing"

func TestUpstreamSetting(t *testing.T) {
	const empty = `{"host":"a","policy":{}}`
	check(t, "apiVersion: policy.openservicemesh.io/v1alpha1\nkind: UpstreamTrafficSetting", []row{
		{"hosts are in lower case", `{host: A.Example.com}`, `{"host":"a.example.com","policy":{}}`, nil},
		{"a service of the namespace", `{host: a.shop.svc.cluster.local}`, `{"host":"a.shop.svc.cluster.local","policy":{}}`, nil},
		{"a host outside with svc in it", `{host: a.b.svc.example.com}`, `{"host":"a.b.svc.example.com","policy":{}}`, nil},
		{"a wildcard of an Egress", `{host: "*.example.com"}`, `{"host":"*.example.com","policy":{}}`, nil},
		{"a service elsewhere, which an Egress may name", `{host: a.front.svc.cluster.local}`, `{"host":"a.front.svc.cluster.local","policy":{}}`, nil},
		{"no host", `{host: ""}`, `nothing`, []string{"Invalid spec.host"}},
		{"a host that is none", `{host: "a b"}`, `nothing`, []string{"Invalid spec.host"}},

		{"connections", `{host: a, connectionSettings: {tcp: {maxConnections: 1, connectTimeout: 2s}, http: {maxRequests: 3, maxRequestsPerConnection: 4, maxPendingRequests: 5, maxRetries: 4294967295}}}`,
			`{"host":"a","policy":{"maxConnections":1,"maxRequests":3,"maxPendingRequests":5,"maxRetries":4294967295,"requestsPerConnection":4,"connectTimeout":2000000000}}`, nil},
		{"any number of requests a connection", `{host: a, connectionSettings: {http: {maxRequestsPerConnection: 0}}}`, empty, nil},
		{"limits of 0 are limits", `{host: a, connectionSettings: {tcp: {maxConnections: 0}, http: {maxRequests: 0, maxPendingRequests: 0, maxRetries: 0}}}`,
			`{"host":"a","policy":{"maxConnections":0,"maxRequests":0,"maxPendingRequests":0,"maxRetries":0}}`, []string{"Advice spec.connectionSettings"}},
		{"limits that are none", `{host: a, connectionSettings: {tcp: {maxConnections: -1, connectTimeout: soon}, http: {maxRequests: -1, maxRequestsPerConnection: -1, maxPendingRequests: 4294967296, circuitBreaking: {}}}}`, empty,
			[]string{
				"NotSupported spec.connectionSettings.http.circuitBreaking", "Invalid spec.connectionSettings.http.maxPendingRequests",
				"Invalid spec.connectionSettings.http.maxRequests", "Invalid spec.connectionSettings.http.maxRequestsPerConnection",
				"Invalid spec.connectionSettings.tcp.connectTimeout", "Invalid spec.connectionSettings.tcp.maxConnections",
			}},

		{"timeouts", `{host: a, timeouts: {request: 10s, idle: 15m}}`, `{"host":"a","policy":{"requestTimeout":10000000000,"idleTimeout":900000000000}}`, nil},
		{"an idle timeout that is left out", `{host: a, timeouts: {request: 0s}}`, empty, nil},
		{"no idle timeout", `{host: a, timeouts: {idle: 0s}}`, `{"host":"a","policy":{"idleTimeout":2147483647000000000}}`, nil},
		{"timeouts that are none", `{host: a, timeouts: {request: -1s, idle: soon}}`, empty, []string{"Invalid spec.timeouts.idle", "Invalid spec.timeouts.request"}},

		{"ejection by default", `{host: a, outlierDetection: {}}`, `{"host":"a","policy":{"ejection":{"consecutiveErrors":5,"interval":10000000000,"baseTime":30000000000,"maxPercent":10}}}`, nil},
		{"ejection", `{host: a, outlierDetection: {consecutiveErrors: 1, interval: 1s, baseEjectionTime: 2s, maxEjectionPercent: 100}}`,
			`{"host":"a","policy":{"ejection":{"consecutiveErrors":1,"interval":1000000000,"baseTime":2000000000,"maxPercent":100}}}`, nil},
		{"ejection that cannot be", `{host: a, outlierDetection: {consecutiveErrors: -1, interval: soon, baseEjectionTime: -1s, maxEjectionPercent: 101}}`,
			`{"host":"a","policy":{"ejection":{"consecutiveErrors":5,"interval":10000000000,"baseTime":30000000000,"maxPercent":10}}}`,
			[]string{"Invalid spec.outlierDetection.baseEjectionTime", "Invalid spec.outlierDetection.consecutiveErrors", "Invalid spec.outlierDetection.interval", "Invalid spec.outlierDetection.maxEjectionPercent"}},

		{"load balancing", `{host: a, loadBalancing: {policy: Maglev, hashOn: [{header: X-A}, {cookie: {name: C, ttl: 1h}}, {sourceIP: true}], zoneAware: true}}`,
			`{"host":"a","policy":{"loadBalancing":{"policy":"Maglev","hashOn":[{"header":"x-a"},{"cookie":"C","cookieTTL":3600000000000},{"sourceIP":true}],"preferZone":true}}}`, nil},
		{"hashing is a ring", `{host: a, loadBalancing: {hashOn: [{sourceIP: true}]}}`, `{"host":"a","policy":{"loadBalancing":{"policy":"RingHash","hashOn":[{"sourceIP":true}]}}}`, nil},
		{"a policy without hashing", `{host: a, loadBalancing: {policy: LeastRequest}}`, `{"host":"a","policy":{"loadBalancing":{"policy":"LeastRequest"}}}`, nil},
		{"hashing for a policy without", `{host: a, loadBalancing: {policy: Random, hashOn: [{sourceIP: true}]}}`, `{"host":"a","policy":{"loadBalancing":{"policy":"Random"}}}`, []string{"Invalid spec.loadBalancing.hashOn"}},
		{"nothing to hash", `{host: a, loadBalancing: {policy: RingHash, zoneAware: true}}`, `{"host":"a","policy":{"loadBalancing":{"preferZone":true}}}`, []string{"Missing spec.loadBalancing.hashOn"}},
		{"an unknown policy", `{host: a, loadBalancing: {policy: Best, hashOn: [{sourceIP: true}]}}`, empty, []string{"Invalid spec.loadBalancing.policy"}},
		{"things that cannot be hashed", `{host: a, loadBalancing: {policy: RingHash, hashOn: [{}, {header: a, sourceIP: true}, {header: "a b"}, {cookie: {name: "a;b"}}, {cookie: {name: c, ttl: soon}}]}}`,
			`{"host":"a","policy":{"loadBalancing":{"policy":"RingHash","hashOn":[{"cookie":"c"}]}}}`,
			[]string{"Invalid spec.loadBalancing.hashOn[0]", "Invalid spec.loadBalancing.hashOn[1]", "Invalid spec.loadBalancing.hashOn[2].header", "Invalid spec.loadBalancing.hashOn[3].cookie.name", "Invalid spec.loadBalancing.hashOn[4].cookie.ttl"}},
	})
}

func TestRateLimits(t *testing.T) {
	const empty = `{"host":"a","policy":{}}`
	check(t, "apiVersion: policy.openservicemesh.io/v1alpha1\nkind: UpstreamTrafficSetting", []row{
		{"all", `{host: a, rateLimit: {local: {tcp: {connections: 1, unit: second, burst: 2}, http: {requests: 3, unit: minute, responseStatusCode: 503, responseHeadersToAdd: [{name: X-B, value: b}, {name: x-a, value: ""}]}}}}`,
			`{"host":"a","policy":{},"limits":{"connections":{"tokens":1,"burst":2,"interval":1000000000},` +
				`"requests":{"tokens":3,"interval":60000000000,"status":503,"addHeaders":[{"name":"x-a","value":""},{"name":"x-b","value":"b"}]}}}`, nil},
		{"routes", `{host: a, httpRoutes: [{path: "/a/.*", rateLimit: {local: {requests: 1, unit: hour}}}, {path: /b}, {path: /c, rateLimit: {}}]}`,
			`{"host":"a","policy":{},"limits":{"routes":[{"path":"/a/.*","limit":{"tokens":1,"interval":3600000000000}}]}}`, nil},

		{"limits of a service", `{host: a, rateLimit: {global: {}}, httpRoutes: [{path: /a, rateLimit: {global: {descriptors: []}}}]}`, empty,
			[]string{"NotSupported spec.httpRoutes[0].rateLimit.global", "NotSupported spec.rateLimit.global"}},
		{"rates that are none", `{host: a, rateLimit: {local: {tcp: {unit: second}, http: {requests: -1, unit: second}}}}`, empty,
			[]string{"Invalid spec.rateLimit.local.http.requests", "Invalid spec.rateLimit.local.tcp.connections"}},
		{"units that are none", `{host: a, rateLimit: {local: {tcp: {connections: 1, unit: day}, http: {requests: 1}}}}`, empty,
			[]string{"Invalid spec.rateLimit.local.http.unit", "Invalid spec.rateLimit.local.tcp.unit"}},
		{"bursts that are none", `{host: a, rateLimit: {local: {tcp: {connections: 1, unit: hour, burst: -1}, http: {requests: 4294967295, unit: hour, burst: 1}}}}`,
			`{"host":"a","policy":{},"limits":{"connections":{"tokens":1,"interval":3600000000000},"requests":{"tokens":4294967295,"interval":3600000000000}}}`,
			[]string{"Invalid spec.rateLimit.local.http.burst", "Invalid spec.rateLimit.local.tcp.burst"}},
		{"answers that are none", `{host: a, rateLimit: {local: {http: {requests: 1, unit: hour, responseStatusCode: 418, responseHeadersToAdd: [{name: "a b", value: c}, {name: Host, value: c}, {name: a, value: "b\nc"}]}}}}`,
			`{"host":"a","policy":{},"limits":{"requests":{"tokens":1,"interval":3600000000000}}}`,
			[]string{"Invalid spec.rateLimit.local.http.responseHeadersToAdd[0]", "Invalid spec.rateLimit.local.http.responseHeadersToAdd[1]", "Invalid spec.rateLimit.local.http.responseHeadersToAdd[2]", "Invalid spec.rateLimit.local.http.responseStatusCode"}},
		{"routes that are none leave the others", `{host: a, httpRoutes: [{rateLimit: {local: {requests: 1, unit: hour}}}, {path: "(", rateLimit: {local: {requests: 1, unit: hour}}}, {path: /a, rateLimit: {local: {requests: 2, unit: hour}}}, {path: /a, rateLimit: {local: {requests: 3, unit: hour}}}]}`,
			`{"host":"a","policy":{},"limits":{"routes":[{"path":"/a","limit":{"tokens":2,"interval":3600000000000}}]}}`,
			[]string{"InvalidRegex spec.httpRoutes[0].path", "InvalidRegex spec.httpRoutes[1].path", "Duplicate spec.httpRoutes[3].path"}},
	})
}
