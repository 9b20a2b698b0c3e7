package ends

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// knownDifference is a row of the page: a difference that is not mended.
type knownDifference struct {
	// says is what users read.
	says string
	// at are the sides at which sidecars of each class of "classes" make the difference.
	at [3]side
	// difference and exchange match all of what was found and of the name of the exchange. An empty
	// exchange matches any.
	difference, exchange string
}

// side is where a sidecar makes a difference.
type side string

const (
	nowhere side = "no"
	client  side = "client"
	atEnd   side = "server"
	both    side = "both"
)

// has reports whether the side is the given one, or both are.
func (s side) has(other side) bool { return s == both || s == other }

// makes reports whether one of the sidecars of the pair makes the difference.
func (k knownDifference) makes(p pair) bool {
	for i, class := range classes {
		if p.client == class && k.at[i].has(client) || p.server == class && k.at[i].has(atEnd) {
			return true
		}
	}
	return false
}

func (k knownDifference) is(p pair, difference, exchange string) bool {
	return k.makes(p) && matches(k.difference, difference) && (k.exchange == "" || matches(k.exchange, exchange))
}

func matches(expression, text string) bool {
	return regexp.MustCompile("^(?:" + expression + ")$").MatchString(text)
}

const pagePath = "../../docs/what-a-sidecar-changes.md"

// The table is between these lines of the page.
const (
	tableBegin = "<!-- test/ends writes this table -->\n"
	tableEnd   = "<!-- end of the table -->\n"
)

// TestKnown compares the table of the page with the one here. UPDATE=1 writes it.
func TestKnown(t *testing.T) {
	text, err := os.ReadFile(pagePath)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), tableBegin)
	_, after, also := strings.Cut(rest, tableEnd)
	if !ok || !also {
		t.Fatalf("%s has no lines %q and %q", pagePath, tableBegin, tableEnd)
	}
	var table strings.Builder
	table.WriteString("| difference | Envoy | HAProxy | Pipy |\n|---|---|---|---|\n")
	for _, k := range known {
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", k.says, k.at[0], k.at[1], k.at[2])
	}
	page := before + tableBegin + table.String() + tableEnd + after
	if page == string(text) {
		return
	}
	if os.Getenv("UPDATE") == "" {
		t.Fatalf("%s is out of date: run UPDATE=1 go test ./test/ends -run TestKnown", pagePath)
	}
	if err := os.WriteFile(pagePath, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
}

// checkPage fails for cells of the table that no pair has shown: what is mended must leave the page.
func checkPage(t *testing.T, found map[pair]map[string][]string) {
	t.Helper()
	for _, k := range known {
		for i, class := range classes {
			for _, at := range []side{client, atEnd} {
				if k.at[i].has(at) && !shown(k, class, at, found) {
					t.Errorf("no pair with %s at the %s's side shows %q", class, at, k.says)
				}
			}
		}
	}
}

func shown(k knownDifference, class string, at side, found map[pair]map[string][]string) bool {
	for p, differences := range found {
		if at == client && p.client != class || at == atEnd && p.server != class {
			continue
		}
		for difference, in := range differences {
			for _, name := range in {
				if matches(k.difference, difference) && (k.exchange == "" || matches(k.exchange, name)) {
					return true
				}
			}
		}
	}
	return false
}

