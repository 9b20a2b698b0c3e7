package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	chart "github.com/outrigger-mesh/outrigger/charts/outrigger"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/policy"
	"github.com/outrigger-mesh/outrigger/internal/injector"
	"github.com/outrigger-mesh/outrigger/internal/meshconfig"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
)

// printPolicies prints the admission policies that the controller of the release makes.
func printPolicies(ctx context.Context, release *chart.Release, stdout, stderr io.Writer) error {
	of, err := policiesOf(release)
	if err != nil {
		return err
	}
	mesh := meshconfig.Mesh{Name: of.meshName, Namespace: release.Namespace, Revision: defaultRevision}
	resolved := meshconfig.NewInjectionResolver().Resolve(of.meshConfig)
	for _, problem := range resolved.Problems() {
		terminal.Fprintln(stderr, "warning:", problem)
	}
	config, err := inject.NewConfig(of.config, of.values)
	if err != nil {
		return err
	}
	engine := injector.New(injector.Assembly{Mesh: mesh, Config: source.NewLive(resolved), Log: slog.New(slog.DiscardHandler)})
	engine.Use(config)
	p, err := policy.New(ctx, engine.Model(), injector.PolicyOptions(mesh, of.mode))
	if err != nil {
		return err
	}
	for _, class := range slices.Sorted(maps.Keys(p.Left)) {
		terminal.Fprintf(stderr, "warning: the class %s has no admission policy: %s\n", class, p.Left[class])
	}
	var out bytes.Buffer
	for _, object := range p.Objects {
		text, err := yaml.Marshal(object)
		if err != nil {
			return err
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	_, err = out.WriteTo(stdout)
	return err
}

// policySettings are the parts of a release on which its admission policies depend.
type policySettings struct {
	meshName       string
	mode           policy.Mode
	meshConfig     *v1alpha2.MeshConfig
	config, values string
}

// policiesOf finds the settings in the objects of a release.
func policiesOf(release *chart.Release) (*policySettings, error) {
	var s policySettings
	for _, text := range release.Objects {
		var kind metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(text), &kind); err != nil {
			return nil, err
		}
		var err error
		switch kind.Kind + "/" + kind.Name {
		case "MeshConfig/osm-mesh-config":
			s.meshConfig = new(v1alpha2.MeshConfig)
			err = yaml.Unmarshal([]byte(text), s.meshConfig)
		case "ConfigMap/" + inject.ObjectName(defaultRevision):
			var m corev1.ConfigMap
			err = yaml.Unmarshal([]byte(text), &m)
			s.config, s.values = m.Data[inject.ConfigKey], m.Data[inject.ValuesKey]
		case "Deployment/outrigger-controller":
			var d appsv1.Deployment
			err = yaml.Unmarshal([]byte(text), &d)
			for _, c := range d.Spec.Template.Spec.Containers {
				for _, arg := range c.Args {
					if mode, ok := strings.CutPrefix(arg, "--injection-policies="); ok {
						s.mode = policy.Mode(mode)
					}
					if name, ok := strings.CutPrefix(arg, "--mesh-name="); ok {
						s.meshName = name
					}
				}
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", kind.Kind, kind.Name, err)
		}
	}
	switch {
	case s.mode == "":
		return nil, errors.New("the values have no admission policies; add --set injector.mode=policy or --set injector.mode=both")
	case s.meshConfig == nil:
		return nil, errors.New("the values have meshConfig.create: false, so the MeshConfig on which the policies depend is not known; leave that out and give its fields as meshConfig.spec, or let the controller make the policies")
	}
	return &s, nil
}
