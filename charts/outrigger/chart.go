// Package chart embeds Outrigger's Helm chart in the program and renders it without Helm
// and without a cluster.
//
// The folder is an ordinary chart; Helm ignores the Go files in it. The package imports no
// other package of this module.
package chart

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
)

// FS holds the chart's files, with Chart.yaml at its root.
//
//go:embed Chart.yaml README.md values.yaml values-ha.yaml values.schema.json crds monitoring all:templates
var FS embed.FS

// releasedDigests holds the digests of a release's images, as name=digest,name=digest with
// the names of osm.image.digest. The linker sets it in released programs.
var releasedDigests string

// releasedVersion overrides the version in the source, for example to test upgrades. The
// linker sets it.
var releasedVersion string

// assumedVersion is the Kubernetes version for which Render renders: the oldest one that serves all
// kinds that the chart and the controller can make.
const assumedVersion = "v1.36.0"

// Release is the rendered chart. Each object is one YAML document without a separator.
type Release struct {
	// Namespace is the control plane's. The objects name it themselves.
	Namespace string
	// CRDs are the CustomResourceDefinitions, which do not depend on the values.
	CRDs []string
	// Objects are all other objects, in the order in which Helm installs them. They do
	// not include the Namespace itself, which Helm expects to exist.
	Objects []string
	// Notes are the notes for the user, including warnings about values.
	Notes string
}

// Render renders the chart for a namespace, with values merged over the chart's own;
// osm.osmNamespace takes precedence over the namespace. It does not change the map. The
// error names the values that the chart rejects.
func Render(ctx context.Context, namespace string, values map[string]any) (*Release, error) {
	chart, err := Load()
	if err != nil {
		return nil, err
	}
	return RenderChart(ctx, chart, namespace, values)
}

// RenderChart is Render for another version of the chart.
func RenderChart(ctx context.Context, chart *chartv2.Chart, namespace string, values map[string]any) (*Release, error) {
	options := common.ReleaseOptions{Name: chart.Name(), Namespace: namespace, Revision: 1, IsInstall: true}
	// The cluster is not known. Helm would assume the version of its own libraries.
	capabilities := *common.DefaultCapabilities
	capabilities.KubeVersion = common.KubeVersion{Version: assumedVersion, Major: "1", Minor: "36"}
	input, err := util.ToRenderValues(chart, values, options, &capabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{}.RenderWithContext(ctx, chart, input)
	if err != nil {
		return nil, err
	}

	release := &Release{Namespace: namespace}
	if own, err := input.PathValue("Values.osm.osmNamespace"); err == nil && own != "" {
		// The schema allows only a string.
		release.Namespace = own.(string)
	}
	for _, crd := range chart.CRDObjects() {
		release.CRDs = append(release.CRDs, strings.TrimPrefix(string(crd.File.Data), "---\n"))
	}
	notes := path.Join(chart.ChartFullPath(), "templates", "NOTES.txt")
	release.Notes = files[notes]
	delete(files, notes)
	_, manifests, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		return nil, err
	}
	for _, m := range manifests {
		release.Objects = append(release.Objects, m.Content)
	}
	return release, nil
}

// digestAnnotations returns the annotations in which the templates look up the digests.
func digestAnnotations(digests string) map[string]string {
	annotations := make(map[string]string)
	for pair := range strings.SplitSeq(digests, ",") {
		if name, digest, found := strings.Cut(pair, "="); found {
			annotations["digest."+name] = digest
		}
	}
	return annotations
}

// Load returns a new copy of the chart for Helm, with the digests of the released images.
func Load() (*chartv2.Chart, error) {
	chart, err := load()
	if err != nil {
		return nil, fmt.Errorf("loading the embedded chart: %w", err)
	}
	chart.Metadata.Annotations = digestAnnotations(releasedDigests)
	if releasedVersion != "" {
		chart.Metadata.Version, chart.Metadata.AppVersion = releasedVersion, releasedVersion
	}
	return chart, nil
}

func load() (*chartv2.Chart, error) {
	var files []*archive.BufferedFile
	err := fs.WalkDir(FS, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := FS.ReadFile(name)
		files = append(files, &archive.BufferedFile{Name: name, Data: data})
		return err
	})
	if err != nil {
		return nil, err
	}
	return loader.LoadFiles(files)
}
