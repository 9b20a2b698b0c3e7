package envoy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// A user's text reaches Envoy's configuration only in types that are safe in its syntax. The
// compiler refuses a plain string where Envoy expects one of them; constants of this package
// are converted by themselves.

// format is text in which Envoy replaces variables such as %HOSTNAME%.
type format string

// literal returns the format of a text without variables.
func literal(text string) format { return format(strings.ReplaceAll(text, "%", "%%")) }

// expression is a regular expression that Envoy accepts.
type expression string

// quoted returns the expression that matches the text.
func quoted(text string) expression { return expression(regexp.QuoteMeta(text)) }

// maxSteps is a third of what the bootstrap allows for the program of a regular expression,
// since RegexSteps may be three times too small.
const maxSteps = 32768 / 3

// expressionOf returns a user's regular expression, and false if Envoy would reject it. It
// takes no control characters, with which Envoy's validation of other fields ends a text.
func expressionOf(text string) (expression, bool) {
	steps, err := mesh.RegexSteps(text)
	return expression(text), err == nil && steps <= maxSteps && isText(text)
}

// regex matches a whole string.
func regex(pattern expression) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: regexMatcher(pattern)}}
}

func regexMatcher(pattern expression) *matcherv3.RegexMatcher {
	return &matcherv3.RegexMatcher{Regex: string(pattern)}
}

// isText reports whether protocol buffers can have the text, and headers could have it.
func isText(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsAny(text, "\x00\r\n")
}

// maxName is the length of the longest name of a header.
const maxName = 1024

// isToken reports whether a header, a method or a cookie can have the name.
func isToken(name string) bool {
	return name != "" && len(name) <= maxName && !strings.ContainsFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
	})
}

// inCEL returns the text as it is written between the quotes of a string in CEL, also where
// that is part of a format.
func inCEL(text string) string {
	var out strings.Builder
	for _, c := range []byte(text) {
		if isPlain := c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_'; isPlain {
			out.WriteByte(c)
		} else {
			fmt.Fprintf(&out, `\x%02x`, c)
		}
	}
	return out.String()
}

// canMatch reports whether some request can satisfy the condition and Envoy can express it.
func canMatch(m mesh.HTTPMatch) bool {
	for _, h := range m.Headers {
		if !isToken(h.Name) || !canMatchString(h.StringMatch) {
			return false
		}
	}
	for _, q := range m.Query {
		if q.Name == "" || len(q.Name) > maxParameterName || len(q.Exact)+len(q.Prefix) > maxParameterValue || !isText(q.Name) || !canMatchString(q.StringMatch) {
			return false
		}
	}
	// Envoy takes no such prefixes, and no path has them.
	if strings.ContainsAny(m.Path.Prefix, "?#") || m.Path.Prefix != "" && m.Path.Prefix[0] != '/' {
		return false
	}
	return canMatchString(m.Path) && (len(m.Methods) == 0 || len(tokens(m.Methods)) > 0)
}

// canMatchString bounds the texts, which become parts of regular expressions in some places.
func canMatchString(m mesh.StringMatch) bool {
	if len(m.Exact)+len(m.Prefix) > maxText || !isText(m.Exact+m.Prefix) {
		return false
	}
	_, ok := expressionOf(m.Regex)
	return ok || m.Exact != "" || m.Prefix != "" || m.Regex == ""
}

// maxText is the length of the longest text that requests are compared with.
const maxText = 4096

// tokens returns the methods that a request can have, as many as one expression takes.
func tokens(methods []string) []string {
	size := 0
	return slices.DeleteFunc(slices.Clone(methods), func(method string) bool {
		if !isToken(method) || size+len(method) > maxText {
			return true
		}
		size += len(method)
		return false
	})
}

// isHost reports whether the text is the name or address of a host, or such a name after "*.".
func isHost(text string) bool {
	return isHostText(strings.TrimPrefix(text, "*."))
}

var isHostText = regexp.MustCompile(`^[A-Za-z0-9._-]{1,255}$|^\[?[0-9A-Fa-f:.]{2,45}\]?$`).MatchString
