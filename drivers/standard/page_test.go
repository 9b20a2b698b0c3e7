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
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

var (
	pageFile = filepath.Join("..", "..", "docs", "drivers.md")
	// behaviourFile has the results, also for proxies that are not on this machine.
	behaviourFile = filepath.Join("..", "..", "docs", "behaviour.md")
)

// largest is the maximum number of lines of Go per driver: small drivers show that a new
// one is little work. Decision 45 says why this one is not smaller.
var largest = map[string]int{"haproxy": 2240}

// TestPage checks that docs/drivers.md has the drivers' declarations, their sizes, and
// the results of docs/behaviour.md. UPDATE=1 writes it.
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
		t.Errorf("docs/drivers.md is outdated; run UPDATE=1 go test ./drivers/standard (-page +is):\n%s", diff)
	}
}

// TestSizes limits the size of drivers.
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
			t.Errorf("drivers/%s has %d lines of Go without tests, more than the limit of %d: is the length specific to the proxy, or should the SDK make a step easier?", name, is.code, most)
		}
	}
}

// size is the number of lines of a driver.
type size struct {
	// code counts Go without tests, and embedded the embedded files: templates,
	// bootstraps and scripts.
	code, embedded int
}

// near reports whether a size is so close to another that the page need not change.
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

// measure counts the lines of a driver's directory, without documentation and test data.
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

// findings are the results in docs/behaviour.md.
type findings struct {
	// runs are the rows of its table of classes: class, version, date.
	runs [][]string
	// pairs are the columns in order.
	pairs []found
}

