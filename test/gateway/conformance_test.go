// Package gateway runs the conformance suite of Gateway API for service meshes on the
// cluster of KUBECONFIG. run.sh passes the suite's flags.
package gateway

import (
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/gateway-api/conformance"
	meshtests "sigs.k8s.io/gateway-api/conformance/tests/mesh"
	"sigs.k8s.io/gateway-api/pkg/features"
	"sigs.k8s.io/yaml"
)

// TestConformance runs the suite, with all features unless some are named by the flag
// -supported-features. With SERVERS, the servers' proxies are of that class, and the clients'
// of the class in the annotations of the suite's namespaces.
func TestConformance(t *testing.T) {
	options := conformance.DefaultOptions(t)
	if len(options.SupportedFeatures) == 0 {
		options.SupportedFeatures = allFeatures()
	}
	if class := os.Getenv("SERVERS"); class != "" {
		const name = "mesh/manifests.yaml"
		manifests, err := fs.ReadFile(conformance.Manifests, name)
		if err != nil {
			t.Fatal(err)
		}
		options.ManifestFS = append(options.ManifestFS, fstest.MapFS{"servers.yaml": {Data: []byte(withServers(t, string(manifests), class))}})
		options.MeshManifests = "servers.yaml"
	}
	conformance.RunConformanceWithOptions(t, options)
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
