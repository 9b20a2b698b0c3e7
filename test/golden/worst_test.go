package golden_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// The size of the objects in bytes: what the API server takes, and what is enough for a short run.
const (
	largestObject = 1_500_000
	shortObject   = 30_000
)

// What a worst object may cost the controller: CPU for the Snapshot and for the configuration of a
// client and a server of each class, and the size of that configuration. They are far above what
// is measured, because the machine may be busy; an object whose cost is a product exceeds them.
const (
	worstCPU  = 15 * time.Second
	worstSize = 24 << 20
)

// worstClasses are the classes of proxies.
var worstClasses = []string{"envoy", "haproxy", "pipy"}

// worstMesh has a client and a server of each class.
func worstMesh() string {
	var out strings.Builder
	out.WriteString(`
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec: {traffic: {enablePermissiveTrafficPolicyMode: false}, featureFlags: {enableRetryPolicy: true}}
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: all, namespace: shop}
spec: {matches: [{name: all, pathRegex: ".*", methods: ["*"]}]}
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: TCPRoute
metadata: {name: all, namespace: shop}
spec: {matches: {ports: []}}
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: all, namespace: shop}
spec:
  destination: {kind: ServiceAccount, name: cart, namespace: shop}
  sources: [{kind: ServiceAccount, name: web, namespace: shop}]
  rules: [{kind: HTTPRouteGroup, name: all}]
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: tcp, namespace: shop}
spec:
  destination: {kind: ServiceAccount, name: cart, namespace: shop}
  sources: [{kind: ServiceAccount, name: web, namespace: shop}]
  rules: [{kind: TCPRoute, name: all}]
`)
	for i := range 32 {
		fmt.Fprintf(&out, "---\napiVersion: v1\nkind: Service\nmetadata: {name: cart-%d, namespace: shop}\nspec: {selector: {app: cart}, ports: [{name: http, port: 80, targetPort: 8080}, {name: grpc, port: 81, targetPort: 8081}, {name: tcp-tls, port: 443, targetPort: 8443}]}\n", i)
	}
	for _, class := range worstClasses {
		for name, labels := range map[string]string{"cart": "{app: cart}", "web": "{app: web}"} {
			fmt.Fprintf(&out, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s-%s, namespace: shop, labels: %s, annotations: {openservicemesh.io/sidecar-class: %s}}\nspec: {serviceAccountName: %s, containers: [{name: app}]}\n", name, class, labels, class, name)
		}
	}
	return out.String()
}

// list returns a list of elements that has about that many bytes, but at most most elements.
func list(size, most int, element func(i int) string) string {
	var out strings.Builder
	out.WriteByte('[')
	for i := 0; out.Len() < size && i < most; i++ {
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteString(element(i))
	}
	out.WriteByte(']')
	return out.String()
}

const unlimited = 1 << 30

// object returns a manifest.
func object(version, kind, spec string) string {
	return fmt.Sprintf("---\n{\"apiVersion\": %q, \"kind\": %q, \"metadata\": {\"name\": \"worst\", \"namespace\": \"shop\"}, \"spec\": %s}\n", version, kind, spec)
}

// Expressions of which every step is expensive for somebody: a few bytes with a large automaton, and
// the largest program.
func largeAutomaton(i int) string { return fmt.Sprintf(`.*%c.{%d}`, 'a'+i%26, 9+i%7) }
func largeProgram(i int) string   { return fmt.Sprintf(`(?:[a-z]{%d}x){9}`, 900+i%100) }

func routeGroupOf(size int, expression func(i int) string) string {
	return object("specs.smi-spec.io/v1alpha4", "HTTPRouteGroup", `{"matches": `+list(size, unlimited, func(i int) string {
		return fmt.Sprintf(`{"name": "m%d", "pathRegex": %q, "methods": ["GET"]}`, i, expression(i))
	})+`}`) + worstTarget
}

// worstTarget uses the HTTPRouteGroup for access.
const worstTarget = `---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: worst, namespace: shop}
spec:
  destination: {kind: ServiceAccount, name: cart, namespace: shop}
  sources: [{kind: ServiceAccount, name: web, namespace: shop}]
  rules: [{kind: HTTPRouteGroup, name: worst}]
`

func accountRef(i int) string {
	return fmt.Sprintf(`{"kind": "ServiceAccount", "name": "a%d", "namespace": "shop"}`, i)
}

var theClient = `{"kind": "ServiceAccount", "name": "web", "namespace": "shop"}`

