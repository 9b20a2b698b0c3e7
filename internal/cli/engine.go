package cli

import (
	"context"
	"io"
	"os"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/offline"
	"github.com/outrigger-mesh/outrigger/internal/injector"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
)

// engineFlags select the configuration with which a command injects: files, or the objects
// of a cluster.
type engineFlags struct {
	kube                             kubeFlags
	mesh                             meshFlags
	meshConfig, injectConfig, values string
	fromCluster                      bool
	kubeVersion                      string
	// found is the MeshConfig in the manifests. It takes precedence over --mesh-config.
	found *v1alpha2.MeshConfig
	// known are namespaces that have been read already; --from-cluster does not read them
	// again.
	known map[string]*inject.Namespace
	// namespace is the namespace of objects that name none.
	namespace string
	// problems receives the Problems of the MeshConfig, one per line.
	problems io.Writer
}

func (f *engineFlags) add(flags *pflag.FlagSet) {
	f.addConfig(flags)
	flags.BoolVar(&f.fromCluster, "from-cluster", false, "read namespaces from the cluster, and all configuration that is not given as a file")
	flags.StringVarP(&f.namespace, "namespace", "n", "", "namespace of objects that do not name one")
}

// addConfig adds the flags that every decision needs.
func (f *engineFlags) addConfig(flags *pflag.FlagSet) {
	f.kube.add(flags)
	f.mesh.add(flags)
	flags.StringVar(&f.mesh.Config, "mesh-config-name", "osm-mesh-config", "with --from-cluster: name of the MeshConfig in the control plane's namespace")
	flags.StringVar(&f.meshConfig, "mesh-config", "", "file with a MeshConfig")
	flags.StringVar(&f.injectConfig, "inject-config", "", `file with the injection config, as under the key "config" of the injector's ConfigMap`)
	flags.StringVar(&f.values, "values", "", `file with the values for templates, as under the key "values"`)
	flags.StringVar(&f.kubeVersion, "kube-version", "", "Kubernetes version of the cluster; it determines whether sidecars are native (default 1.30)")
}

// offlineVersion is the version of Kubernetes without a flag and without a cluster: the
// oldest supported one.
const offlineVersion = "1.30"

// build returns an engine that knows the given namespaces or, with --from-cluster, those of
// the cluster.
func (f *engineFlags) build(ctx context.Context, namespaces map[string]*inject.Namespace) (*inject.Injector, error) {
	parts := injector.Assembly{Mesh: meshconfig.Mesh(f.mesh), Namespace: f.assumed(namespaces), Log: discard}
	native, err := nativeSince129(f.kubeVersion)
	if err != nil {
		return nil, err
	}
	parts.NativeSidecars = func(context.Context) (bool, error) { return native, nil }

	var (
		meshConfig     *v1alpha2.MeshConfig
		config, values string
	)
	if f.fromCluster {
		c, err := newCluster(f.kube, f.mesh)
		if err != nil {
			return nil, err
		}
		parts.Namespace = func(ctx context.Context, name string) (*inject.Namespace, error) {
			if ns := f.known[name]; ns != nil {
				return ns, nil
			}
			return c.namespace(ctx, name)
		}
		if f.kubeVersion == "" {
			parts.NativeSidecars, parts.PodCertificates = c.source.NativeSidecars, injector.PodCertificates(c.source, f.mesh.Name)
		}
		if meshConfig, err = c.meshConfig(ctx); err != nil {
			return nil, err
		}
		if config, values, err = c.injection(ctx); err != nil {
			return nil, err
		}
	}
	switch {
	case f.found != nil:
		meshConfig = f.found
	case f.meshConfig != "":
		if meshConfig, err = meshconfig.ReadFile(f.meshConfig); err != nil {
			return nil, err
		}
	case !f.fromCluster:
		// The chart's webhook would use this one.
		if meshConfig, err = meshconfig.OfChart(f.mesh.Namespace); err != nil {
			return nil, err
		}
	}
	if config, err = readOr(f.injectConfig, config); err != nil {
		return nil, err
	}
	if values, err = readOr(f.values, values); err != nil {
		return nil, err
	}
	loaded, err := inject.NewConfig(config, values)
	if err != nil {
		return nil, err
	}
	resolved := meshconfig.NewInjectionResolver().Resolve(meshConfig)
	for _, problem := range resolved.Problems() {
		terminal.Fprintln(f.problems, "warning:", problem)
	}
	parts.Config = source.NewLive(resolved)
	engine := injector.New(parts)
	engine.Use(loaded)
	return engine, nil
}

// assumed returns a function that finds namespaces in the given ones. Others are treated as
// members of the mesh with injection enabled, by the selected revision.
func (f *engineFlags) assumed(namespaces map[string]*inject.Namespace) func(context.Context, string) (*inject.Namespace, error) {
	lookup := offline.NamespaceLookup(namespaces, f.mesh.Name)
	return func(ctx context.Context, name string) (*inject.Namespace, error) {
		ns, err := lookup(ctx, name)
		if _, given := namespaces[name]; err == nil && !given {
			ns.Labels[metadata.Revision] = f.mesh.Revision
		}
		return ns, err
	}
}

func nativeSince129(kubeVersion string) (bool, error) {
	if kubeVersion == "" {
		kubeVersion = offlineVersion
	}
	v, err := version.ParseGeneric(kubeVersion)
	if err != nil {
		return false, usage.Errorf("--kube-version %q: write it as 1.30", kubeVersion)
	}
	return v.AtLeast(version.MajorMinor(1, 29)), nil
}

func readOr(file, otherwise string) (string, error) {
	if file == "" {
		return otherwise, nil
	}
	b, err := os.ReadFile(file)
	return string(b), err
}

// podNamespace returns the namespace of --namespace or of the kubeconfig's
// context.
func (f *engineFlags) podNamespace() (string, error) {
	if f.namespace != "" {
		return f.namespace, nil
	}
	return f.kube.namespace()
}
