// Package gateway runs the conformance suite of Gateway API, for service meshes or for gateways, on
// the cluster of KUBECONFIG. run.sh passes the suite's flags.
package gateway

import (
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gateway "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/conformance"
	meshtests "sigs.k8s.io/gateway-api/conformance/tests/mesh"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/features"
	"sigs.k8s.io/yaml"
)

// TestConformance runs the suite, unless the flag -supported-features names the features: for
// meshes with all, and for gateways with those that their class claims in its status. With SERVERS, the
// servers' proxies are of that class, and the clients' of the class in the annotations of the
// suite's namespaces.
func TestConformance(t *testing.T) {
	options := conformance.DefaultOptions(t)
	switch {
	case slices.ContainsFunc(options.ConformanceProfiles, isOfGateways):
		if len(options.SupportedFeatures) == 0 {
			options.SupportedFeatures = claimed(t, options.Client, options.GatewayClassName)
		}
	case len(options.SupportedFeatures) == 0:
		options.SupportedFeatures = allFeatures()
	}
	if class := os.Getenv("SERVERS"); class != "" {
		servers := withServers(t, manifests(t, "mesh/manifests.yaml"), class)
		options.ManifestFS = append(options.ManifestFS, fstest.MapFS{"servers.yaml": {Data: []byte(servers)}})
		options.MeshManifests = "servers.yaml"
	}
	conformance.RunConformanceWithOptions(t, options)
}

func isOfGateways(profile suite.ConformanceProfileName) bool {
	return strings.HasPrefix(string(profile), "GATEWAY-")
}

// manifests returns a file of the suite's manifests.
func manifests(t *testing.T, name string) string {
	t.Helper()
	text, err := fs.ReadFile(conformance.Manifests, name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// claimed returns the features in the status of a GatewayClass, which its controller may not have
// written yet.
func claimed(t *testing.T, c client.Client, class string) []features.FeatureName {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		var of gateway.GatewayClass
		err := c.Get(t.Context(), client.ObjectKey{Name: class}, &of)
		if err == nil && len(of.Status.SupportedFeatures) > 0 {
			var names []features.FeatureName
			for _, feature := range of.Status.SupportedFeatures {
				names = append(names, features.FeatureName(feature.Name))
			}
			return names
		}
		if time.Now().After(deadline) {
			t.Fatalf("GatewayClass %s claims no features in its status: %v", class, err)
		}
	}
}

// allFeatures returns the features of all tests for service meshes, so that none is skipped,
// also in a later version of the suite.
func allFeatures() []features.FeatureName {
	var all []features.FeatureName
	for _, test := range meshtests.MeshConformanceTests {
		all = append(all, test.Features...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// withServers returns the suite's manifests with separate servers. The suite sends its
// requests from a pod with the labels of echo-v1, which is among the servers too. Here the
// pod with these labels is a copy that is in no service.
func withServers(t *testing.T, manifests, class string) string {
	t.Helper()
	var changed []string
	add := func(o unstructured.Unstructured) {
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		changed = append(changed, string(text))
	}
	set := func(o unstructured.Unstructured, value string, field ...string) {
		if err := unstructured.SetNestedField(o.Object, value, field...); err != nil {
			t.Fatal(err)
		}
	}
	for text := range strings.SplitSeq(manifests, "\n---\n") {
		var o unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		if o.Object == nil {
			continue
		}
		inMesh := o.GetNamespace() == "gateway-conformance-mesh"
		if inMesh && o.GetKind() == "Deployment" {
			if o.GetName() == "echo-v1" {
				client := *o.DeepCopy()
				client.SetName("client")
				add(client)
				set(o, "v1-server", "spec", "selector", "matchLabels", "version")
				set(o, "v1-server", "spec", "template", "metadata", "labels", "version")
			}
			set(o, "server", "spec", "template", "metadata", "labels", "role")
			set(o, class, "spec", "template", "metadata", "annotations", "openservicemesh.io/sidecar-class")
		}
		if inMesh && o.GetKind() == "Service" {
			set(o, "server", "spec", "selector", "role")
			if version, _, _ := unstructured.NestedString(o.Object, "spec", "selector", "version"); version == "v1" {
				set(o, "v1-server", "spec", "selector", "version")
			}
		}
		add(o)
	}
	return strings.Join(changed, "---\n")
}
