package dir

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/source"
)

// What the CRDs of Gateway API's routes refuse although the mesh could read it. In a cluster the
// API server has checked it; in a folder nobody has.
const (
	mostRules    = 16
	mostMatches  = 64
	mostOfRoute  = 128
	mostBackends = 16
	longestPath  = 1024
)

var (
	routeMethods  = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}
	routeDuration = regexp.MustCompile(`^([0-9]{1,5}(h|m|s|ms)){1,4}$`)
	routePath     = regexp.MustCompile(`^(?:[-A-Za-z0-9/._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})+$`)
)

// refusal is why the API server would refuse a field.
type refusal struct{ field, why string }

// refusals returns why the API server would refuse a route.
func refusals(obj client.Object) []refusal {
	c := &checker{names: make(map[gateway.SectionName]bool)}
	switch route := obj.(type) {
	case *source.HTTPRoute:
		c.most("spec.rules", len(route.Spec.Rules), mostRules)
		for i := range route.Spec.Rules {
			c.httpRule(fmt.Sprintf("spec.rules[%d]", i), &route.Spec.Rules[i])
		}
	case *source.GRPCRoute:
		c.most("spec.rules", len(route.Spec.Rules), mostRules)
		for i := range route.Spec.Rules {
			rule, path := &route.Spec.Rules[i], fmt.Sprintf("spec.rules[%d]", i)
			c.rule(path, rule.Name, len(rule.Matches), len(rule.BackendRefs))
		}
	default:
		return nil
	}
	if c.matches > mostOfRoute {
		c.add("spec.rules", "all rules together have %d matches, and may have %d", c.matches, mostOfRoute)
	}
	return c.found
}

type checker struct {
	found   []refusal
	names   map[gateway.SectionName]bool
	matches int
}

func (c *checker) add(path, format string, args ...any) {
	c.found = append(c.found, refusal{path, fmt.Sprintf(format, args...)})
}

func (c *checker) most(path string, count, most int) {
	if count > most {
		c.add(path, "there are %d, and may be %d", count, most)
	}
}

// rule checks what rules of all routes have.
func (c *checker) rule(path string, name *gateway.SectionName, matches, backends int) {
	if name != nil {
		if c.names[*name] {
			c.add(path+".name", "another rule has the name %q too", *name)
		}
		c.names[*name] = true
	}
	c.most(path+".matches", matches, mostMatches)
	c.most(path+".backendRefs", backends, mostBackends)
	// The API server adds a match to a rule without one.
	c.matches += max(matches, 1)
}

func (c *checker) httpRule(path string, rule *gateway.HTTPRouteRule) {
	c.rule(path, rule.Name, len(rule.Matches), len(rule.BackendRefs))
	for i := range rule.Matches {
		m, at := &rule.Matches[i], fmt.Sprintf("%s.matches[%d]", path, i)
		if m.Method != nil && !slices.Contains(routeMethods, string(*m.Method)) {
			c.add(at+".method", "%q is none of %s", *m.Method, strings.Join(routeMethods, ", "))
		}
		if m.Path != nil && m.Path.Value != nil {
			c.path(at+".path.value", m.Path)
		}
	}
	if rule.Timeouts != nil {
		request := c.duration(path+".timeouts.request", rule.Timeouts.Request)
		try := c.duration(path+".timeouts.backendRequest", rule.Timeouts.BackendRequest)
		if request > 0 && try > request {
			c.add(path+".timeouts.backendRequest", "it is longer than the timeout of the request")
		}
	}
}

func (c *checker) path(where string, match *gateway.HTTPPathMatch) {
	value := *match.Value
	if len(value) > longestPath {
		c.add(where, "it has %d characters, and may have %d", len(value), longestPath)
	}
	if match.Type != nil && *match.Type == gateway.PathMatchRegularExpression {
		return
	}
	switch lower := strings.ToLower(value); {
	case !strings.HasPrefix(value, "/"):
		c.add(where, "%q does not begin with a slash", value)
	case strings.Contains(value, "//"), strings.Contains(lower, "%2f"), slices.ContainsFunc(strings.Split(value, "/"), func(e string) bool { return e == "." || e == ".." }):
		c.add(where, "%q has an empty element, an element of dots or an encoded slash", value)
	case !routePath.MatchString(value):
		c.add(where, "%q has a character that must be percent-encoded", value)
	}
}

// duration returns 0 for one that is not given or not valid.
func (c *checker) duration(path string, value *gateway.Duration) time.Duration {
	if value == nil {
		return 0
	}
	if !routeDuration.MatchString(string(*value)) {
		c.add(path, "%q is not a duration of Gateway API; write whole numbers, such as 1s500ms", *value)
		return 0
	}
	d, _ := time.ParseDuration(string(*value))
	return d
}
