package mesh_test

import (
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// FuzzMatches checks that no expression and no request causes a panic, and that Matches
// and Mismatch agree.
func FuzzMatches(f *testing.F) {
	f.Add("/a.*", "/", "GET", "/a?b=c", "x")
	f.Add("a)(b", "%", "", "?%zz", "")
	f.Fuzz(func(t *testing.T, regex, prefix, method, path, value string) {
		r := &mesh.Request{Method: method, Path: path, Headers: map[string][]string{"x": {value}}}
		for _, m := range []mesh.HTTPMatch{
			{Path: mesh.StringMatch{Regex: regex}}, {Path: mesh.StringMatch{Prefix: prefix}},
			{Query: []mesh.KeyMatch{{Name: "b", StringMatch: mesh.StringMatch{Regex: regex}}}},
			{Headers: []mesh.KeyMatch{{Name: "x", StringMatch: mesh.StringMatch{Exact: prefix}}}},
		} {
			if m.Matches(r) != (m.Mismatch(r) == "") {
				t.Errorf("%+v: Matches and Mismatch disagree", m)
			}
		}
	})
}

func TestMismatch(t *testing.T) {
	request := &mesh.Request{
		Method: "GET", Host: "cart.shop:80", Path: "/books/1?page=2&page=3&empty=",
		Headers: map[string][]string{"user-agent": {"curl/8"}, "accept": {"a", "b"}, "x-empty": {""}, "x-list": {"a,b"}},
	}
	path := func(m mesh.StringMatch) mesh.HTTPMatch { return mesh.HTTPMatch{Path: m} }
	header := func(name string, m mesh.StringMatch) mesh.HTTPMatch {
		return mesh.HTTPMatch{Headers: []mesh.KeyMatch{{Name: name, StringMatch: m}}}
	}
	query := func(name string, m mesh.StringMatch) mesh.HTTPMatch {
		return mesh.HTTPMatch{Query: []mesh.KeyMatch{{Name: name, StringMatch: m}}}
	}
	for _, tt := range []struct {
		name  string
		match mesh.HTTPMatch
		want  string
	}{
		{"nothing named", mesh.HTTPMatch{}, ""},
		{"exact path without the query", path(mesh.StringMatch{Exact: "/books/1"}), ""},
		{"exact path with the query", path(mesh.StringMatch{Exact: "/books/1?page=2&page=3&empty="}), "path"},
		{"exact path in another case", path(mesh.StringMatch{Exact: "/Books/1"}), "path"},
		{"prefix of all", path(mesh.StringMatch{Prefix: "/"}), ""},
		{"prefix of one element", path(mesh.StringMatch{Prefix: "/books"}), ""},
		{"prefix with a slash", path(mesh.StringMatch{Prefix: "/books/"}), ""},
		{"prefix that is the path", path(mesh.StringMatch{Prefix: "/books/1/"}), ""},
		{"prefix that ends within an element", path(mesh.StringMatch{Prefix: "/book"}), "path"},
		{"regex of the whole path", path(mesh.StringMatch{Regex: "/books/[0-9]+"}), ""},
		{"regex of the beginning", path(mesh.StringMatch{Regex: "/books"}), "path"},
		{"regex of the end", path(mesh.StringMatch{Regex: "[0-9]"}), "path"},
		{"regex whose branch is a beginning", path(mesh.StringMatch{Regex: "/books|x"}), "path"},
		{"regex with a shorter branch first", path(mesh.StringMatch{Regex: "/books|/books/1"}), ""},
		{"regex with flags", path(mesh.StringMatch{Regex: "(?i)/BOOKS/1"}), ""},
		{"no regex", path(mesh.StringMatch{Regex: "/books/("}), "path"},
		{"no regex, but with brackets around it", path(mesh.StringMatch{Regex: "/books/1)|(.*"}), "path"},
		{"one of the methods", mesh.HTTPMatch{Methods: []string{"GET", "PUT"}}, ""},
		{"another method", mesh.HTTPMatch{Methods: []string{"PUT"}}, "method"},
		{"method in another case", mesh.HTTPMatch{Methods: []string{"get"}}, "method"},
		{"header", header("user-agent", mesh.StringMatch{Regex: "curl/.*"}), ""},
		{"header with another value", header("user-agent", mesh.StringMatch{Exact: "curl"}), `header "user-agent"`},
		{"header prefix within a word", header("user-agent", mesh.StringMatch{Prefix: "cu"}), ""},
		{"header given twice", header("accept", mesh.StringMatch{Exact: "a"}), `header "accept"`},
		{"header given twice, the last", header("accept", mesh.StringMatch{Exact: "b"}), `header "accept"`},
		{"header given twice, joined", header("accept", mesh.StringMatch{Exact: "a,b"}), `header "accept"`},
		{"header given twice, any value", header("accept", mesh.StringMatch{Regex: ".*"}), `header "accept"`},
		{"header given twice, presence", header("accept", mesh.StringMatch{Present: true}), ""},
		{"header with a comma", header("x-list", mesh.StringMatch{Exact: "a,b"}), ""},
		{"part of a header with a comma", header("x-list", mesh.StringMatch{Exact: "b"}), `header "x-list"`},
		{"header that is there", header("x-empty", mesh.StringMatch{Present: true}), ""},
		{"header that is not there", header("cookie", mesh.StringMatch{Present: true}), `header "cookie"`},
		{"header that is not there, with any value", header("cookie", mesh.StringMatch{Regex: ".*"}), `header "cookie"`},
		{"host", header("host", mesh.StringMatch{Prefix: "cart.shop"}), ""},
		{"another host", header("host", mesh.StringMatch{Exact: "desk.shop"}), `header "host"`},
		{"first value of a parameter", query("page", mesh.StringMatch{Exact: "2"}), ""},
		{"second value of a parameter", query("page", mesh.StringMatch{Exact: "3"}), `query parameter "page"`},
		{"parameter that is there", query("empty", mesh.StringMatch{Present: true}), ""},
		{"parameter that is not there", query("size", mesh.StringMatch{}), `query parameter "size"`},
		{
			"all at once",
			mesh.HTTPMatch{
				Path: mesh.StringMatch{Prefix: "/books"}, Methods: []string{"GET"},
				Headers: []mesh.KeyMatch{{Name: "user-agent", StringMatch: mesh.StringMatch{Present: true}}},
				Query:   []mesh.KeyMatch{{Name: "page", StringMatch: mesh.StringMatch{Exact: "2"}}},
			},
			"",
		},
		{
			"the last of two headers",
			mesh.HTTPMatch{Headers: []mesh.KeyMatch{
				{Name: "user-agent", StringMatch: mesh.StringMatch{Present: true}},
				{Name: "x-a", StringMatch: mesh.StringMatch{Present: true}},
			}},
			`header "x-a"`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.match.Mismatch(request); got != tt.want {
				t.Errorf("Mismatch() = %q, want %q", got, tt.want)
			}
			if got := tt.match.Matches(request); got != (tt.want == "") {
				t.Errorf("Matches() = %t", got)
			}
		})
	}
}

