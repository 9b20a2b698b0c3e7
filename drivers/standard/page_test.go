package standard_test

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

var (
	pageFile = filepath.Join("..", "..", "docs", "drivers.md")
	// behaviourFile keeps what was found with proxies that are not on this machine.
	behaviourFile = filepath.Join("..", "..", "docs", "behaviour.md")
)

// largest is how many lines of Go a driver may have: what shows that a driver is little
// work is a third one that is little.
var largest = map[string]int{"haproxy": 700}

// TestPage holds that docs/drivers.md says what the drivers declare, how large they are,
// and what docs/behaviour.md has found of them. UPDATE=1 writes it.
func TestPage(t *testing.T) {
	behaviour, err := os.ReadFile(behaviourFile)
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string]size{}
	for _, name := range sidecar.Drivers() {
		if sizes[name], err = measure(os.DirFS(filepath.Join("..", name))); err != nil {
			t.Fatal(err)
		}
	}
	seen := readFindings(string(behaviour))
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(pageFile, []byte(pageOf(sizes, seen)), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	is, err := os.ReadFile(pageFile)
	if err != nil {
		t.Fatal(err)
	}
	for name, was := range readSizes(string(is)) {
		if sizes[name].near(was) {
			sizes[name] = was
		}
	}
	if diff := gocmp.Diff(string(is), pageOf(sizes, seen)); diff != "" {
		t.Errorf("docs/drivers.md is not what there is; run UPDATE=1 go test ./drivers/standard (-page +is):\n%s", diff)
	}
}

// TestSizes holds that no driver has grown too large.
func TestSizes(t *testing.T) {
	for name, most := range largest {
		if !slices.Contains(sidecar.Drivers(), name) {
			continue
		}
		is, err := measure(os.DirFS(filepath.Join("..", name)))
		if err != nil {
			t.Fatal(err)
		}
		if is.code > most {
			t.Errorf("drivers/%s has %d lines of Go without tests, and may have %d: is what makes it long the proxy's, or a step that the SDK should make easier?", name, is.code, most)
		}
	}
}

// size is how many lines a driver has.
type size struct {
	// code is lines of Go without tests, and embedded those of what the driver embeds:
	// templates, bootstraps, scripts.
	code, embedded int
}

// near reports whether a size is so close to another that the page need not say it anew.
func (s size) near(other size) bool {
	near := func(a, b int) bool { return max(a, b)-min(a, b) <= max(10, b/20) }
	return near(s.code, other.code) && near(s.embedded, other.embedded)
}

// readSizes reads the last table of the page.
func readSizes(page string) map[string]size {
	sizes := map[string]size{}
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		name, _, ok := strings.Cut(strings.TrimPrefix(cells[0], "| ["), "](../drivers/")
		var s size
		if ok && len(cells) == 3 {
			if _, err := fmt.Sscanf(cells[1]+" "+cells[2], "%d %d", &s.code, &s.embedded); err == nil {
				sizes[name] = s
			}
		}
	}
	return sizes
}

// measure counts the lines of a driver's folder, without its documentation and what its
// tests compare with.
func measure(driver fs.FS) (size, error) {
	var s size
	err := fs.WalkDir(driver, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == "testdata":
			return fs.SkipDir
		case entry.IsDir() || strings.HasSuffix(name, ".md") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		content, err := fs.ReadFile(driver, name)
		if err != nil {
			return err
		}
		if lines := bytes.Count(content, []byte("\n")); strings.HasSuffix(name, ".go") {
			s.code += lines
		} else {
			s.embedded += lines
		}
		return nil
	})
	return s, err
}

// findings are what docs/behaviour.md says.
type findings struct {
	// runs are the rows of its table of classes: class, version, date.
	runs [][]string
	// pairs are the columns in their order.
	pairs []found
}

// found is what was found of a pair of classes.
type found struct {
	pair string
	yes  int
	// others are rows that are not answered with yes, with their answers.
	others []string
}

// readFindings reads the tables of docs/behaviour.md.
func readFindings(text string) findings {
	var f findings
	inRuns, inRows := false, false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "| ") || !strings.HasSuffix(line, " |") {
			continue
		}
		cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "| "), " |"), " | ")
		switch {
		case cells[0] == "row":
			if inRows = true; f.pairs == nil {
				for _, pair := range cells[2:] {
					f.pairs = append(f.pairs, found{pair: pair})
				}
			}
		case cells[0] == "class":
			inRuns = true
		case inRuns && !inRows && len(cells) == 3:
			f.runs = append(f.runs, cells)
		case inRows && len(cells) == len(f.pairs)+2:
			for i, answer := range cells[2:] {
				if answer == "yes" {
					f.pairs[i].yes++
				} else {
					f.pairs[i].others = append(f.pairs[i].others, cells[0]+": "+answer)
				}
			}
		}
	}
	return f
}

