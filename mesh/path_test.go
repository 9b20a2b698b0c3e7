package mesh_test

import (
	"net/url"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestNormalPath has what Envoy 1.40 answered for the same targets with its normalization,
// but for the paths that have no normal form.
func TestNormalPath(t *testing.T) {
	for path, want := range map[string]string{
		"/": "/", "/a": "/a", "/a/": "/a/", "//a": "//a", "/a//": "/a//", "/a/...": "/a/...", "/a/.b": "/a/.b", "/a/..a;/b": "/a/..a;/b",
		"/x/../pub/a": "/pub/a", "/x/..": "/", "/x/.": "/x/", "/..": "/", "/../../a": "/a", "/./": "/", "/.": "/", "//../a": "/a",
		"/a//../b": "/a/b", "/x//../y": "/x/y", "/a/./b": "/a/b", `/a\..\b`: "/b", `/a\b`: "/a/b", "/x/%2e%2E/y": "/y", "/a/%2e./b": "/b", "/%2E%2e": "/",
		"/a/..;/b": "/b", "/a/..;x=1;y/b": "/b", "/a/.;/b": "/a/b", "/a/..;": "/", "/a/.;": "/a/", "/a/..;%2fx/b": "/b", "/a/b/..;x/..;y/c": "/c", "/a/..;x?y": "/?y",
		"/a/...;/b": "/a/...;/b", "/a/..%3b/b": "/a/..%3b/b", "/a/b;../c": "/a/b;../c", "/;/b": "/;/b", "/a;/../b": "/b",
		"/%zz": "/%zz", "/%2": "/%2", "/%": "/%", "/%252e": "/%252e", "/a%2Fb": "/a%2Fb", "/a%2fb": "/a%2fb", "/a%20b": "/a%20b", "/a%7eb%41": "/a~bA", "/%7C": "/%7C",
		`/"<>^` + "`{|}": "/%22%3C%3E%5E%60%7B%7C%7D", "/é": "/%C3%A9", "/!$&'()*+,:@=;": "/!$&'()*+,:@=;",
		`/a?\%41/../b`: `/a?\%41/../b`, "/a?b?c": "/a?b?c", "/a?": "/a?",
		"": "", "a": "", "*": "", "/a b": "", "/a#b": "", "/a\tb": "", "/a\x7f": "", "/%00": "", "/%2e%2e;/b": "", "/a/%2E;x": "", "/a/.%2e;x": "",
	} {
		got, ok := mesh.NormalPath(path)
		if got != want || ok != (want != "") {
			t.Errorf("NormalPath(%q) = %q, %t, want %q", path, got, ok, want)
		}
	}
}

func FuzzNormalPath(f *testing.F) {
	for _, path := range []string{"/a/../b", "/%2e%2e;/b", "/a/..;/b?c", `/\..`, "//", "/%c3%28/é"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		once, ok := mesh.NormalPath(path)
		if !ok {
			return
		}
		if twice, ok := mesh.NormalPath(once); !ok || twice != once {
			t.Errorf("NormalPath(%q) = %q, and that of it is %q, %t", path, once, twice, ok)
		}
	})
}

func TestQueryParameter(t *testing.T) {
	for _, tt := range []struct {
		query, name, value string
		found              bool
	}{
		{"s=a%20b", "s", "a b", true},
		{"%73=a+b", "s", "a b", true},
		{"s=1&s=2", "s", "1", true},
		{"r=1&s", "s", "", true},
		{"s=", "s", "", true},
		{"$top=5", "$top", "5", true},
		{"%24top=5", "$top", "5", true},
		{"s=a=b", "s", "a=b", true},
		{"s=%zz&s=2", "s", "2", true},
		{"s=1;&s=2", "s", "2", true},
		{"%s=1", "%s", "", false},
		{"%25s=1", "%s", "1", true},
		{"S=1", "s", "", false},
		{"=1", "", "1", true},
		{"&&", "", "", false},
		{"s=a?b", "s", "a?b", true},
	} {
		if value, found := mesh.QueryParameter(tt.query, tt.name); value != tt.value || found != tt.found {
			t.Errorf("QueryParameter(%q, %q) = %q, %t", tt.query, tt.name, value, found)
		}
	}
}

// FuzzQueryParameter compares with Go's own parser of queries.
func FuzzQueryParameter(f *testing.F) {
	f.Add("a=1&b=%2&a=2;&c", "a")
	f.Add("a+b=%20", "a b")
	f.Fuzz(func(t *testing.T, query, name string) {
		values, _ := url.ParseQuery(query)
		value, found := mesh.QueryParameter(query, name)
		if want, has := values[name]; has != found || found && want[0] != value {
			t.Errorf("QueryParameter(%q, %q) = %q, %t, want %q", query, name, value, found, want)
		}
	})
}

func TestNormalize(t *testing.T) {
	route := func(m mesh.HTTPMatch) mesh.Destination {
		return mesh.Destination{Protocol: mesh.HTTP, Routes: []mesh.Route{{Match: m}}}
	}
	port := func(m mesh.HTTPMatch) mesh.InboundPort {
		return mesh.InboundPort{Protocol: mesh.HTTP, Access: mesh.Access{Rules: []mesh.Permission{{Requests: []mesh.HTTPMatch{m}}}}}
	}
	for _, tt := range []struct {
		match            mesh.HTTPMatch
		path, to, inside string
	}{
		{mesh.HTTPMatch{}, "/x/../a//b", "/x/../a//b", "/x/../a//b"},
		{mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: "/"}}, "/x/../a//b", "/x/../a//b", "/x/../a//b"},
		{mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: "/a"}}, "/x/../a//b?c//d", "/a//b?c//d", "/a/b?c//d"},
		{mesh.HTTPMatch{Path: mesh.StringMatch{Exact: "/"}}, "/x/..", "/", "/"},
		{mesh.HTTPMatch{Path: mesh.StringMatch{Regex: ".+"}}, "/x/%2e%2e;", "", ""},
	} {
		d, p := route(tt.match), port(tt.match)
		to, ok := d.Normalize(&mesh.Request{Path: tt.path})
		if ok != (tt.to != "") || ok && to.Path != tt.to {
			t.Errorf("%+v, %q: a destination gets %+v", tt.match, tt.path, to)
		}
		inside, ok := p.Normalize(&mesh.Request{Path: tt.path})
		if ok != (tt.inside != "") || ok && inside.Path != tt.inside {
			t.Errorf("%+v, %q: a port gets %+v", tt.match, tt.path, inside)
		}
	}
}
