package install

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/strvals"
	"k8s.io/apimachinery/pkg/util/validation"

	chart "github.com/outrigger-mesh/outrigger/charts/outrigger"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
)

// defaultNamespace is the default namespace of the control plane.
const defaultNamespace = "osm-system"

// defaultRevision is the value revision of the release with the complete control plane.
const defaultRevision = "default"

// valueFlags are the flags with values for the chart.
type valueFlags struct {
	values, set               []string
	namespace, name, revision string
	highAvailability          bool
}

func (f *valueFlags) add(flags *pflag.FlagSet) {
	flags.StringArrayVarP(&f.values, "values", "f", nil, "YAML file with values of the chart, or - for stdin; later files override earlier ones")
	flags.StringArrayVar(&f.set, "set", nil, "values as key=value,key.key=value; they override files")
	flags.BoolVar(&f.highAvailability, "ha", false, "start with the chart's values-ha.yaml: several replicas on different nodes, scaled by their load")
	flags.StringVarP(&f.namespace, "namespace", "n", defaultNamespace, "namespace of the control plane, unless the values have osm.osmNamespace")
	flags.StringVar(&f.name, "name", "", "name of the mesh, instead of the value osm.meshName")
	flags.StringVar(&f.revision, "revision", "", "revision of the injector, instead of the value revision")
}

// read returns the values that override those of the chart.
func (f *valueFlags) read(stdin io.Reader) (map[string]any, error) {
	if problems := validation.IsDNS1123Label(f.namespace); len(problems) > 0 {
		return nil, usage.Errorf("--namespace %q: %s", f.namespace, strings.Join(problems, "; "))
	}
	values := map[string]any{}
	if f.highAvailability {
		text, err := chart.FS.ReadFile("values-ha.yaml")
		if err != nil {
			return nil, err
		}
		if values, err = loader.LoadValues(bytes.NewReader(text)); err != nil {
			return nil, err
		}
	}
	for _, name := range f.values {
		file, err := readValuesFile(name, stdin)
		if err != nil {
			return nil, err
		}
		values = loader.MergeMaps(values, file)
	}
	for _, assignments := range f.set {
		if err := strvals.ParseInto(assignments, values); err != nil {
			return nil, usage.Errorf("--set %q: %v", assignments, err)
		}
	}
	overrides := map[string]any{}
	if f.name != "" {
		overrides["osm"] = map[string]any{"meshName": f.name}
	}
	if f.revision != "" {
		overrides["revision"] = f.revision
	}
	return loader.MergeMaps(values, overrides), nil
}

func readValuesFile(name string, stdin io.Reader) (map[string]any, error) {
	in := stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("reading values: %w", err)
		}
		defer file.Close()
		in = file
	}
	values, err := loader.LoadValues(in)
	if err != nil {
		return nil, fmt.Errorf("values in %s: %w", name, err)
	}
	return values, nil
}
