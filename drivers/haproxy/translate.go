package haproxy

import (
	"bytes"
	_ "embed"
	"encoding/hex"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	texttemplate "text/template"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// The files of a configuration. The maps say which destination an address and a port
// are, for those that speak HTTP and for the others.
const (
	configFile = "haproxy.cfg"
	httpMap    = "http.map"
	tcpMap     = "tcp.map"
)

//go:embed haproxy.cfg.tmpl
var configText string

var configTemplate = texttemplate.Must(texttemplate.New(configFile).Option("missingkey=error").Funcs(texttemplate.FuncMap{
	"byName": byName, "egressHosts": egressHosts, "hosts": hosts, "isWildcard": isWildcard, "limits": limits,
	"milliseconds": milliseconds, "regex": pathRule, "target": hostTarget, "twins": twins, "prefixes": prefixes, "quote": quote, "when": when,
	"add": func(a, b uint32) uint64 { return uint64(a) + uint64(b) },
	"headersOf": func(l mesh.RequestLimit) []mesh.Header {
		return slices.DeleteFunc(slices.Clone(l.AddHeaders), badHeader)
	},
	"anyHost": func(fetch string, names []string) []string { return hosts(fetch, 0, names...) },
	"isAny":   func(fetch string, values []string) []string { return is(fetch, values...) },
	"escape":  func(s string) string { return strings.ReplaceAll(s, "%", "%%") },
	"atMost":  func(n uint32) uint32 { return min(n, 1<<30) },
	"lessOne": func(n uint32) uint32 { return min(n, 1<<30) - 1 },
	"share":   func(n uint32, of int) uint32 { return max(1, min(n, 1<<30)/uint32(max(1, of))) },
}).Parse(configText))

// document is what the template shows.
type document struct {
	View *mesh.View
	// RunDir is where the proxy keeps its sockets, where nobody else can reach them, and
	// IdentityDir where the agent keeps its identity.
	RunDir, IdentityDir string
	// MeshNames end the server names of the mesh, and Member is in the certificates of all
	// workloads, as hexadecimal digits.
	MeshNames, Member string
	// TLS are the options of all mesh TLS, and Curves that of servers: HAProxy has none for
	// clients, of whose curves the server chooses one.
	TLS, Curves string

	// Mesh takes mesh TLS, Ingress the TLS of callers from outside the mesh, and Entry,
	// where there is something else than mesh TLS, all connections: it finds out what
	// they are, and passes the plaintext on itself.
	Mesh, Ingress, Entry *frontend
	Routes               []route
	Targets              map[string]target

	httpMap, tcpMap strings.Builder
}

// Translate returns haproxy.cfg and its maps.
func (Driver) Translate(view *mesh.View) ([]driver.File, error) {
	settings := view.Settings
	if !hostName.MatchString(settings.TrustDomain) {
		return nil, fmt.Errorf("haproxy: the trust domain %q is no DNS name", settings.TrustDomain)
	}
	doc := &document{
		View: view, RunDir: driver.RunDir, IdentityDir: driver.IdentityDir,
		MeshNames: ".sa." + strings.ToLower(settings.TrustDomain),
		Member:    strings.ToUpper(hex.EncodeToString([]byte("spiffe://" + settings.TrustDomain + "/ns/"))),
		TLS:       "ssl-min-ver TLSv" + version12(settings.TLS.Min) + " ssl-max-ver TLSv" + version12(settings.TLS.Max) + list(" ciphers ", settings.TLS.Ciphers),
		Curves:    list(" curves ", settings.TLS.Curves),
	}
	doc.addInbound()
	doc.addOutbound()
	var config bytes.Buffer
	if err := configTemplate.Execute(&config, doc); err != nil {
		return nil, fmt.Errorf("haproxy: %w", err)
	}
	return []driver.File{
		{Name: configFile, Content: config.Bytes()},
		{Name: httpMap, Content: []byte(doc.httpMap.String())},
		{Name: tcpMap, Content: []byte(doc.tcpMap.String())},
	}, nil
}

// delivered is Translate for the repository. No files at all are what the agent's check
// refuses, so a proxy of which there is no configuration keeps its last one.
func delivered(view *mesh.View) mirror.Set {
	files, err := Driver{}.Translate(view)
	if err != nil {
		return mirror.Set{}
	}
	set := make([]*mirror.File, len(files))
	for i, f := range files {
		if set[i], err = mirror.NewFile(f.Name, string(f.Content)); err != nil {
			return mirror.Set{}
		}
	}
	return mirror.NewSet(set...)
}

// configPath is where the agent keeps the configuration.
var configPath = path.Join(mirrorDir, configFile)

var (
	hostName  = regexp.MustCompile(`^[a-zA-Z0-9._-]+$`)
	plainName = regexp.MustCompile(`^[a-z0-9.-]+/[a-z0-9.-]+:[0-9]+(@[a-z0-9.-]+)?$`)
)

// sectionName returns a name for what is made of a part of that name, as far as it can
// the same.
func sectionName(name string) string {
	if len(name) > 512 || !plainName.MatchString(name) {
		return "digest:" + mesh.DigestBytes([]byte(name)).String()
	}
	return strings.NewReplacer("/", ":", "@", ":").Replace(name)
}

func version12(version string) string {
	if version == "1.2" {
		return version
	}
	return "1.3"
}

// list returns an option with names, or nothing if none is a name.
func list(option string, names []string) string {
	names = slices.DeleteFunc(slices.Clone(names), func(s string) bool { return !hostName.MatchString(s) })
	if len(names) == 0 {
		return ""
	}
	return option + strings.Join(names, ":")
}

func milliseconds(d time.Duration) int64 {
	return min(max(d, time.Millisecond), 20*24*time.Hour).Milliseconds()
}

func badHeader(h mesh.Header) bool { return !headerName.MatchString(h.Name) || quote(h.Value) == "" }

// limits returns the limits of a port's requests, of which the first counts that matches.
func limits(p mesh.InboundPort) []mesh.RouteLimit {
	out := slices.Clone(p.Limits.Routes)
	if p.Limits.Requests != nil {
		out = append(out, mesh.RouteLimit{Limit: *p.Limits.Requests})
	}
	for i := range out {
		if s := out[i].Limit.Status; s < 200 || s > 599 {
			out[i].Limit.Status = 429
		}
	}
	return out
}

func pathRule(name, where, expression string) rule {
	r := when(name, where, mesh.HTTPMatch{Path: mesh.StringMatch{Regex: expression}})
	// What applications read in different ways counts as well.
	r.Parts = r.Parts[:min(1, len(r.Parts))]
	return r
}