func TestReadFindings(t *testing.T) {
	got := readFindings(`
| class | version | last run |
|---|---|---|
| a | 1.0 | 2026-01-01 |
| b | unknown | 2026-02-01 |

## Protocols

| row | says | a to a | a to b |
|---|---|---|---|
| TCP | It passes. | yes | yes |
| gRPC | It passes. | yes | no |

## Traffic

| row | says | a to a | a to b |
|---|---|---|---|
| Retry | It is tried again. | yes | not asked |
`)
	want := findings{
		runs:  [][]string{{"a", "1.0", "2026-01-01"}, {"b", "unknown", "2026-02-01"}},
		pairs: []found{{pair: "a to a", yes: 3}, {pair: "a to b", yes: 1, others: []string{"gRPC: no", "Retry: not asked"}}},
	}
	if diff := gocmp.Diff(want, got, gocmp.AllowUnexported(findings{}, found{})); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

func TestReadSizes(t *testing.T) {
	want := map[string]size{"a": {code: 700, embedded: 30}, "b": {code: 1}}
	if diff := gocmp.Diff(want, readSizes(pageOf(want, findings{})), gocmp.AllowUnexported(size{})); diff != "" {
		t.Errorf("what is read of the page (-want +got):\n%s", diff)
	}
	if s := want["a"]; !s.near(size{code: 670, embedded: 40}) || s.near(size{code: 660, embedded: 30}) || s.near(size{code: 700, embedded: 41}) {
		t.Error("sizes are near that are not, or the other way round")
	}
}

func TestMeasure(t *testing.T) {
	file := func(lines int) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte(strings.Repeat("line\n", lines))}
	}
	got, err := measure(fstest.MapFS{
		"a.go": file(3), "sub/b.go": file(4), "a_test.go": file(50), "testdata/c.go": file(1000), "README.md": file(1000),
		"template.yaml": file(7), "scripts/main.js": file(8),
	})
	if want := (size{code: 7, embedded: 15}); err != nil || got != want {
		t.Errorf("measured %+v, %v, want %+v", got, err, want)
	}
}

// meanings say in a few words what features are.
var meanings = map[mesh.Feature]string{
	mesh.FeatureHTTP2:                 "HTTP/2 and gRPC, with streams and trailers",
	mesh.FeatureWebSocket:             "upgraded connections",
	mesh.FeatureServerFirst:           "TCP where the server speaks first",
	mesh.FeatureIPv6:                  "services, endpoints and peers with IPv6 addresses",
	mesh.FeatureExternalNames:         "splits to a service that is another DNS name",
	mesh.FeaturePermissiveTLS:         "plaintext and the application's own TLS beside mesh TLS",
	mesh.FeatureTLSSettings:           "TLS versions, ciphers and curves of the MeshConfig",
	mesh.FeatureHeaderMatches:         "conditions on headers",
	mesh.FeatureQueryMatches:          "conditions on query parameters",
	mesh.FeatureRetries:               "requests are tried again",
	mesh.FeatureTimeouts:              "requests, and each try of them, take so long at most",
	mesh.FeatureConnectTimeouts:       "connecting takes so long at most",
	mesh.FeatureIdleTimeouts:          "idle connections end",
	mesh.FeatureConnectionLimits:      "so many connections at most",
	mesh.FeatureRequestLimits:         "so many requests, waiting requests and retries at a time",
	mesh.FeatureRequestsPerConnection: "so many requests on one connection",
	mesh.FeatureOutlierEjection:       "endpoints that fail are left out for a while",
	mesh.FeatureHealthChecks:          "the client's proxy probes endpoints",
	mesh.FeatureLeastRequest:          "the endpoint with the fewest requests",
	mesh.FeatureRandomEndpoint:        "any endpoint",
	mesh.FeatureConsistentHash:        "the same endpoint for the same client",
	mesh.FeatureZonePreference:        "endpoints of the client's zone first",
	mesh.FeatureConnectionRateLimits:  "so many new connections in a time",
	mesh.FeatureRequestRateLimits:     "so many requests in a time, by path too",
	mesh.FeatureExternalAuthorization: "a service of the user's is asked about each request",
	mesh.FeatureIngress:               "plaintext from outside the mesh, by address",
	mesh.FeatureIngressTLS:            "TLS from outside the mesh, by certificate",
	mesh.FeatureEgressHTTP:            "out of the mesh by host",
	mesh.FeatureEgressTLS:             "out of the mesh by server name",
	mesh.FeatureEgressTCP:             "out of the mesh by address",
	mesh.FeatureAccessLogs:            "a line of JSON for each request and connection",
	mesh.FeatureZipkinTracing:         "spans by Zipkin's protocol",
	mesh.FeatureOTLPTracing:           "spans by OTLP",
	mesh.FeaturePlaintextMesh:         "pods of the class speak no mesh TLS",
}

func TestMeanings(t *testing.T) {
	for _, f := range mesh.Features() {
		if meanings[f] == "" {
			t.Errorf("docs/drivers.md does not say what %s is", f)
		}
	}
	if len(meanings) != len(mesh.Features()) {
		t.Error("docs/drivers.md tells of what is no feature any more")
	}
}