// found is the result of a pair of classes.
type found struct {
	pair string
	yes  int
	// others are the rows with answers other than yes.
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
		t.Errorf("findings of the page (-want +got):\n%s", diff)
	}
	if s := want["a"]; !s.near(size{code: 670, embedded: 40}) || s.near(size{code: 660, embedded: 30}) || s.near(size{code: 700, embedded: 41}) {
		t.Error("near is wrong")
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

// meanings describe the features in a few words.
var meanings = map[mesh.Feature]string{
	mesh.FeatureHTTP2:                 "HTTP/2 and gRPC, with streams and trailers",
	mesh.FeatureHTTP2Resets:           "a message of HTTP/2 that is broken off never looks complete",
	mesh.FeatureWebSocket:             "upgraded connections",
	mesh.FeatureOpenConnections:       "[metrics](observe.md#metrics) of TCP connections while they are open",
	mesh.FeatureServerFirst:           "TCP where the server sends first",
	mesh.FeatureIPv6:                  "services, endpoints and peers with IPv6 addresses",
	mesh.FeatureExternalNames:         "splits to an ExternalName service",
	mesh.FeaturePermissiveTLS:         "plaintext and the application's own TLS besides mesh TLS",
	mesh.FeatureTLSSettings:           "TLS versions and ciphers of the MeshConfig",
	mesh.FeatureTLSCurves:             "[key exchanges](#key-exchange) of the MeshConfig",
	mesh.FeatureHeaderMatches:         "conditions on headers",
	mesh.FeatureQueryMatches:          "conditions on query parameters",
	mesh.FeatureHeaderChanges:         "routes set, add and remove headers",
	mesh.FeatureRewrites:              "routes rewrite hosts and paths",
	mesh.FeatureRedirects:             "routes redirect requests",
	mesh.FeatureCORS:                  "browsers' requests from other origins are answered",
	mesh.FeatureMirrors:               "copies of requests are sent to other services",
	mesh.FeatureSessionPersistence:    "a client's requests stay at one endpoint, by a cookie or header",
	mesh.FeatureServerNames:           "TLS connections are routed by server name",
	mesh.FeatureGateways:              "the proxy of a gateway's pod listens at its ports and routes by host",
	mesh.FeatureTermination:           "TLS of clients outside the mesh ends at a gateway",
	mesh.FeatureRetries:               "failed requests are retried",
	mesh.FeatureRetryCodes:            "answers with any status code are retried",
	mesh.FeatureRetryBackoff:          "time between retries",
	mesh.FeatureTimeouts:              "time limits for requests and for each try",
	mesh.FeatureConnectTimeouts:       "time limits for connecting",
	mesh.FeatureIdleTimeouts:          "idle connections are closed",
	mesh.FeatureConnectionLimits:      "limits for connections",
	mesh.FeatureRequestLimits:         "limits for concurrent requests, pending requests and retries",
	mesh.FeatureRequestsPerConnection: "limits for the requests of one connection",
	mesh.FeatureOutlierEjection:       "failing endpoints are ejected for a while",
	mesh.FeatureHealthChecks:          "the client's proxy probes endpoints",
	mesh.FeatureLeastRequest:          "the endpoint with the fewest requests",
	mesh.FeatureRandomEndpoint:        "a random endpoint",
	mesh.FeatureConsistentHash:        "the same endpoint for the same client",
	mesh.FeatureZonePreference:        "endpoints of the client's zone first",
	mesh.FeatureConnectionRateLimits:  "limits for the rate of new connections",
	mesh.FeatureRequestRateLimits:     "limits for the rate of requests, also by path",
	mesh.FeatureExternalAuthorization: "the user's own service authorizes each request",
	mesh.FeatureForwardedFor:          "applications get the caller's address in a header",
	mesh.FeatureProxyProtocol:         "applications get the caller's address by the PROXY protocol",
	mesh.FeatureTokens:                "tokens of end users, signed with RS256 to RS512 or ES256 to ES512",
	mesh.FeatureTokensPSS:             "tokens that are signed with PS256 to PS512",
	mesh.FeatureTokensEdDSA:           "tokens that are signed with EdDSA (Ed25519)",
	mesh.FeatureAccessPolicies:        "access policies that deny, except or name all of a namespace",
	mesh.FeatureAudit:                 "what policies would refuse is counted before they are enforced",
	mesh.FeatureIngress:               "plaintext from outside the mesh, by source address",
	mesh.FeatureIngressTLS:            "TLS from outside the mesh, by certificate",
	mesh.FeatureEgressHTTP:            "calls out of the mesh by host",
	mesh.FeatureEgressTLS:             "calls out of the mesh by server name",
	mesh.FeatureEgressTCP:             "calls out of the mesh by address",
	mesh.FeatureOnDemand:              "services are sent when they are used",
	mesh.FeatureAccessLogs:            "a line of JSON for each request and connection",
	mesh.FeatureAccessLogSampling:     "lines for errors and a share of the others only",
	mesh.FeatureZipkinTracing:         "spans in Zipkin's format",
	mesh.FeatureOTLPTracing:           "spans over OTLP",
	mesh.FeaturePlaintextMesh:         "pods of the class do not use mesh TLS",
}

func TestMeanings(t *testing.T) {
	for _, f := range mesh.Features() {
		if meanings[f] == "" {
			t.Errorf("docs/drivers.md does not describe %s", f)
		}
	}
	if len(meanings) != len(mesh.Features()) {
		t.Error("docs/drivers.md describes a removed feature")
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
	drivers, of := known()
	fmt.Fprintf(&out, pageVersions, of[drivers[0]].AsOf)
	for _, name := range drivers {
		out.WriteString(versions(of[name]))
	}
	out.WriteString(pageUnsupported)
	out.WriteString(pageKeyExchange)
	for _, name := range drivers {
		since := of[name].Hybrid.Since + " of the proxy"
		if library := of[name].Hybrid.Library; library != "" {
			since = of[name].Hybrid.Since + " of the proxy's " + library
		}
		fmt.Fprintf(&out, "| %s | %s |\n", name, since)
	}
	out.WriteString(pageKeyExchanges)
	out.WriteString(pageSizes)
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		s := sizes[name]
		fmt.Fprintf(&out, "| [%s](../drivers/%s) | %d | %d |\n", name, name, s.code, s.embedded)
	}
	return out.String()
}

func answerOf(name string, feature mesh.Feature) string {
	if slices.Contains(sidecar.Features(name), feature) {
		if known := sidecar.Releases(name); known != nil && known.Since[feature] != (driver.Since{}) {
			since := known.Since[feature]
			return fmt.Sprintf("yes since %s %s; before: %s", known.Proxy, since.Version, since.Otherwise)
		}
		return "yes"
	}
	if d, err := sidecar.Lookup(name); err == nil {
		if lacker, ok := d.(drivertest.Lacker); ok && lacker.Lacks()[feature] != "" {
			return "no: " + lacker.Lacks()[feature]
		}
	}
	return "no"
}

const pageIntro = `# What each driver can do

A driver is one kind of sidecar proxy. Its name is the class that a MeshConfig, a
namespace or a pod selects. ` + "`UPDATE=1 go test ./drivers/standard`" + ` writes this page from
the drivers' declarations and the results in [behaviour.md](behaviour.md), and
` + "`go test ./drivers/standard`" + ` checks it.

Every driver uses mTLS with every other, authorizes callers by their identity, serves
HTTP/1.1 and TCP, supports routes by path and method with weights, and denies what it
cannot express. The exception is ` + "[`grpc`](grpc.md)" + `, whose pods have no proxy: it serves gRPC only.
Everything beyond that is a named feature:

`

const pageLacks = `
` + "`null`" + ` has no proxy: it is the template for new drivers, and its pods' traffic is not
redirected.

## What happens if a proxy lacks a feature

An object that requires an undeclared feature of proxies of a class gets a Problem with
the reason ` + "`NotSupportedByProxy`" + `, one for each feature and class. It names the field,
the class, and a service account whose pods have that class. ` + "`outrigger validate`" + `
prints it, and it appears in the object's status, an Event, a metric and ` + "`/debug`" + `. It
ends when the object no longer requires the feature, or no longer affects pods of the
class.

The proxy itself never fails open:

- Conditions that it cannot check deny: a rule with headers that it cannot match allows
  nothing, ingress or egress that it cannot check is closed, and if it cannot ask a
  required authorization service, requests are denied.
- Features that only improve calls, such as timeouts or load balancing policies, are
  ignored, and the Problem says so.

The conformance suite checks both for each feature: a declared one affects the
configuration, and an undeclared one has no effect or denies what requires it. A cell
with text says what the proxy does instead.

## What they do together

How many rows of [the behaviour table](behaviour.md) hold for clients of one class and
servers of another. Pods without a proxy have [a table of their own](grpc.md#what-is-tested). "no" is a row that needs a feature that a driver does not declare.

`

const pageRuns = `
The last runs with each proxy. Their results are kept if the proxy is missing:

| class | version | last run |
|---|---|---|
`

const pageSizes = `
## How large they are

Lines of code when this page was written, accurate to 5 %. Go is counted without tests;
embedded files, such as templates and scripts, are counted separately.

| driver | Go | embedded |
|---|---|---|
`
