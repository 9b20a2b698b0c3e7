package demo

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// Mixed selects a mesh with three classes of sidecars.
const Mixed = "mixed"

// mixture assigns the classes of a mixed mesh to the workloads, so that the split has
// servers of two classes, and a client of a third.
var mixture = []struct{ workload, labels, class string }{
	{"bookbuyer", "{app: bookbuyer}", "envoy"},
	{"bookthief", "{app: bookthief}", "pipy"},
	{"bookstore-v1", "{app: bookstore, version: v1}", "pipy"},
	{"bookstore-v2", "{app: bookstore, version: v2}", "haproxy"},
	{"bookwarehouse", "{app: bookwarehouse}", "haproxy"},
	{"stock", "{app: stock}", "envoy"},
}

// CheckClass returns an error that says what to do if the programs for a demo of the
// sidecar class, or of Mixed, are missing.
func CheckClass(class string, programs localmesh.Programs) error {
	classes := []string{class}
	if class == Mixed {
		classes = nil
		for _, m := range mixture {
			classes = append(classes, m.class)
		}
		slices.Sort(classes)
		classes = slices.Compact(classes)
	}
	var missing []error
	for _, c := range classes {
		missing = append(missing, programs.Check(c, Mixed))
	}
	return errors.Join(missing...)
}

// setClass changes the sample's manifests so that its pods have sidecars of the class.
func setClass(class string, manifests map[string]string) error {
	change := func(old, now string) error {
		for file, text := range manifests {
			if strings.Count(text, old) == 1 {
				manifests[file] = strings.Replace(text, old, now, 1)
				return nil
			}
		}
		return fmt.Errorf("the sample's manifests do not contain %q", old)
	}
	if class != Mixed {
		return change("sidecarClass: envoy", "sidecarClass: "+class)
	}
	for _, m := range mixture {
		const metadata = "    metadata:\n"
		labels := "      labels: " + m.labels + "\n"
		annotation := "      annotations: {openservicemesh.io/sidecar-class: " + m.class + "}\n"
		if err := change(metadata+labels, metadata+annotation+labels); err != nil {
			return fmt.Errorf("%s: %w", m.workload, err)
		}
	}
	return nil
}
