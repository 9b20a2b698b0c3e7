package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Lacker describes what a driver's proxy does with features that the driver does not
// declare. A driver needs it if its proxy denies what requires such a feature, or supports
// a part of it: the suite cannot tell which. If the proxy ignores the feature, a
// description is optional. Users find the text in docs/drivers.md. The core does not use
// the interface.
type Lacker interface {
	// Lacks returns undeclared features, each with what the proxy does instead, in words
	// such as "every inbound request is denied".
	Lacks() map[mesh.Feature]string
}

func (v variant) String() string {
	if v.name == "" {
		return string(v.feature)
	}
	return string(v.feature) + " (" + v.name + ")"
}

// view returns the View of the variant's base with the change, if any.
func (v variant) view(change func(*draft)) *mesh.View {
	d := plain()
	for _, change := range []func(*draft){v.base, change} {
		if change != nil {
			change(d)
		}
	}
	return d.view()
}

// featureRules returns a rule for the declaration, and one for each feature that is
// visible in Views.
func featureRules() []rule {
	rules := []rule{{
		name:  "declaration",
		why:   "Features returns names of mesh.Features without duplicates, and always the same. The core reads them at startup and compares them with what users require.",
		check: featuresDeclared,
	}}
	byFeature := map[mesh.Feature][]variant{}
	for _, v := range variants() {
		byFeature[v.feature] = append(byFeature[v.feature], v)
	}
	for _, feature := range mesh.Features() {
		if ways := byFeature[feature]; len(ways) > 0 {
			rules = append(rules, rule{
				name:  string(feature),
				why:   "A declared feature affects the configuration. An undeclared one either has no effect, or what requires it is denied, by omission or in a way that the driver documents with Lacks. It never allows more, or other destinations, than was configured. Users are warned about undeclared features and rely on declared ones.",
				check: func(s subject) error { return featureHonest(s, feature, ways) },
			})
		}
	}
	return rules
}

func (s subject) features() []mesh.Feature {
	if featurer, ok := s.driver.(driver.Featurer); ok {
		return featurer.Features()
	}
	return nil
}

func (s subject) lacks() map[mesh.Feature]string {
	if lacker, ok := s.driver.(Lacker); ok {
		return lacker.Lacks()
	}
	return nil
}

func featuresDeclared(s subject) error {
	declared := s.features()
	var errs []error
	for i, f := range declared {
		if !slices.Contains(mesh.Features(), f) {
			errs = append(errs, fmt.Errorf("%q is not a feature", f))
		}
		if slices.Contains(declared[:i], f) {
			errs = append(errs, fmt.Errorf("%s is declared twice", f))
		}
	}
	if again := s.features(); !slices.Equal(declared, again) {
		errs = append(errs, fmt.Errorf("the method Features returned %v and then %v", declared, again))
	}
	for f, words := range s.lacks() {
		switch {
		case slices.Contains(declared, f):
			errs = append(errs, fmt.Errorf("the method Lacks names %s, which Features declares", f))
		case !slices.Contains(mesh.Features(), f):
			errs = append(errs, fmt.Errorf("the method Lacks names %q, which is not a feature", f))
		case words == "" || strings.ContainsAny(words, "\n|"):
			errs = append(errs, fmt.Errorf("the method Lacks has the text %q for %s; describe in one line what the proxy does instead", words, f))
		}
	}
	return errors.Join(errs...)
}

// always reports whether the proxy may have the variant's feature even if it is not
// required. An application without a proxy speaks one protocol at all its ports.
func (s subject) always(v variant) bool {
	return v.always || s.proxyless() && v.feature == mesh.FeatureHTTP2
}

func featureHonest(s subject, feature mesh.Feature, ways []variant) error {
	declared := slices.Contains(s.features(), feature)
	var errs []error
	for _, v := range ways {
		var texts [3]string
		for i, change := range []func(*draft){v.asks, v.ignored, v.closed} {
			text, err := s.text(v.view(change))
			if err != nil {
				return fmt.Errorf("%s: %w", v, err)
			}
			texts[i] = text
		}
		asked, ignored, closed := texts[0], texts[1], texts[2]
		switch {
		case declared && (asked == ignored && !s.always(v) || asked == closed):
			errs = append(errs, fmt.Errorf("%s is declared, but the configuration is the same without it", v))
		case declared, asked == closed:
		case asked == ignored && v.unsafe:
			errs = append(errs, fmt.Errorf("%s is not declared and fails open: the configuration is that of a View without the condition", v))
		case asked != ignored && s.lacks()[feature] == "":
			errs = append(errs, fmt.Errorf("%s is not declared, but makes a difference: %s; declare the feature if the proxy supports it, document with Lacks what is denied or supported in part, or ignore it", v, firstDifference(ignored, asked)))
		}
	}
	return errors.Join(errs...)
}