// httpRoute has the most rules and matches that the CRD allows, of all services. Values are so
// long that the object has the size.
func httpRoute(size int, path func(i int) string) string {
	const rules, matches = 16, 8
	value := strings.Repeat("v", min(4096, size/rules/(matches*4+16*3)))
	header := func(i int) string { return fmt.Sprintf(`{"name": "h%d", "value": %q}`, i, value) }
	changes := `{"set": ` + list(size, 16, header) + `}`
	return object("gateway.networking.k8s.io/v1", "HTTPRoute", `{"parentRefs": `+list(size, 32, func(i int) string {
		return fmt.Sprintf(`{"group": "", "kind": "Service", "name": "cart-%d", "port": 80}`, i)
	})+`, "rules": `+list(unlimited, rules, func(r int) string {
		return `{"matches": ` + list(unlimited, matches, func(i int) string {
			return fmt.Sprintf(`{"path": {"type": "RegularExpression", "value": %q}, "headers": %s, "queryParams": %s}`, path(r*matches+i), list(unlimited, 4, header), list(unlimited, 4, header))
		}) + `, "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": ` + changes + `}, {"type": "ResponseHeaderModifier", "responseHeaderModifier": ` + changes + `}], "backendRefs": ` +
			list(unlimited, 16, func(i int) string { return fmt.Sprintf(`{"name": "cart-%d", "port": 80}`, i) }) + `}`
	})+`}`)
}

// targetOf returns a TrafficTarget that is half sources and half rules.
func targetOf(size int, rule func(i int) string) string {
	return object("access.smi-spec.io/v1alpha3", "TrafficTarget", `{"destination": {"kind": "ServiceAccount", "name": "cart", "namespace": "shop"}, "sources": `+
		list(size/2, unlimited, accountRef)+`, "rules": `+list(size/2, unlimited, rule)+`}`)
}

