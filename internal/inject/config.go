package inject

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/podtemplate"
)

// Config is one version of the injector's configuration: the files "config" and
// "values", and the drivers' templates. It is immutable.
type Config struct {
	settings     settings
	never        []labels.Selector
	always       []labels.Selector
	templates    *podtemplate.Set
	defaultNames []string
}

// settings is the content of the file "config". docs/templates.md describes it.
type settings struct {
	// RevisionTags are additional names of the injector's revision.
	RevisionTags []string `json:"revisionTags,omitempty"`
	// Policy applies if no other rule decides: "enabled" or "disabled".
	Policy string `json:"policy,omitempty"`
	// DefaultTemplates are applied to pods that name none.
	DefaultTemplates []string `json:"defaultTemplates,omitempty"`
	// Templates add to or replace the drivers' templates.
	Templates map[string]string `json:"templates,omitempty"`
	// NeverInjectSelector and AlwaysInjectSelector decide for pods without a label
	// or annotation that does.
	NeverInjectSelector  []metav1.LabelSelector `json:"neverInjectSelector,omitempty"`
	AlwaysInjectSelector []metav1.LabelSelector `json:"alwaysInjectSelector,omitempty"`
	// InjectedAnnotations are put on every injected pod.
	InjectedAnnotations map[string]string `json:"injectedAnnotations,omitempty"`
	// NativeSidecars is "auto", "true" or "false".
	NativeSidecars string `json:"nativeSidecars,omitempty"`
	// HoldApplicationUntilReady is true unless it is set to false.
	HoldApplicationUntilReady *bool `json:"holdApplicationUntilReady,omitempty"`
	// ImagePullPolicy applies to the injected containers; IfNotPresent if empty.
	ImagePullPolicy string `json:"imagePullPolicy,omitempty"`
	// InitContainerImage is the init container's image if the mesh's configuration
	// names none. It is set here so that offline injection uses the webhook's image.
	InitContainerImage string `json:"initContainerImage,omitempty"`
	// CNI says that Outrigger's CNI plug-in on the nodes redirects the pods' traffic,
	// so that no init container needs the privileges to do it.
	CNI    bool `json:"cni,omitempty"`
	Compat struct {
		// Istio enables support of Istio's labels and annotations.
		Istio bool `json:"istio,omitempty"`
	} `json:"compat,omitempty"`
}

// NewConfig parses the files "config" and "values"; either may be empty. After an
// error neither may be used.
func NewConfig(config, values string) (*Config, error) {
	c := &Config{}
	if err := yaml.UnmarshalStrict([]byte(config), &c.settings); err != nil {
		return nil, fmt.Errorf("injection config: %w", err)
	}
	vals := map[string]any{}
	if err := yaml.Unmarshal([]byte(values), &vals); err != nil {
		return nil, fmt.Errorf("injection values: %w", err)
	}
	if err := c.settings.validate(); err != nil {
		return nil, fmt.Errorf("injection config: %w", err)
	}
	var err error
	if c.never, err = selectors("neverInjectSelector", c.settings.NeverInjectSelector); err != nil {
		return nil, fmt.Errorf("injection config: %w", err)
	}
	if c.always, err = selectors("alwaysInjectSelector", c.settings.AlwaysInjectSelector); err != nil {
		return nil, fmt.Errorf("injection config: %w", err)
	}
	texts := sidecar.PodTemplates()
	maps.Copy(texts, c.settings.Templates)
	if c.templates, err = podtemplate.NewSet(texts, vals); err != nil {
		return nil, fmt.Errorf("injection config: %w", err)
	}
	c.defaultNames = c.settings.DefaultTemplates
	if len(c.defaultNames) == 0 {
		c.defaultNames = []string{sidecarTemplate}
	}
	for _, name := range c.defaultNames {
		if name != sidecarTemplate && !c.knows(name) {
			return nil, fmt.Errorf("injection config: defaultTemplates: there is no template or driver %q", name)
		}
	}
	return c, c.checkTemplates()
}

// checkTemplates renders every template for a sample pod, so that a broken template is
// rejected when the configuration is loaded.
func (c *Config) checkTemplates() error {
	for _, native := range []bool{true, false} {
		for _, name := range c.templates.Names() {
			sample := sampleContext(native)
			sample.Sidecar.CNI = c.settings.CNI
			if err := c.templates.Apply(sample, name, sampleSpec); err != nil {
				return fmt.Errorf("injection config: %w", err)
			}
		}
	}
	return nil
}

func (s *settings) validate() error {
	if !slices.Contains([]string{"", "enabled", "disabled"}, s.Policy) {
		return fmt.Errorf("policy is %q; it must be enabled or disabled", s.Policy)
	}
	if !slices.Contains([]string{"", "auto", "true", "false"}, s.NativeSidecars) {
		return fmt.Errorf("nativeSidecars is %q; it must be auto, true or false", s.NativeSidecars)
	}
	if !slices.Contains([]string{"", "Always", "IfNotPresent", "Never"}, s.ImagePullPolicy) {
		return fmt.Errorf("imagePullPolicy is %q; it must be Always, IfNotPresent or Never", s.ImagePullPolicy)
	}
	for name, text := range s.Templates {
		if name == sidecarTemplate || name == "" {
			return fmt.Errorf("templates: %q cannot be a template's name; it stands for the pod's driver", name)
		}
		if text == "" {
			return fmt.Errorf("templates: %s is empty", name)
		}
	}
	return nil
}

func selectors(field string, in []metav1.LabelSelector) ([]labels.Selector, error) {
	out := make([]labels.Selector, 0, len(in))
	for i := range in {
		s, err := metav1.LabelSelectorAsSelector(&in[i])
		if err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", field, i, err)
		}
		// An empty selector would match every pod of the mesh.
		if s.Empty() {
			return nil, fmt.Errorf("%s[%d]: it is empty; name a label", field, i)
		}
		out = append(out, s)
	}
	return out, nil
}

// knows reports whether name is a template or a driver.
func (c *Config) knows(name string) bool {
	if c.templates.Has(name) {
		return true
	}
	_, err := sidecar.Lookup(name)
	return err == nil
}
