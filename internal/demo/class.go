package demo

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/localmesh"
)

// Mixed is the word for a mesh of two classes of sidecars.
const Mixed = "mixed"

// mixture says which class each workload has in a mixed mesh, so that either is client
// and server of either.
var mixture = []struct{ workload, labels, class string }{
	{"bookbuyer", "{app: bookbuyer}", "envoy"},
	{"bookthief", "{app: bookthief}", "pipy"},
	{"bookstore-v1", "{app: bookstore, version: v1}", "pipy"},
	{"bookstore-v2", "{app: bookstore, version: v2}", "envoy"},
	{"bookwarehouse", "{app: bookwarehouse}", "pipy"},
	{"stock", "{app: stock}", "envoy"},
}

// CheckClass returns an error that says what to do if there can be no demo of a sidecar
// class, or of Mixed, with these programs.
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
		if programs.Proxies[c] != "" {
			continue
		}
		err := programs.Missing[c]
		if err == nil {
			known := slices.Sorted(maps.Keys(programs.Proxies))
			known = append(known, slices.Collect(maps.Keys(programs.Missing))...)
			slices.Sort(known)
			err = fmt.Errorf("no driver knows a proxy for it; classes are %s", strings.Join(append(slices.Compact(known), Mixed), ", "))
		}
		missing = append(missing, fmt.Errorf("sidecar class %q: %w", c, err))
	}
	return errors.Join(missing...)
}

// ofClass changes the sample's manifests so that its pods have sidecars of the class.
func ofClass(class string, manifests map[string]string) error {
	change := func(old, now string) error {
		for file, text := range manifests {
			if strings.Count(text, old) == 1 {
				manifests[file] = strings.Replace(text, old, now, 1)
				return nil
			}
		}
		return fmt.Errorf("the sample's manifests do not hold %q", old)
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
