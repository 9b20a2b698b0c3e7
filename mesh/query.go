package mesh

import "strings"

// QueryParameter returns the value of the query's first parameter with the name, and false if
// there is none. Routes and rules compare this value with a KeyMatch, exactly and in case.
// Drivers for proxies with another idea of a query implement this one.
//
// The query is what follows the first "?" of a target. It is split at each "&". A part is a
// name and a value, divided by its first "="; without one, the value is empty. In both, "+" is
// a space, and an escape such as "%20" is the byte that it stands for, so "s=a%20b" and
// "%73=a+b" both give s the value "a b". A part with a semicolon, or with a percent sign that
// escapes nothing, is ignored, as is an empty one. The name must be as it is after decoding.
func QueryParameter(query, name string) (string, bool) {
	for part := range strings.SplitSeq(query, "&") {
		if part == "" || strings.Contains(part, ";") {
			continue
		}
		key, value, _ := strings.Cut(part, "=")
		key, keyOK := unescapeQuery(key)
		value, valueOK := unescapeQuery(value)
		if keyOK && valueOK && key == name {
			return value, true
		}
	}
	return "", false
}

// unescapeQuery decodes a name or a value of a query.
func unescapeQuery(text string) (string, bool) {
	if !strings.ContainsAny(text, "%+") {
		return text, true
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '+':
			out.WriteByte(' ')
		case '%':
			escaped, ok := unescape(text[i:])
			if !ok {
				return "", false
			}
			out.WriteByte(escaped)
			i += 2
		default:
			out.WriteByte(c)
		}
	}
	return out.String(), true
}
