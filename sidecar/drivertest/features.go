package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Lacker is implemented by drivers whose proxy makes something else of a feature that it
// lacks than to go without: it denies what asks, or has a part of the feature. The suite
// can't see by itself which of the two it is, so the driver says it, for the person who
// reviews it and for users, who find it in docs/drivers.md. Only this suite asks for it.
type Lacker interface {
	// Lacks returns features that Features does not return, each with what the proxy does
	// in its place, in words such as "every inbound request is denied".
	Lacks() map[mesh.Feature]string
}

func (v variant) String() string {
	if v.name == "" {
		return string(v.feature)
	}
	return string(v.feature) + " (" + v.name + ")"
}

// view returns the View of the variant's base with a change; nil means none.
func (v variant) view(change func(*draft)) *mesh.View {
	d := plain()
	for _, change := range []func(*draft){v.base, change} {
		if change != nil {
			change(d)
		}
	}
	return d.view()
}

// featureRules returns a rule for the declaration and one for each feature that Views ask
// for.
func featureRules() []rule {
	rules := []rule{{
		name:  "declaration",
		why:   "Features, which says what the proxy can do, returns names of mesh.Features, each once, and always the same. Core asks for it when it starts, and compares it with what users ask for.",
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
				why:   "A declared feature ends in the configuration. One that is not declared leaves no trace in it, or shuts the door: what asks for it is denied, by leaving it out, or in a way that the driver tells with Lacks. It never lets more through, or elsewhere, than was asked for. Users are told of what is not declared and rely on what is.",
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
			errs = append(errs, fmt.Errorf("%q is no feature", f))
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
			errs = append(errs, fmt.Errorf("the method Lacks names %q, which is no feature", f))
		case words == "" || strings.ContainsAny(words, "\n|"):
			errs = append(errs, fmt.Errorf("the method Lacks says %q of %s; say in one line what the proxy does in its place", words, f))
		}
	}
	return errors.Join(errs...)
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
		case declared && (asked == ignored && !v.always || asked == closed):
			errs = append(errs, fmt.Errorf("%s is declared, and the configuration is the same without", v))
		case declared, asked == closed:
		case asked == ignored && v.unsafe:
			errs = append(errs, fmt.Errorf("%s is not declared, and what asks for it fails open: the configuration is that of a View without the condition", v))
		case asked != ignored && s.lacks()[feature] == "":
			errs = append(errs, fmt.Errorf("%s is not declared, and makes a difference: %s; declare the feature if the proxy has it, tell with Lacks what is denied or done in part, or leave it out", v, firstDifference(ignored, asked)))
		}
	}
	return errors.Join(errs...)
}
