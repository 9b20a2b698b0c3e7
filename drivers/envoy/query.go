package envoy

import (
	"fmt"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// The longest names and values of query parameters that routes compare. Expressions for longer
// ones would exceed maxSteps.
const maxParameterName, maxParameterValue = 256, 1024

// addQuery adds conditions on query parameters to the condition of a route. Envoy compares
// parameters as they are written. An expression for the whole target instead compares what
// mesh.QueryParameter returns. Only regular expressions that cannot be translated are compared
// with the value as it is written.
func addQuery(out *routev3.RouteMatch, query []mesh.KeyMatch) {
	for _, q := range query {
		if pattern, ok := firstParameter(q); ok {
			out.Headers = append(out.Headers, requestMatch(":path", regex(pattern)))
			continue
		}
		out.QueryParameters = append(out.QueryParameters, &routev3.QueryParameterMatcher{
			Name: q.Name,
			QueryParameterMatchSpecifier: &routev3.QueryParameterMatcher_StringMatch{
				StringMatch: &matcherv3.StringMatcher{MatchPattern: regex(expression(q.Regex)).MatchPattern},
			},
		})
	}
}

// The parts of a query, which "&" divides, are ignored if they have a semicolon or an invalid
// escape.
const (
	hexDigit   = `[0-9A-Fa-f]`
	validValue = `(?:[^&;%]|%` + hexDigit + `{2})*`
	badValue   = `[^&]*(?:;[^&]*|%(?:[^0-9A-Fa-f&][^&]*|` + hexDigit + `(?:[^0-9A-Fa-f&][^&]*)?)?)`
)

// firstParameter matches targets whose first parameter with the name has the value. It returns
// false if a regular expression for the value cannot be translated.
func firstParameter(q mesh.KeyMatch) (expression, bool) {
	name, value := queryText(q.Name), `(?:=`+validValue+`)?`
	switch {
	case q.Regex != "" && q.Exact == "" && q.Prefix == "":
		escaped, empty, ok := escapedRegex(q.Regex)
		if !ok {
			return "", false
		}
		value = "=" + escaped
		if empty {
			value = "(?:" + value + ")?"
		}
	case q.Exact != "":
		value = "=" + queryText(q.Exact)
	case q.Prefix != "":
		value = "=" + queryText(q.Prefix) + validValue
	}
	other := `(?:` + otherName(q.Name) + `(?:=[^&]*)?|` + name + `=` + badValue + `)`
	return expression(`[^?]*\?(?:` + other + `&)*` + name + value + `(?:&.*)?`), true
}

// otherName matches what is not the name once it is decoded.
func otherName(name string) string {
	const rest = `[^&=]*`
	out, end := new(strings.Builder), 0
	for _, c := range []byte(name) {
		digits := fmt.Sprintf("%02x", c)
		first, second := bothCases(digits[0]), bothCases(digits[1])
		// Nothing, another character, an escape of another one or none, or this character
		// followed by something else than the rest of the name.
		fmt.Fprintf(out, `(?:|[^&=%%%s]%s|%%(?:[^&=%s]%s)?|%%[%s](?:[^&=%s]%s)?|%s`,
			unescaped(c), rest, first, rest, first, second, rest, queryText(string([]byte{c})))
		end++
	}
	return out.String() + `[^&=]+` + strings.Repeat(")", end)
}

// unescaped returns the characters that stand for one, as a part of a class.
func unescaped(c byte) string {
	switch {
	case c == ' ':
		return ` +`
	case c == '+' || c == ';' || c >= 0x80:
		return ""
	}
	return fmt.Sprintf(`\x%02x`, c)
}

func bothCases(digit byte) string {
	return string(digit) + strings.ToUpper(string(digit))
}