// known are the differences in the order of the page.
var known = []knownDifference{
	{"Names of headers and trailers are in lower case; the path to a Pipy may keep those of requests", [3]side{both, both, both}, `(request|answer): (header|trailer) names are in lower case`, ""},
	{"`x-forwarded-client-cert` with the caller's identity is added to requests", [3]side{atEnd, atEnd, atEnd}, `request: header x-forwarded-client-cert is added`, ""},
	{"`x-request-id` is added to requests", [3]side{both, nowhere, atEnd}, `request: header x-request-id is added`, ""},
	{"`x-forwarded-proto` is added to requests", [3]side{both, nowhere, nowhere}, `request: header x-forwarded-proto is added`, ""},
	{"`date` and `x-envoy-upstream-service-time` are added to answers", [3]side{both, nowhere, nowhere}, `answer: header (date|x-envoy-upstream-service-time) is added`, ""},
	{"`Connection` belongs to each connection: a sidecar writes its own", [3]side{both, both, both}, `(request|answer): header connection .*`, ""},
	{"An `Upgrade` to another protocol than WebSocket, such as `TLS/1.2` or `h2c`, is ignored: the application gets the request without it", [3]side{both, both, both}, `request: header (upgrade|connection) .*`, `upgrade to .*`},
	{"The connection ends after an answer other than 101 to a WebSocket's handshake; of an answer 200 the body is lost with Envoy", [3]side{both, nowhere, both}, `the client's connection is closed.*|answer: header content-type is lost|answer: the body .*`, `a WebSocket that .*`},
	{"Reason phrases are the standard ones", [3]side{both, nowhere, nowhere}, `answer: reason phrase .*`, ""},
	{"Interim answers other than 100, 102 and 103 are lost", [3]side{both, nowhere, nowhere}, `answer: loses the interim answer 199`, ""},
	{"An answer whose end is that of the connection gets chunks, and the client's connection stays open", [3]side{both, nowhere, both}, `answer: the end is marked by chunks, not the end of the connection|the client's connection stays open.*`, `an answer without a length`},
	{"The version of a message is the sidecar's: requests of HTTP/1.0 become HTTP/1.1, or answers to them HTTP/1.0 or HTTP/1.1", [3]side{both, nowhere, atEnd}, `(request|answer): version .*`, ""},
	{"A request of HTTP/1.0 without a host gets one", [3]side{both, nowhere, nowhere}, `request: header host is added`, ""},
	{"An absolute target becomes a path, and its host takes the place of `Host`", [3]side{both, nowhere, both}, `request: target "http://.*|request: header host "server" becomes "other"`, `an absolute target.*`},
	{"An absolute target whose host is not that of `Host` is answered with 400", [3]side{nowhere, both, nowhere}, `the client gets 400 for 200|the client's connection is closed.*|the server gets no request`, `an absolute target of another host`},
	{"Several lines of a list such as `Accept` become one", [3]side{both, nowhere, both}, `request: header lines of accept are joined`, ""},
	{"Several lines of any header except cookies become one", [3]side{nowhere, nowhere, both}, `(request|answer): header lines of .* are joined`, ""},
	{"A request without a body gets `Content-Length: 0`: with Envoy if its method is not GET, HEAD, DELETE or TRACE, with Pipy if it is POST, PUT or PATCH", [3]side{both, nowhere, both}, `request: the end is marked by a length, not nothing`, ""},
	{"A short request in chunks gets a length in place of the chunks", [3]side{nowhere, nowhere, client}, `request: the end is marked by a length, not chunks`, ""},
	{"Methods other than the usual ones and those of WebDAV, such as `FROB` and `QUERY`, are answered with 400. Envoy's threat model does not cover its setting for them", [3]side{both, nowhere, nowhere}, `the client gets 400 for 200|the client's connection is closed.*|the server gets no request`, `method (FROB|QUERY)`},
	{"`OPTIONS *` is answered with 404", [3]side{both, nowhere, nowhere}, `the client gets 404 for 200|the server gets no request`, `OPTIONS \*`},
	{"A target with bytes that are not ASCII is answered with 400", [3]side{both, both, nowhere}, `the client gets 400 for 200|the client's connection is closed.*|the server gets no request`, `target /é`},
	{"Paths are forwarded in [normal form](traffic.md) always, not only where a rule or a route compares paths", [3]side{nowhere, nowhere, both}, `request: target .*`, `target .*`},
	{"A header line of more than 16 KB is answered with 431", [3]side{nowhere, nowhere, both}, `the client gets 431 for 200|the client's connection is closed.*|the server gets no request`, `a very long header`},
	{"A client of HTTP/1.1 that half-closes its connection after the request gets no answer, with Pipy 503", [3]side{both, both, both}, `the client gets no answer|the client gets 503 for 200|the server gets no request|the client's connection .*`, `a client that half-closes`},
	{"The connection stays open after an early answer with `Connection: close`", [3]side{nowhere, client, client}, `answer: header connection is lost|the client's connection stays open.*`, `an early answer|expect, and the server refuses`},
	{"The application is not told that a client of HTTP/1.1 has gone", [3]side{nowhere, atEnd, nowhere}, `the server is not told that the client has gone`, ""},
}