// TestMatchOfConnection checks that conditions on requests never hold for connections.
func TestMatchOfConnection(t *testing.T) {
	for _, m := range []mesh.HTTPMatch{
		{Path: mesh.StringMatch{Regex: ".*"}}, {Methods: []string{""}}, {Headers: []mesh.KeyMatch{{}}}, {Query: []mesh.KeyMatch{{}}},
	} {
		if m.Matches(nil) {
			t.Errorf("%+v holds for a connection", m)
		}
	}
	if !(mesh.HTTPMatch{}).Matches(nil) {
		t.Error("the zero HTTPMatch does not hold for a connection")
	}
}

func TestMatchesHost(t *testing.T) {
	for _, tt := range []struct {
		pattern, host string
		want          bool
	}{
		{"a.example", "a.example", true},
		{"a.example", "A.Example", true},
		{"a.example", "b.a.example", false},
		{"*.example", "a.example", true},
		{"*.example", "b.a.example", true},
		{"*.example", "example", false},
		{"*.example", ".example", false},
		{"*.example", "notexample", false},
		{"*", "a.example", false},
		{"", "", false},
	} {
		if got := mesh.MatchesHost(tt.pattern, tt.host); got != tt.want {
			t.Errorf("MatchesHost(%q, %q) = %t", tt.pattern, tt.host, got)
		}
		for _, spelled := range [][2]string{{tt.pattern, tt.host}, {tt.pattern + ".", tt.host}, {tt.pattern, tt.host + "."}, {tt.pattern + ".", strings.ToUpper(tt.host) + "."}} {
			if got := mesh.MatchesName(spelled[0], spelled[1]); got != tt.want {
				t.Errorf("MatchesName(%q, %q) = %t", spelled[0], spelled[1], got)
			}
		}
	}
	if mesh.MatchesName("a.example", "a.example..") {
		t.Error("a name with two final dots matches")
	}
}