// pageOf returns the page.
func pageOf(sizes map[string]size, seen findings) string {
	var out bytes.Buffer
	names := sidecar.Drivers()
	out.WriteString(pageIntro)
	out.WriteString("| feature | what it is | " + strings.Join(names, " | ") + " |\n|---|---|" + strings.Repeat("---|", len(names)) + "\n")
	for _, feature := range mesh.Features() {
		fmt.Fprintf(&out, "| %s | %s |", feature, meanings[feature])
		for _, name := range names {
			fmt.Fprintf(&out, " %s |", answerOf(name, feature))
		}
		out.WriteString("\n")
	}
	out.WriteString(pageLacks)
	out.WriteString("| clients to servers | yes | otherwise |\n|---|---|---|\n")
	for _, p := range seen.pairs {
		fmt.Fprintf(&out, "| %s | %d of %d | %s |\n", p.pair, p.yes, p.yes+len(p.others), cmp.Or(strings.Join(p.others, "; "), "-"))
	}
	out.WriteString(pageRuns)
	for _, run := range seen.runs {
		out.WriteString("| " + strings.Join(run, " | ") + " |\n")
	}
	out.WriteString(pageVersions)
	out.WriteString(pageSizes)
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		s := sizes[name]
		fmt.Fprintf(&out, "| [%s](../drivers/%s) | %d | %d |\n", name, name, s.code, s.embedded)
	}
	return out.String()
}

func answerOf(name string, feature mesh.Feature) string {
	if slices.Contains(sidecar.Features(name), feature) {
		return "yes"
	}
	if d, err := sidecar.Lookup(name); err == nil {
		if lacker, ok := d.Driver.(drivertest.Lacker); ok && lacker.Lacks()[feature] != "" {
			return "no: " + lacker.Lacks()[feature]
		}
	}
	return "no"
}

const pageIntro = `# What each driver can do

A driver is one kind of sidecar proxy, and its name the class that a MeshConfig, a
namespace or a pod chooses. ` + "`UPDATE=1 go test ./drivers/standard`" + ` writes this page from
what the drivers declare and from what [behaviour.md](behaviour.md) has found, and
` + "`go test ./drivers/standard`" + ` holds it.

Every driver speaks mTLS with every other, lets in by the identity of the caller,
serves HTTP/1.1 and TCP, follows routes by path and method and their weights, and
denies what it can't express. What goes beyond that has a name:

`

const pageLacks = `
` + "`null`" + ` has no proxy: it is the template for new drivers, and its pods keep their traffic.

## What happens where a proxy lacks a feature

An object that asks proxies of a class for what its driver does not declare gets a
Problem with the reason ` + "`NotSupportedByProxy`" + `, one for each feature and class. It names
the field, the class, and a service account whose pods have that class.
` + "`outrigger validate`" + ` prints it, and it is in the object's status, an Event, a metric and
` + "`/debug`" + `. It ends when the object does not ask any more, or no pod of the class is
concerned.

The proxy itself never fails open:

- A condition that it can't ask for denies: a rule with headers that it can't match
  allows nothing, a way in or out of the mesh that it can't check is closed, and where a
  service must be asked about each request and can't be, requests are denied.
- Without what only makes calls better, such as a timeout or a way to choose an
  endpoint, it goes on, and the Problem says so.

The conformance suite holds both, for each feature: one that is declared ends in the
configuration, and one that is not leaves no trace in it or shuts the door. A cell
with words says what the proxy does in the feature's place.

## What they do together

How many rows of [the table of behaviour](behaviour.md) hold for clients of one class
and servers of another. "no" is a row that a driver does not declare.

`

const pageVersions = `
## Which versions work

Every driver has a built-in image. These are the oldest versions that work, as far as
that has been tried:

| class | built in | oldest that works | what was tried |
|---|---|---|---|
| envoy | 1.40.0 | 1.37 | the table of behaviour between two of 1.37.0. 1.36 refuses its configuration, for it knows neither ` + "`max_early_data_bytes`" + ` of a TCP proxy nor the keepalive of a listener. OSM's ` + "`envoy-distroless:v1.22.2`" + ` is older still |
| haproxy | 2.6 | 2.6 | the table of behaviour with 2.6.12, which is Debian's |
| pipy | 1.5.18 | 1.5.18 | the table of behaviour. Of older versions nothing is known |

An image whose tag is an older version is a Problem of the MeshConfig that names it, and
an admission warning, ` + "`" + `image_too_old` + "`" + `, at every pod that gets it. Nothing is known of
images with another tag, such as ` + "`" + `latest` + "`" + `, or with a digest alone.
`

const pageRuns = `
The last runs with each proxy, which keep their results here where the proxy is missing:

| class | version | last run |
|---|---|---|
`

const pageSizes = `
## How large they are

In lines, as they were when this page was written, at most a twentieth off. Go is without
tests; what a driver embeds, such as templates and scripts, is counted apart.

| driver | Go | embedded |
|---|---|---|
`
