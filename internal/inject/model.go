package inject

import (
	"context"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// ForeignSidecars returns the names of the containers by which the rule sidecar_exists recognizes
// other meshes, sorted.
func ForeignSidecars() []string { return slices.Sorted(maps.Keys(foreignSidecars)) }

// ExemptNamespaces returns the names of the namespaces of the rule namespace_exempt, without the
// control plane's.
func ExemptNamespaces() []string { return slices.Clone(exemptNamespaces) }

// Rules are the settings on which the decision table depends besides the pod and its namespace.
type Rules struct {
	// MeshName and MeshNamespace are those of the Options.
	MeshName, MeshNamespace string
	// Revisions are the names by which namespaces and pods may choose this injector, its own
	// first.
	Revisions []string
	// Enabled says that the policy is to inject pods about which no other rule decides.
	Enabled bool
	// Never and Always select pods by their labels. None of them is empty.
	Never, Always []metav1.LabelSelector
	// Istio says that Istio's labels and annotations are recognized.
	Istio bool
}

// Model is the injection by one version of the configuration. It is immutable and safe for
// concurrent use.
type Model struct {
	opts   Options
	config *Config
}

// Model returns the injection by the current configuration, or nil if there is none. Pods of a
// Model get native sidecars, unless the configuration forbids them.
func (i *Injector) Model() *Model {
	config := i.config.Load()
	if config == nil {
		return nil
	}
	opts, configurator := i.opts, i.opts.Configurator()
	opts.Configurator = func() driver.Configurator { return configurator }
	opts.NativeSidecars = func(context.Context) (bool, error) { return true, nil }
	return &Model{opts, config}
}

// Rules returns the settings of the decision table.
func (m *Model) Rules() Rules {
	s := &m.config.settings
	return Rules{
		MeshName: m.opts.MeshName, MeshNamespace: m.opts.MeshNamespace,
		Revisions: append([]string{m.opts.Revision}, s.RevisionTags...), Enabled: s.Policy == "enabled",
		Never: s.NeverInjectSelector, Always: s.AlwaysInjectSelector, Istio: s.Compat.Istio,
	}
}

// DefaultClass returns the class of pods that choose none.
func (m *Model) DefaultClass() string { return m.opts.Configurator().GetSidecarClass() }

// NativeSidecars reports whether pods get native sidecars.
func (m *Model) NativeSidecars() bool { return m.config.settings.NativeSidecars != "false" }

// ReadsPods returns the first of the templates for pods of the class that does more with the values
// of a pod than to print them, or "" if there is none. The contents of the sidecar then depend on
// the pod in ways that are only known when the template is rendered. It also returns the name of a
// driver that has no template.
func (m *Model) ReadsPods(class string) string {
	for _, name := range m.config.defaultNames {
		if name == sidecarTemplate {
			name = class
		}
		// Without a template the driver's own code makes the sidecar.
		if !m.config.templates.Has(name) || !m.config.templates.PrintsOnly(name) {
			return name
		}
	}
	return ""
}

// Proxyless reports whether a class has no proxy.
func (m *Model) Proxyless(class string) bool { return sidecar.IsProxyless(class) }

// Inject is Injector.Inject for a pod of the namespace.
func (m *Model) Inject(ctx context.Context, namespace Namespace, req Request) Result {
	opts := m.opts
	opts.Namespace = func(context.Context, string) (*Namespace, error) { return &namespace, nil }
	req.Namespace = namespace.Name
	return New(opts, m.config).Inject(ctx, req)
}
