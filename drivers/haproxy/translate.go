package haproxy

import (
	"bytes"
	_ "embed"
	"fmt"
	"strings"
	texttemplate "text/template"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/pcre"
)

// configFile is the configuration. It reads http.map and tcp.map, which say what
// destination an address and a port are, for those that speak HTTP and for the others.
const configFile = "haproxy.cfg"

//go:embed haproxy.cfg.tmpl
var configText string

// callerFile is a program that finds out who calls, which the configuration loads.
const callerFile = "caller.lua"

//go:embed caller.lua
var callerText string

var configTemplate = texttemplate.Must(texttemplate.New(configFile).Funcs(texttemplate.FuncMap{
	"byName": byName, "egressHosts": egressHosts, "hosts": hosts, "is": is, "isHeader": word.MatchString,
	"prefixes": prefixes, "quote": quote, "replace": strings.ReplaceAll, "when": when,
	"ambiguousPath": func() string { return mesh.AmbiguousPath }, "identityHeaders": mesh.IdentityHeaders,
	"spellings": mesh.HeaderSpellings, "otherSpellings": mesh.OtherSpellings,
	"append":       func(texts []string, text string) []string { return append(texts, text) },
	"add":          func(a, b uint32) uint64 { return uint64(a) + uint64(b) },
	"atMost":       func(n uint32) uint32 { return min(n, 1<<30) },
	"isWildcard":   func(host string) bool { return strings.HasPrefix(host, "*.") },
	"list":         func(texts ...string) []string { return texts },
	"milliseconds": func(d time.Duration) int64 { return min(max(d, time.Millisecond), 20*24*time.Hour).Milliseconds() },
	"path":         limitedPath,
	"share":        func(n uint32, of int) uint32 { return max(1, min(n, 1<<30)/uint32(max(1, of))) },
}).Parse(configText))

// document is what the template shows.
type document struct {
	View *mesh.View
	// RunDir is where the proxy keeps its sockets, where nobody else can reach them.
	RunDir, IdentityDir string
	// MeshNames end the server names of the mesh, and Member begins the URI in the
	// certificates of all workloads.
	MeshNames, Member string
	// TLS are the options of all mesh TLS, and Curves that of servers: HAProxy has none for
	// clients, of whose curves the server chooses one.
	TLS, Curves string

	// Mesh takes mesh TLS, Ingress the TLS of callers from outside the mesh, and Entry,
	// where there is something else than mesh TLS, all connections: it Peeks to find out
	// what they are, and passes the plaintext on itself.
	Mesh, Ingress, Entry *frontend
	Peeks                bool
	Routes               []rule
	Targets              map[string]target

	httpMap, tcpMap strings.Builder
}

// Translate returns haproxy.cfg and its maps.
func (Driver) Translate(view *mesh.View) ([]driver.File, error) {
	settings := view.Settings
	if !word.MatchString(settings.TrustDomain) {
		return nil, fmt.Errorf("haproxy: the trust domain %q is no DNS name", settings.TrustDomain)
	}
	doc := &document{
		View: view, RunDir: driver.RunDir, IdentityDir: driver.IdentityDir,
		MeshNames: ".sa." + strings.ToLower(settings.TrustDomain),
		Member:    "spiffe://" + settings.TrustDomain + "/ns/",
		TLS:       option("ssl-min-ver TLSv", settings.TLS.Min) + option(" ssl-max-ver TLSv", settings.TLS.Max) + option(" ciphers ", settings.TLS.Ciphers...),
		Curves:    option(" curves ", settings.TLS.Curves...),
	}
	doc.addInbound()
	doc.addOutbound()
	var config bytes.Buffer
	if err := configTemplate.Execute(&config, doc); err != nil {
		return nil, fmt.Errorf("haproxy: %w", err)
	}
	return []driver.File{
		{Name: configFile, Content: config.Bytes()},
		{Name: callerFile, Content: []byte(callerText)},
		{Name: "http.map", Content: []byte(doc.httpMap.String())},
		{Name: "tcp.map", Content: []byte(doc.tcpMap.String())},
	}, nil
}

// limitedPath returns the requests that a limit of a path counts: all, if there is no
// saying which have the path.
func limitedPath(expression string) (m mesh.HTTPMatch) {
	if quote(pcre.WholeString(expression)) != "" {
		m.Path.Regex = expression
	}
	return m
}

// sectionName returns the name of what is made of a part of that name.
func sectionName(name string) string { return noWord.ReplaceAllString(name, ":") }

// option returns an option with names, or nothing if there are none.
func option(option string, names ...string) string {
	if joined := strings.Join(names, ":"); !noWord.MatchString(strings.ReplaceAll(joined, ":", "")) && joined != "" {
		return option + joined
	}
	return ""
}
