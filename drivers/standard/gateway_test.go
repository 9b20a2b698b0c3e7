package standard_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
)

var gatewayFile = filepath.Join("..", "..", "docs", "gateway-api.md")

// field is one row of a table of docs/gateway-api.md.
type field struct {
	// path is that of a field of the route's spec, and stands for all fields below it that
	// have no row of their own.
	path string
	// needs are the features that a class needs for the field. Without one, every class has it.
	needs []mesh.Feature
	// instead says what happens if no class has the field.
	instead string
}

// kindTable is one table of the page.
type kindTable struct {
	kind   string
	spec   reflect.Type
	fields []field
}

const (
	noEffect     = "no effect"
	ruleAnswers  = "the rule answers 500"
	shareAnswers = "its share is answered with 500"
)

// parentFields and backendFields are the same for every kind, sessionFields for those with HTTP.
var (
	parentFields  = []field{{path: "parentRefs"}}
	backendFields = []field{{path: "rules.backendRefs"}}
	sessionFields = []field{
		{path: "rules.sessionPersistence", needs: []mesh.Feature{mesh.FeatureSessionPersistence}},
		{path: "rules.sessionPersistence.absoluteTimeout", needs: []mesh.Feature{mesh.FeatureSessionPersistence}},
		{path: "rules.sessionPersistence.cookieConfig", needs: []mesh.Feature{mesh.FeatureSessionPersistence}},
	}
)

// gatewayTables are the tables of the page, in order.
var gatewayTables = []kindTable{
	{"HTTPRoute", reflect.TypeFor[gateway.HTTPRouteSpec](), slices.Concat(parentFields, []field{
		{path: "hostnames", instead: noEffect},
		{path: "useDefaultGateways", instead: noEffect},
		{path: "rules.name"},
		{path: "rules.matches.path"},
		{path: "rules.matches.method"},
		{path: "rules.matches.headers", needs: []mesh.Feature{mesh.FeatureHeaderMatches}},
		{path: "rules.matches.queryParams", needs: []mesh.Feature{mesh.FeatureQueryMatches}},
	}, httpFilterFields("rules.filters", ruleAnswers), backendFields, headerFields("rules.backendRefs.filters"), []field{
		{path: "rules.backendRefs.filters: others", instead: shareAnswers},
		{path: "rules.timeouts", needs: []mesh.Feature{mesh.FeatureTimeouts}},
		{path: "rules.retry.attempts", needs: []mesh.Feature{mesh.FeatureRetries}},
		{path: "rules.retry.codes: 500 to 504", needs: []mesh.Feature{mesh.FeatureRetries}},
		{path: "rules.retry.codes", needs: []mesh.Feature{mesh.FeatureRetries, mesh.FeatureRetryCodes}},
		{path: "rules.retry.backoff", needs: []mesh.Feature{mesh.FeatureRetries, mesh.FeatureRetryBackoff}},
	}, sessionFields)},
	{"GRPCRoute", reflect.TypeFor[gateway.GRPCRouteSpec](), slices.Concat(parentFields, []field{
		{path: "hostnames", instead: noEffect},
		{path: "useDefaultGateways", instead: noEffect},
		{path: "rules.name"},
		{path: "rules.matches.method", needs: []mesh.Feature{mesh.FeatureHTTP2}},
		{path: "rules.matches.headers", needs: []mesh.Feature{mesh.FeatureHTTP2, mesh.FeatureHeaderMatches}},
	}, headerFields("rules.filters"), []field{
		{path: "rules.filters.requestMirror", needs: []mesh.Feature{mesh.FeatureMirrors}},
		{path: "rules.filters.extensionRef", instead: ruleAnswers},
	}, backendFields, headerFields("rules.backendRefs.filters"), []field{
		{path: "rules.backendRefs.filters: others", instead: shareAnswers},
	}, sessionFields)},
	{"TLSRoute", reflect.TypeFor[gateway.TLSRouteSpec](), slices.Concat(parentFields, []field{
		{path: "useDefaultGateways", instead: noEffect},
		{path: "hostnames", needs: []mesh.Feature{mesh.FeatureServerNames}},
		{path: "rules.name"},
	}, backendFields)},
	{"TCPRoute", reflect.TypeFor[gateway.TCPRouteSpec](), slices.Concat(parentFields, []field{
		{path: "useDefaultGateways", instead: noEffect},
		{path: "rules.name"},
	}, backendFields)},
}

