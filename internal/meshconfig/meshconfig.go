// Package meshconfig resolves MeshConfigs for the programs of the mesh. It uses the drivers
// linked into the program and its environment variables, and the chart's MeshConfig if there
// is no other.
package meshconfig

import (
	"cmp"
	_ "embed" // For chart.
	"fmt"
	"os"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/internal/version"
	"github.com/outrigger-mesh/outrigger/sidecar"
)

// Mesh names a mesh and its objects.
type Mesh struct {
	// Name is the value of the label openservicemesh.io/monitored-by.
	Name string
	// Namespace is that of the control plane; Config names the MeshConfig in it.
	Namespace, Config string
	// Revision is the injector's.
	Revision string
}

// Options returns the options of every Config that this program makes. Classes of drivers
// registered after the call are missing.
func Options() source.ConfigOptions {
	return source.ConfigOptions{
		Classes: sidecar.Drivers(), BuiltinImage: sidecar.Image, CheckImage: sidecar.CheckImage, LackedByImage: sidecar.LackedByImage,
		Env: os.Getenv, InitImage: InitImage(),
	}
}

// NewResolver returns a Resolver for all parts of a program that read the MeshConfig.
func NewResolver() *source.Resolver { return source.NewResolver(Options()) }

// NewInjectionResolver returns a Resolver for an injector, which looks for the init container's
// image in the MeshConfig, then in the injection config, and then uses InitImage. So its Config
// has an init image only if the MeshConfig names one.
func NewInjectionResolver() *source.Resolver {
	options := Options()
	options.InitImage = ""
	return source.NewResolver(options)
}

// Follow returns the configuration of a cluster's mesh, which follows its MeshConfig. Until
// the source has read one, all fields have their defaults.
func Follow(facts *kube.Source, resolver *source.Resolver) *source.Live {
	live := source.NewLive(resolver.Resolve(nil))
	facts.OnMeshConfig(func(obj *v1alpha2.MeshConfig) { live.Set(resolver.Resolve(obj)) })
	return live
}

// InitImage returns the default image of the init container: that of the environment variable
// OUTRIGGER_INIT_IMAGE, which the chart sets, or otherwise this version's.
func InitImage() string { return cmp.Or(os.Getenv("OUTRIGGER_INIT_IMAGE"), version.InitImage()) }

// chart is the MeshConfig that the chart installs by default. It is embedded because rendering
// the chart would need Helm.
//
//go:embed chart.yaml
var chart []byte

// OfChart returns the MeshConfig that the chart installs in the namespace.
func OfChart(namespace string) (*v1alpha2.MeshConfig, error) {
	obj := new(v1alpha2.MeshConfig)
	if err := yaml.UnmarshalStrict(chart, obj); err != nil {
		return nil, fmt.Errorf("the chart's MeshConfig: %w", err)
	}
	obj.Namespace = namespace
	return obj, nil
}

// ReadFile reads a MeshConfig of either version, and nothing else, from a file.
func ReadFile(file string) (*v1alpha2.MeshConfig, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var obj v1alpha2.MeshConfig
	if err := yaml.UnmarshalStrict(b, &obj); err != nil {
		return nil, fmt.Errorf("MeshConfig in %s: %w", file, err)
	}
	group, _, _ := strings.Cut(obj.APIVersion, "/")
	if obj.Kind != "MeshConfig" || group != v1alpha2.GroupName {
		return nil, fmt.Errorf("%s holds kind %q of apiVersion %q, not a MeshConfig of %s", file, obj.Kind, obj.APIVersion, v1alpha2.GroupName)
	}
	return &obj, nil
}
