//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// testMigration follows docs/migration.md: on a cluster with the objects of Open Service
// Mesh, Outrigger is installed beside it, takes over its namespaces one by one with their
// policies, and gives them back. Existing objects must not change. The cluster must have no
// CRDs of the mesh before.
func (c *cluster) testMigration(t *testing.T) {
	crds := openServiceMeshCRDs()
	c.apply(t, crds)
	c.must(t, "", c.kubectl, "wait", "crd", "--all", "--for=condition=Established", "--timeout=60s")
	c.apply(t, openServiceMesh)
	for _, namespace := range []string{"shop", "front"} {
		c.apply(t, manifest(t, values{Namespace: namespace}, "namespace"))
	}
	c.apply(t, manifest(t, values{Namespace: "shop", Replicas: 2}, "service", "server")+openServiceMeshPolicies)
	before := c.openServiceMeshIs(t)
	c.rolledOut(t, "shop/web")
	// The test's own clients, as workloads for rollouts.
	c.apply(t, fmt.Sprintf(migrationClients, appImage()))
	for _, client := range []string{"buyer", "thief"} {
		c.rolledOut(t, "front/"+client)
	}
	asks := func(client string) func(context.Context) error {
		return func(ctx context.Context) error {
			out, err := c.output(ctx, "", c.kubectl, "exec", "-n", "front", "deploy/"+client, "-c", "app", "--", "/app", "once", "-url", "http://web.shop.svc.cluster.local/")
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}
	}
	denied := func(client string) func(context.Context) error {
		return func(ctx context.Context) error {
			if asks(client)(ctx) == nil {
				return fmt.Errorf("%s may call the shop", client)
			}
			return nil
		}
	}
	sidecars := func(namespace string) int {
		t.Helper()
		return len(strings.Fields(c.must(t, "", c.kubectl, "get", "pods", "-n", namespace, "-l", "osm-proxy-uuid", "-o", "name")))
	}

	t.Cleanup(func() {
		// The test's context has ended.
		if _, err := c.output(context.Background(), "", c.outrigger, "uninstall", "-n", "outrigger-system", "--name", "outrigger", "--yes"); err != nil {
			t.Error(err)
		}
		after, err := c.openServiceMesh(context.Background())
		if err != nil {
			t.Error(err)
		}
		kept(t, "uninstall", before, after)
	})
	c.timed(t, "install beside Open Service Mesh", func() {
		c.must(t, "", c.outrigger, "install", "-n", "outrigger-system", "--name", "outrigger", "--set",
			"osm.enablePermissiveTrafficPolicy=true,meshConfig.spec.traffic.inboundTLSMode=Permissive")
	})
	kept(t, "install", before, c.openServiceMeshIs(t))
	add := func(namespace string) {
		t.Helper()
		c.must(t, "", c.outrigger, "namespace", "remove", namespace, "--mesh-name", "osm")
		c.must(t, "", c.outrigger, "namespace", "add", namespace, "--mesh-name", "outrigger", "--mesh-namespace", "outrigger-system", "--class", c.classes(t)[0])
	}
	c.eventually(t, time.Minute, "before the migration everybody calls", asks("buyer"))

	// Servers move first, and accept plaintext.
	add("shop")
	c.restart(t, "shop/web")
	if n := sidecars("shop"); n < 2 {
		t.Errorf("%d pods of the shop have a sidecar, want 2", n)
	}
	c.eventually(t, time.Minute, "a client without a sidecar calls the shop with one", asks("buyer"))

	// Then the clients. When all have moved, the existing policies apply.
	add("front")
	for _, client := range []string{"buyer", "thief"} {
		c.restart(t, "front/"+client)
	}
	c.eventually(t, time.Minute, "both have moved", asks("buyer"))
	traffic := func(mode, permissive string) {
		t.Helper()
		c.must(t, "", c.kubectl, "patch", "meshconfig", "-n", "outrigger-system", "osm-mesh-config", "--type=merge",
			"-p", `{"spec": {"traffic": {"inboundTLSMode": "`+mode+`", "enablePermissiveTrafficPolicyMode": `+permissive+`}}}`)
	}
	traffic("Strict", "false")
	c.eventually(t, time.Minute, "the buyer calls with its TrafficTarget", asks("buyer"))
	c.eventually(t, time.Minute, "the thief without one is denied", denied("thief"))

	// Back again, clients first.
	traffic("Permissive", "true")
	for _, namespace := range []string{"front", "shop"} {
		c.must(t, "", c.outrigger, "namespace", "remove", namespace, "--mesh-name", "outrigger", "--mesh-namespace", "outrigger-system")
		c.must(t, "", c.kubectl, "label", "namespace", namespace, "openservicemesh.io/monitored-by=osm")
		c.must(t, "", c.kubectl, "annotate", "namespace", namespace, "openservicemesh.io/sidecar-injection=enabled")
	}
	for _, name := range []string{"front/buyer", "front/thief", "shop/web"} {
		c.restart(t, name)
	}
	c.eventually(t, time.Minute, "no pod has a sidecar", func(context.Context) error {
		if n := sidecars("shop") + sidecars("front"); n > 0 {
			return fmt.Errorf("%d pods still have Outrigger's sidecar", n)
		}
		return nil
	})
	c.eventually(t, time.Minute, "everybody calls as before", asks("thief"))
}

