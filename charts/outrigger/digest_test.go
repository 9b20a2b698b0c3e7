package chart

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestReleasedDigests checks that a released chart refers to its images by digest, even in
// a mirror, unless the values set another image.
func TestReleasedDigests(t *testing.T) {
	before := releasedDigests
	t.Cleanup(func() { releasedDigests = before })
	releasedDigests = "outrigger=sha256:c0,outriggerInit=sha256:11,outriggerCNI=sha256:c1"
	for values, want := range map[string][]string{
		"": {"docker.io/outriggermesh/outrigger@sha256:c0", "docker.io/outriggermesh/outrigger-init@sha256:11"},
		"{osm: {image: {registry: mirror.example.com/mesh}}}": {"mirror.example.com/mesh/outrigger@sha256:c0", "mirror.example.com/mesh/outrigger-init@sha256:11"},
		"{osm: {image: {tag: canary}}}":                       {"docker.io/outriggermesh/outrigger:canary", "docker.io/outriggermesh/outrigger-init:canary"},
		"{osm: {image: {name: {outrigger: own}}}}":            {"docker.io/outriggermesh/own:0.2.0", "docker.io/outriggermesh/outrigger-init@sha256:11"},
		"{cni: {enabled: true}}":                              {"docker.io/outriggermesh/outrigger@sha256:c0", "docker.io/outriggermesh/outrigger-init@sha256:11", "docker.io/outriggermesh/outrigger-cni@sha256:c1"},
		"{osm: {image: {digest: {outrigger: 'sha256:aa'}}}}":  {"docker.io/outriggermesh/outrigger@sha256:aa", "docker.io/outriggermesh/outrigger-init@sha256:11"},
	} {
		var v map[string]any
		if err := yaml.Unmarshal([]byte(values), &v); err != nil {
			t.Fatal(err)
		}
		release, err := Render(t.Context(), "osm-system", v)
		if err != nil {
			t.Fatal(err)
		}
		images := make(map[string]bool)
		for line := range strings.Lines(strings.Join(release.Objects, "\n")) {
			if _, image, found := strings.Cut(strings.ReplaceAll(line, `"`, ""), "image: "); found {
				images[strings.TrimSpace(image)] = true
			}
			if _, image, found := strings.Cut(line, "initContainerImage: "); found {
				images[strings.Trim(strings.TrimSpace(image), `"`)] = true
			}
		}
		for _, image := range want {
			if !images[image] {
				t.Errorf("values %q: no object names image %s, but %v", values, image, images)
			}
		}
		if len(images) != len(want) {
			t.Errorf("values %q: the images are %v, want %v", values, images, want)
		}
	}
}