// headerFields are the filters that change headers.
func headerFields(path string) []field {
	return []field{
		{path: path + ".requestHeaderModifier", needs: []mesh.Feature{mesh.FeatureHeaderChanges}},
		{path: path + ".responseHeaderModifier", needs: []mesh.Feature{mesh.FeatureHeaderChanges}},
	}
}

// httpFilterFields are all filters, with what happens to those that no class has.
func httpFilterFields(path, instead string) []field {
	return append(headerFields(path),
		field{path: path + ".urlRewrite", needs: []mesh.Feature{mesh.FeatureRewrites}},
		field{path: path + ".requestRedirect", needs: []mesh.Feature{mesh.FeatureRedirects}},
		field{path: path + ".requestMirror", needs: []mesh.Feature{mesh.FeatureMirrors}},
		field{path: path + ".cors", needs: []mesh.Feature{mesh.FeatureCORS}},
		field{path: path + ".extensionRef", instead: instead},
		field{path: path + ".externalAuth", instead: instead},
	)
}

// TestGatewayFields checks that docs/gateway-api.md has each field of the routes with what
// each class does. UPDATE=1 writes the tables.
func TestGatewayFields(t *testing.T) {
	is, err := os.ReadFile(gatewayFile)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- UPDATE=1 go test ./drivers/standard writes the tables from here -->\n", "<!-- to here -->\n"
	before, rest, ok := strings.Cut(string(is), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("docs/gateway-api.md has no place for the tables: add the lines %q and %q", begin, end)
	}
	want := before + begin + gatewayPage() + end + after
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(gatewayFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := gocmp.Diff(string(is), want); diff != "" {
		t.Errorf("docs/gateway-api.md is outdated; run UPDATE=1 go test ./drivers/standard (-page +is):\n%s", diff)
	}
}

// TestGatewayFieldsComplete finds fields of a route without a row, and rows without a field.
func TestGatewayFieldsComplete(t *testing.T) {
	for _, table := range gatewayTables {
		unused := map[string]bool{}
		for _, f := range table.fields {
			unused[f.name()] = true
		}
		for _, leaf := range leaves(table.spec, "") {
			row := ""
			for name := range unused {
				if (leaf == name || strings.HasPrefix(leaf, name+".")) && len(name) > len(row) {
					row = name
				}
			}
			if row == "" {
				t.Errorf("%s: the field %s has no row in docs/gateway-api.md; add it to gatewayTables", table.kind, leaf)
			}
			unused[row] = false
		}
		for name, is := range unused {
			if is {
				t.Errorf("%s: %s is not a field of the route", table.kind, name)
			}
		}
	}
}

// name is the path without the values that a row is limited to.
func (f field) name() string {
	name, _, _ := strings.Cut(f.path, ":")
	return name
}

// leaves returns the paths of the fields that contain no other fields. A type says only
// which of the other fields of its object counts, so it has no path of its own.
func leaves(of reflect.Type, path string) []string {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || of.PkgPath() != reflect.TypeFor[gateway.HTTPRouteSpec]().PkgPath() {
		return []string{path}
	}
	var found []string
	for f := range of.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "": // an embedded struct
			found = append(found, leaves(f.Type, path)...)
		case name != "type":
			found = append(found, leaves(f.Type, strings.TrimPrefix(path+"."+name, "."))...)
		}
	}
	return found
}

// gatewayPage returns the tables.
func gatewayPage() string {
	classes := slices.DeleteFunc(sidecar.Drivers(), func(name string) bool { return name == "null" })
	var out strings.Builder
	for _, table := range gatewayTables {
		fmt.Fprintf(&out, "\n| %s | %s |\n|---|%s\n", table.kind, strings.Join(classes, " | "), strings.Repeat("---|", len(classes)))
		for _, f := range table.fields {
			fmt.Fprintf(&out, "| `%s` |", f.path)
			for _, class := range classes {
				fmt.Fprintf(&out, " %s |", f.answer(class))
			}
			out.WriteString("\n")
		}
	}
	return out.String() + "\n"
}

// answer says what the class does with the field.
func (f field) answer(class string) string {
	if f.instead != "" {
		return f.instead
	}
	for _, feature := range f.needs {
		if !slices.Contains(sidecar.Features(class), feature) {
			return "no"
		}
	}
	return "yes"
}