// worstObjects are the most expensive objects of each kind of policy.
var worstObjects = []struct {
	name string
	make func(size int) string
}{
	{"nothing", func(int) string { return "" }},
	{"HTTPRouteGroup, large automata", func(size int) string { return routeGroupOf(size, largeAutomaton) }},
	{"HTTPRouteGroup, large programs", func(size int) string { return routeGroupOf(size, largeProgram) }},
	{"HTTPRouteGroup, exact paths", func(size int) string {
		return routeGroupOf(size, func(i int) string { return fmt.Sprintf("/a/path/%d", i) })
	}},
	{"HTTPRouteGroup, headers", func(size int) string {
		return object("specs.smi-spec.io/v1alpha4", "HTTPRouteGroup", `{"matches": [{"name": "m", "headers": `+list(size, unlimited, func(i int) string {
			return fmt.Sprintf(`{"h%d": "v"}`, i)
		})+`}]}`) + worstTarget
	}},
	{"TCPRoute", func(size int) string {
		return object("specs.smi-spec.io/v1alpha4", "TCPRoute", `{"matches": {"ports": `+list(size, 65535, func(i int) string { return fmt.Sprint(1 + i) })+`}}`) + strings.Replace(strings.Replace(worstTarget, "HTTPRouteGroup", "TCPRoute", 1), "name: worst, namespace", "name: worst-tcp, namespace", 1)
	}},
	{"TrafficTarget, sources and rules", func(size int) string {
		group := object("specs.smi-spec.io/v1alpha4", "HTTPRouteGroup", fmt.Sprintf(`{"matches": [{"name": "m", "pathRegex": "/%s", "methods": ["GET"]}]}`, strings.Repeat("p", 1000)))
		return group + targetOf(size, func(i int) string {
			return fmt.Sprintf(`{"kind": "HTTPRouteGroup", "name": "worst", "matches": ["m", "x%d"]}`, i)
		})
	}},
	{"TrafficTarget, sources and the same rule", func(size int) string {
		return targetOf(size, func(int) string { return `{"kind": "HTTPRouteGroup", "name": "all"}` })
	}},
	{"TrafficTarget, sources and the same connections", func(size int) string {
		return targetOf(size, func(int) string { return `{"kind": "TCPRoute", "name": "all"}` })
	}},
	{"TrafficSplit", func(size int) string {
		return object("split.smi-spec.io/v1alpha4", "TrafficSplit", `{"service": "cart-0", "backends": `+list(size, unlimited, func(i int) string {
			return fmt.Sprintf(`{"service": "cart-%d", "weight": %d}`, i%32, i)
		})+`}`)
	}},
	{"TrafficSplit, matches", func(size int) string {
		return routeGroupOf(size/2, largeAutomaton) + object("split.smi-spec.io/v1alpha4", "TrafficSplit", `{"service": "cart-0", "matches": `+list(size/2, unlimited, func(int) string {
			return `{"apiGroup": "specs.smi-spec.io/v1alpha4", "kind": "HTTPRouteGroup", "name": "worst"}`
		})+`, "backends": [{"service": "cart-1", "weight": 1}]}`)
	}},
	{"HTTPRoute, large automata", func(size int) string { return httpRoute(size, largeAutomaton) }},
	{"HTTPRoute, large programs", func(size int) string { return httpRoute(size, largeProgram) }},
	{"GRPCRoute", func(size int) string {
		return object("gateway.networking.k8s.io/v1", "GRPCRoute", `{"parentRefs": `+list(size, 32, func(i int) string {
			return fmt.Sprintf(`{"group": "", "kind": "Service", "name": "cart-%d", "port": 81}`, i)
		})+`, "rules": `+list(unlimited, 16, func(r int) string {
			return `{"matches": ` + list(unlimited, 8, func(i int) string {
				return fmt.Sprintf(`{"method": {"type": "RegularExpression", "service": %q, "method": %q}, "headers": [{"type": "RegularExpression", "name": "h", "value": %q}]}`, largeAutomaton(r+i), largeAutomaton(i), largeAutomaton(r))
			}) + `, "backendRefs": [{"name": "cart-0", "port": 81}]}`
		})+`}`)
	}},
	{"TLSRoute", func(size int) string {
		return object("gateway.networking.k8s.io/v1", "TLSRoute", `{"parentRefs": `+list(size, 32, func(i int) string {
			return fmt.Sprintf(`{"group": "", "kind": "Service", "name": "cart-%d", "port": 443}`, i)
		})+`, "hostnames": `+list(unlimited, 16, func(i int) string { return fmt.Sprintf(`"h%d.example.com"`, i) })+`, "rules": [{"backendRefs": `+list(unlimited, 16, func(i int) string {
			return fmt.Sprintf(`{"name": "cart-%d", "port": 443}`, i)
		})+`}]}`)
	}},
	{"Egress, hosts and ports", func(size int) string {
		return object("policy.openservicemesh.io/v1alpha1", "Egress", `{"sources": [`+theClient+`], "hosts": `+list(size/2, unlimited, func(i int) string {
			return fmt.Sprintf(`"h%d.example.com"`, i)
		})+`, "ports": `+list(size/2, 65535, func(i int) string { return fmt.Sprintf(`{"number": %d, "protocol": "http"}`, 1+i) })+`}`)
	}},
	{"Egress, addresses and ports", func(size int) string {
		return object("policy.openservicemesh.io/v1alpha1", "Egress", `{"sources": [`+theClient+`], "ipAddresses": `+list(size/2, unlimited, func(i int) string {
			return fmt.Sprintf(`"198.%d.%d.%d/32"`, i>>16&0xff, i>>8&0xff, i&0xff)
		})+`, "ports": `+list(size/2, 65535, func(i int) string { return fmt.Sprintf(`{"number": %d, "protocol": "tcp"}`, 1+i) })+`}`)
	}},
	{"Egress, hosts and matches", func(size int) string {
		return routeGroupOf(size/2, largeAutomaton) + object("policy.openservicemesh.io/v1alpha1", "Egress", `{"sources": [`+theClient+`], "hosts": `+list(size/2, unlimited, func(i int) string {
			return fmt.Sprintf(`"h%d.example.com"`, i)
		})+`, "ports": [{"number": 80, "protocol": "http"}], "matches": [{"apiGroup": "specs.smi-spec.io/v1alpha4", "kind": "HTTPRouteGroup", "name": "worst"}]}`)
	}},
	{"Egress, hosts and addresses", func(size int) string {
		return object("policy.openservicemesh.io/v1alpha1", "Egress", `{"sources": [`+theClient+`], "hosts": `+list(size/2, unlimited, func(i int) string {
			return fmt.Sprintf(`"h%d.example.com"`, i)
		})+`, "ipAddresses": `+list(size/2, unlimited, func(i int) string {
			return fmt.Sprintf(`"198.%d.%d.%d/32"`, i>>16&0xff, i>>8&0xff, i&0xff)
		})+`, "ports": [{"number": 80, "protocol": "http"}]}`)
	}},
	{"Egress, sources", func(size int) string {
		return object("policy.openservicemesh.io/v1alpha1", "Egress", `{"sources": `+list(size, unlimited, accountRef)+`, "hosts": ["a.example.com"], "ports": [{"number": 80, "protocol": "http"}]}`)
	}},
	{"IngressBackend", func(size int) string {
		return object("policy.openservicemesh.io/v1alpha1", "IngressBackend", `{"backends": `+list(size/2, unlimited, func(i int) string {
			return fmt.Sprintf(`{"name": "cart-%d", "port": {"number": %d, "protocol": "http"}}`, i%32, 8080)
		})+`, "sources": `+list(size/2, unlimited, func(i int) string {
			return fmt.Sprintf(`{"kind": "IPRange", "name": "198.%d.%d.%d/32"}`, i>>16&0xff, i>>8&0xff, i&0xff)
		})+`}`)
	}},
	{"Retry", func(size int) string {
		return object("policy.openservicemesh.io/v1alpha1", "Retry", `{"source": `+theClient+`, "destinations": `+list(size, unlimited, func(i int) string {
			return fmt.Sprintf(`{"kind": "Service", "name": "cart-%d", "namespace": "shop"}`, i%32)
		})+`, "retryPolicy": {"retryOn": "5xx", "numRetries": 100}}`)
	}},
	{"UpstreamTrafficSetting", func(size int) string {
		headers := list(unlimited, 10, func(i int) string { return fmt.Sprintf(`{"name": "h%d", "value": %q}`, i, strings.Repeat("v", 100)) })
		return object("policy.openservicemesh.io/v1alpha1", "UpstreamTrafficSetting", `{"host": "cart-0.shop.svc.cluster.local", "httpRoutes": `+list(size, unlimited, func(i int) string {
			return fmt.Sprintf(`{"path": %q, "rateLimit": {"local": {"requests": %d, "unit": "second", "responseHeadersToAdd": %s}}}`, largeAutomaton(i), 1+i, headers)
		})+`}`)
	}},
}

