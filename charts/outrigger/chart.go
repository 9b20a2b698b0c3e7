// Package chart is the Helm chart of Outrigger inside the program: its files, and
// how they are rendered without Helm and without a cluster.
//
// The folder is an ordinary chart, and Helm ignores the Go files in it. The package
// imports nothing else of this module.
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
//go:embed Chart.yaml README.md values.yaml values-ha.yaml values.schema.json crds all:templates
var FS embed.FS

// releasedDigests are the digests of the images in programs of a release, as
// name=digest,name=digest with the names of osm.image.digest. The linker sets it.
var releasedDigests string

// releasedVersion is the version of a program that was made as another one than its
// source's, such as for a test of upgrades. The linker sets it.
var releasedVersion string

// Release is what the chart comes to with some values. Each object is one YAML
// document without a separator.
type Release struct {
	// Namespace is the control plane's. The objects name it themselves.
	Namespace string
	// CRDs are the CustomResourceDefinitions, which do not depend on the values.
	CRDs []string
	// Objects are all other objects, in the order in which Helm installs them. The
	// Namespace itself is not among them, as Helm wants it to be there before.
	Objects []string
	// Notes are what the user should read, warnings about values included.
	Notes string
}

// Render renders the chart for a namespace, with values merged over the chart's
// own; osm.osmNamespace among them wins over the namespace. The error says which
// values the chart refuses. The map is not changed.
func Render(ctx context.Context, namespace string, values map[string]any) (*Release, error) {
	chart, err := Load()
	if err != nil {
		return nil, err
	}
	return RenderChart(ctx, chart, namespace, values)
}

// RenderChart is Render for a chart as it was released, perhaps of another version.
func RenderChart(ctx context.Context, chart *chartv2.Chart, namespace string, values map[string]any) (*Release, error) {
	options := common.ReleaseOptions{Name: chart.Name(), Namespace: namespace, Revision: 1, IsInstall: true}
	input, err := util.ToRenderValues(chart, values, options, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{}.RenderWithContext(ctx, chart, input)
	if err != nil {
		return nil, err
	}

	release := &Release{Namespace: namespace}
	if own, err := input.PathValue("Values.osm.osmNamespace"); err == nil && own != "" {
		// The schema lets nothing else than a string pass.
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

// digestAnnotations returns the annotations by which the templates know the digests.
func digestAnnotations(digests string) map[string]string {
	annotations := make(map[string]string)
	for pair := range strings.SplitSeq(digests, ",") {
		if name, digest, found := strings.Cut(pair, "="); found {
			annotations["digest."+name] = digest
		}
	}
	return annotations
}

// Load returns the chart as Helm takes it, with the digests of the released images. Each
// call returns a chart of its own.
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
