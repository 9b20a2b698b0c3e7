// Package meshconfig resolves MeshConfigs for the programs of the mesh: with the drivers that
// are linked into them, the variables of their environment, and where there is no MeshConfig
// the chart's.
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
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
)

// Mesh names a mesh and its objects.
type Mesh struct {
	// Name is the value of the label openservicemesh.io/monitored-by.
	Name string
	// Namespace is the control plane's, and Config the MeshConfig in it.
	Namespace, Config string
	// Revision is the injector's.
	Revision string
}

// Options are those of every Config that this program makes. Drivers that are registered
// later are not among its classes.
func Options() source.ConfigOptions {
	return source.ConfigOptions{
		Classes: sidecar.Drivers(), BuiltinImage: sidecar.Image, CheckImage: sidecar.CheckImage, Env: os.Getenv, InitImage: InitImage(),
	}
}

// Resolve returns the configuration that a MeshConfig stands for, and what is wrong with it.
// A nil MeshConfig stands for the defaults of its fields.
func Resolve(obj *v1alpha2.MeshConfig) (*source.Config, []mesh.Problem) {
	return source.NewConfig(obj, Options())
}

// Follow returns the configuration of a cluster's mesh, which is that of no MeshConfig until
// the source has read one.
func Follow(facts *kube.Source, resolve func(*v1alpha2.MeshConfig) (*source.Config, []mesh.Problem)) *source.Live {
	config, _ := resolve(nil)
	live := source.NewLive(config)
	facts.OnMeshConfig(func(obj *v1alpha2.MeshConfig) {
		config, _ := resolve(obj)
		live.Set(config)
	})
	return live
}

// ResolveForInjection is Resolve for an injector, which finds the image of the init container
// in three places: the MeshConfig, the injection config, and then InitImage. So a Config of
// this function has none but the MeshConfig's.
func ResolveForInjection(obj *v1alpha2.MeshConfig) (*source.Config, []mesh.Problem) {
	options := Options()
	options.InitImage = ""
	return source.NewConfig(obj, options)
}

// InitImage is the init container's image where no configuration names one: that of the
// variable OUTRIGGER_INIT_IMAGE, which the chart sets, or else this version's.
func InitImage() string { return cmp.Or(os.Getenv("OUTRIGGER_INIT_IMAGE"), version.InitImage()) }

// chart is the MeshConfig that the chart installs with its own values. The chart is not asked
// at run time, because that would need Helm.
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
