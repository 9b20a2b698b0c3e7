package mesh_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestHeaderChangesThen holds that changes in sequence do the same as both together.
func TestHeaderChangesThen(t *testing.T) {
	h := func(name, value string) []mesh.Header { return []mesh.Header{{Name: name, Value: value}} }
	some := []mesh.HeaderChanges{
		{}, {Set: h("a", "1")}, {Add: h("a", "2")}, {Remove: []string{"a"}}, {Set: h("b", "3"), Add: h("b", "4"), Remove: []string{"a"}},
		{Set: h("a", "5"), Add: h("a", "6")}, {Add: h("b", "7"), Remove: []string{"c"}},
	}
	for _, first := range some {
		for _, second := range some {
			for _, headers := range []map[string][]string{{}, {"a": {"x", "y"}, "c": {"z"}}, {"b": {"w"}}} {
				want := second.Apply(first.Apply(headers))
				if diff := cmp.Diff(want, first.Then(second).Apply(headers)); diff != "" {
					t.Errorf("%+v then %+v of %v (-want +got):\n%s", first, second, headers, diff)
				}
			}
		}
	}
}

func TestForwarded(t *testing.T) {
	prefix := mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: "/old/"}}
	for _, tt := range []struct {
		match       mesh.HTTPMatch
		to          mesh.PathChange
		path, wants string
	}{
		{prefix, mesh.PathChange{Prefix: "/new/"}, "/old", "/new"},
		{prefix, mesh.PathChange{Prefix: "/new"}, "/old/a?b=/old/", "/new/a?b=/old/"},
		{prefix, mesh.PathChange{Prefix: "/"}, "/old", "/"},
		{prefix, mesh.PathChange{Prefix: "/"}, "/old/a", "/a"},
		{mesh.HTTPMatch{}, mesh.PathChange{Prefix: "/new"}, "/a", "/new/a"},
		{prefix, mesh.PathChange{Full: "/all"}, "/old/a?b", "/all?b"},
		{prefix, mesh.PathChange{}, "/old/a", "/old/a"},
	} {
		route := mesh.Route{Match: tt.match, Rewrite: &mesh.Rewrite{Host: "h", Path: tt.to}}
		got := route.Forwarded(&mesh.Request{Path: tt.path, Host: "other"}, mesh.WeightedBackend{})
		if got.Path != tt.wants || got.Host != "h" {
			t.Errorf("%s changed by %+v is %s at %s, want %s", tt.path, tt.to, got.Path, got.Host, tt.wants)
		}
	}
	if got := (&mesh.Route{}).Forwarded(nil, mesh.WeightedBackend{}); got != nil {
		t.Errorf("a connection has the request %+v", got)
	}
}

func TestLocation(t *testing.T) {
	for _, tt := range []struct {
		to   mesh.Redirect
		port uint16
		want string
	}{
		{mesh.Redirect{}, 80, "http://shop/a?b"},
		{mesh.Redirect{}, 8080, "http://shop:8080/a?b"},
		{mesh.Redirect{Scheme: "https"}, 8080, "https://shop/a?b"},
		{mesh.Redirect{Scheme: "https", Port: 443}, 80, "https://shop/a?b"},
		{mesh.Redirect{Scheme: "http", Host: "h", Port: 443}, 80, "http://h:443/a?b"},
		{mesh.Redirect{Path: mesh.PathChange{Full: "/c"}}, 80, "http://shop/c?b"},
	} {
		if got := tt.to.Location("shop:1234", "/a?b", "", tt.port); got != tt.want {
			t.Errorf("%+v of port %d is %s, want %s", tt.to, tt.port, got, tt.want)
		}
	}
}

// TestHeaderChangesJoined holds that joined changes send the same values, in one line.
func TestHeaderChangesJoined(t *testing.T) {
	changes := mesh.HeaderChanges{
		Set: []mesh.Header{{Name: "x-a", Value: "1"}}, Remove: []string{"x-c"},
		Add: []mesh.Header{{Name: "x-a", Value: "2"}, {Name: "x-b", Value: "3"}, {Name: "x-b", Value: "4"}, {Name: "cookie", Value: "5"}, {Name: "cookie", Value: "6"}},
	}
	want := mesh.HeaderChanges{
		Set: []mesh.Header{{Name: "x-a", Value: "1,2"}}, Remove: []string{"x-c"},
		Add: []mesh.Header{{Name: "x-b", Value: "3,4"}, {Name: "cookie", Value: "5"}, {Name: "cookie", Value: "6"}},
	}
	if diff := cmp.Diff(want, changes.Joined()); diff != "" {
		t.Error(diff)
	}
	if changes.Set[0].Value != "1" {
		t.Error("the changes have changed")
	}
}