// TestWorstObjects builds the most expensive objects that the API server takes, and measures what
// they cost the controller for each class. WORST=all takes their full size, and asks the real
// proxies.
func TestWorstObjects(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	size := shortObject
	if os.Getenv("WORST") == "all" {
		size = largestObject
	}
	base := worstMesh()
	for _, o := range worstObjects {
		t.Run(o.name, func(t *testing.T) {
			manifests := o.make(size)
			began, before := processCPU(), heap()
			snapshot, _ := load(t, strings.NewReader(base+manifests))
			built := processCPU() - began
			t.Logf("%d bytes: the Snapshot takes %v of CPU and %d KiB", len(manifests), built.Round(time.Millisecond), (heap()-before)>>10)
			for _, class := range worstClasses {
				if class == "envoy" && size != largestObject {
					// What is printed for people takes it much longer than what proxies get.
					continue
				}
				for _, name := range []string{"web", "cart"} {
					view := viewOf(t, snapshot, "shop/"+name+"-"+class)
					began, bytes := processCPU(), 0
					for _, file := range translate(t, view) {
						bytes += len(file.Content)
					}
					took := processCPU() - began
					t.Logf("%s of class %s: %v of CPU, %d KiB of configuration", name, class, took.Round(time.Millisecond), bytes>>10)
					if built+took > worstCPU {
						t.Errorf("for %s of class %s the object takes %v of CPU, want at most %v", name, class, built+took, worstCPU)
					}
					if bytes > worstSize {
						t.Errorf("for %s of class %s the object becomes %d bytes, want at most %d", name, class, bytes, worstSize)
					}
					if size == largestObject {
						checkWithin(t, view)
					}
				}
			}
			runtime.KeepAlive(snapshot)
		})
	}
}

// TestProductsAreBounded looks for the Problems of objects of which every part is in a proxy's
// configuration for each of another part.
func TestProductsAreBounded(t *testing.T) {
	for name, want := range map[string]string{
		"TCPRoute":                         "only the lowest 1000 of its ",
		"Egress, hosts and ports":          "more than 50000 destinations",
		"Egress, addresses and ports":      "more than 50000 destinations",
		"Egress, hosts and matches":        "so it allows nothing; use several Egresses",
		"Egress, hosts and addresses":      "so it allows nothing; use several Egresses",
		"TrafficTarget, sources and rules": "so it allows nothing; use several TrafficTargets",
		"HTTPRoute, large automata":        "the route makes about ",
	} {
		for _, o := range worstObjects {
			if o.name != name {
				continue
			}
			snapshot, _ := load(t, strings.NewReader(worstMesh()+o.make(shortObject)))
			if got := string(problemsOf(snapshot)); !strings.Contains(got, want) {
				t.Errorf("%s has the Problems %s, want one with %q", name, got, want)
			}
		}
	}
}

// checkWithin logs how long the real proxy takes to read the configuration.
func checkWithin(t *testing.T, view *mesh.View) {
	t.Helper()
	checker := driverOf(t, view).Checker
	if checker == nil {
		return
	}
	began := time.Now()
	err := checker.Check(t.Context(), view)
	t.Logf("the proxy of class %s has read it after %v: %v", view.Proxy.Class, time.Since(began).Round(time.Millisecond), err)
}

// processCPU returns the CPU time of the process.
func processCPU() time.Duration {
	var usage syscall.Rusage
	// It fails only for an invalid argument.
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
