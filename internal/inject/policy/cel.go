package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// quote returns a text as a literal of CEL. Anything may be in it.
func quote(text string) string { return strconv.Quote(strings.ToValidUTF8(text, "\ufffd")) }

// list returns a list of literals.
func list(texts []string) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = quote(text)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// jsonText returns the expression of the JSON of the expression of a text, in quotes, as Go's
// encoding/json writes it. The text has no control characters but those that are common.
func jsonText(of string) string {
	var b strings.Builder
	b.WriteString(`('"' + ` + of)
	for _, r := range []struct{ from, to string }{
		{`\`, `\\`}, {`"`, `\"`}, {"<", `\u003c`}, {">", `\u003e`}, {"&", `\u0026`},
		{"\n", `\n`}, {"\r", `\r`}, {"\t", `\t`}, {"\u2028", `\u2028`}, {"\u2029", `\u2029`},
	} {
		fmt.Fprintf(&b, ".replace(%s, %s)", quote(r.from), quote(r.to))
	}
	return b.String() + ` + '"')`
}

// controls matches the control characters that jsonText does not know.
const controls = `[\x00-\x08\x0b\x0c\x0e-\x1f]`

// undollared returns the expression of a JSON text, given as an expression, in the form of
// agentspec.EnvValue. The text has no U+0001.
func undollared(of string) string {
	return of + `.replace("${", "\u0001").replace("$", "\\u0024").replace("\u0001", "${")`
}

// value returns a decoded JSON value as an expression. Texts are written by text. Each value of a
// map or list is dynamic, because the expressions' lists and maps may not be mixed.
func value(v any, text func(string) string) string {
	switch v := v.(type) {
	case string:
		return text(v)
	case bool:
		return strconv.FormatBool(v)
	case json.Number:
		return v.String()
	case nil:
		return "null"
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = "dyn(" + value(v[i], text) + ")"
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case map[string]any:
		var parts []string
		for _, key := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, quote(key)+": dyn("+value(v[key], text)+")")
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	panic(fmt.Sprintf("policy: a JSON value of type %T", v))
}

// pointer returns a key as a token of a JSON pointer.
func pointer(key string) string {
	return strings.ReplaceAll(strings.ReplaceAll(key, "~", "~0"), "/", "~1")
}