// openServiceMeshIs returns the objects of Open Service Mesh and its users' policies, without
// the API server's metadata.
func (c *cluster) openServiceMeshIs(t *testing.T) map[string]any {
	t.Helper()
	all, err := c.openServiceMesh(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// kept fails the test if a field of before has changed. A CRD of a newer version may add
// fields with defaults.
func kept(t *testing.T, what string, before, after any) {
	t.Helper()
	if path := differs("", before, after); path != "" {
		t.Errorf("'outrigger %s' changed an object of Open Service Mesh: %s", what, path)
	}
}

// differs returns the first field of before that differs in after, or "".
func differs(path string, before, after any) string {
	fields, isMap := before.(map[string]any)
	if !isMap {
		if reflect.DeepEqual(before, after) {
			return ""
		}
		return fmt.Sprintf("%s was %v and is %v", path, before, after)
	}
	now, _ := after.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if found := differs(path+"."+name, fields[name], now[name]); found != "" {
			return found
		}
	}
	return ""
}

func (c *cluster) openServiceMesh(ctx context.Context) (map[string]any, error) {
	all := map[string]any{}
	for _, what := range []string{"meshconfig osm-mesh-config", "secret osm-ca-bundle", "configmap preset-mesh-config", "deployment osm-controller", "mutatingwebhookconfiguration osm-webhook-osm", "traffictarget -n shop buyer", "httproutegroup -n shop shop"} {
		args := append([]string{"get", "-o", "json"}, strings.Fields(what)...)
		if !strings.Contains(what, "-n ") && !strings.HasPrefix(what, "mutating") {
			args = append(args, "-n", "osm-system")
		}
		text, err := c.output(ctx, "", c.kubectl, args...)
		if err != nil {
			return nil, err
		}
		var object map[string]any
		if err := json.Unmarshal([]byte(text), &object); err != nil {
			return nil, err
		}
		metadata, _ := object["metadata"].(map[string]any)
		for _, own := range []string{"resourceVersion", "managedFields", "generation", "uid", "creationTimestamp"} {
			delete(metadata, own)
		}
		delete(object, "status")
		// kubectl reads the newest version, which an installation may add.
		delete(object, "apiVersion")
		all[what] = object
	}
	return all, nil
}

// openServiceMeshCRDs are CRDs with the names, versions and conversion of Open Service
// Mesh's, and a schema that accepts everything.
func openServiceMeshCRDs() string {
	var all strings.Builder
	for _, kind := range []struct{ group, kind, plural, versions string }{
		{"config.openservicemesh.io", "MeshConfig", "meshconfigs", "v1alpha1 v1alpha2"},
		{"access.smi-spec.io", "TrafficTarget", "traffictargets", "v1alpha1 v1alpha2 v1alpha3"},
		{"specs.smi-spec.io", "HTTPRouteGroup", "httproutegroups", "v1alpha1 v1alpha2 v1alpha3 v1alpha4"},
	} {
		versions := strings.Fields(kind.versions)
		fmt.Fprintf(&all, `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[3]s.%[1]s, labels: {app.kubernetes.io/name: openservicemesh.io}}
spec:
  group: %[1]s
  scope: Namespaced
  names: {kind: %[2]s, listKind: %[2]sList, plural: %[3]s, singular: %[4]s}
  conversion:
    strategy: Webhook
    webhook:
      conversionReviewVersions: [v1]
      clientConfig: {service: {namespace: osm-system, name: osm-bootstrap, port: 9443, path: /convert}}
  versions:
`, kind.group, kind.kind, kind.plural, strings.ToLower(kind.kind))
		for i, version := range versions {
			fmt.Fprintf(&all, "  - {name: %s, served: true, storage: %v, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}\n", version, i == len(versions)-1)
		}
	}
	return all.String()
}

// openServiceMesh has the objects of its installation.
const openServiceMesh = `
apiVersion: v1
kind: Namespace
metadata: {name: osm-system}
---
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec:
  sidecar: {logLevel: error, sidecarImage: "envoyproxy/envoy-distroless:v1.22.2", localProxyMode: Localhost, configResyncInterval: 0s}
  traffic: {enableEgress: true, enablePermissiveTrafficPolicyMode: false}
  observability: {enableDebugServer: false, osmLogLevel: info, tracing: {enable: false}}
  certificate: {serviceCertValidityDuration: 24h, certKeyBitSize: 2048}
  featureFlags: {enableEgressPolicy: true, enableWASMStats: true}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: preset-mesh-config, namespace: osm-system}
data: {preset-mesh-config.json: "{}"}
---
apiVersion: v1
kind: Secret
metadata: {name: osm-ca-bundle, namespace: osm-system}
stringData: {ca.crt: theirs, private.key: theirs, expiration: theirs}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: osm-controller, namespace: osm-system, labels: {app: osm-controller, meshName: osm}}
spec:
  replicas: 0
  selector: {matchLabels: {app: osm-controller}}
  template:
    metadata: {labels: {app: osm-controller}}
    spec: {containers: [{name: osm-controller, image: "openservicemesh/osm-controller:v1.2.4"}]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: osm-webhook-osm, labels: {app: osm-injector}}
webhooks:
- name: osm-inject.k8s.io
  clientConfig: {service: {name: osm-injector, namespace: osm-system, path: /mutate-pod-creation, port: 9090}}
  rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}]
  namespaceSelector: {matchLabels: {openservicemesh.io/monitored-by: osm}}
  failurePolicy: Ignore
  timeoutSeconds: 1
  sideEffects: None
  admissionReviewVersions: [v1]
`

// openServiceMeshPolicies are policies of its users.
const openServiceMeshPolicies = `
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: shop, namespace: shop}
spec:
  matches: [{name: buy, pathRegex: "/", methods: [GET]}]
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: buyer, namespace: shop}
spec:
  destination: {kind: ServiceAccount, name: default, namespace: shop}
  sources: [{kind: ServiceAccount, name: buyer, namespace: front}]
  rules: [{kind: HTTPRouteGroup, name: shop, matches: [buy]}]
`

// migrationClients are a client with access and one without.
const migrationClients = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: buyer, namespace: front}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: buyer, namespace: front}
spec:
  selector: {matchLabels: {app: buyer}}
  template:
    metadata: {labels: {app: buyer}}
    spec: {serviceAccountName: buyer, containers: [{name: app, image: "%[1]s", args: [serve, -end-after, 0s]}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: thief, namespace: front}
spec:
  selector: {matchLabels: {app: thief}}
  template:
    metadata: {labels: {app: thief}}
    spec: {containers: [{name: app, image: "%[1]s", args: [serve, -end-after, 0s]}]}
`
