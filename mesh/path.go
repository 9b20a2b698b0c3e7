package mesh

import "strings"

// NormalPath returns the path in the form that the routes of a Destination and the rules of an
// InboundPort compare, and that is forwarded if one of them compares a path at all. Drivers
// for proxies without a normalization of their own implement this one. The argument may have a
// query, which is returned unchanged. In the path, in this order:
//
//  1. Escapes of letters, digits, "-", ".", "_" and "~" are decoded. All other escapes, and
//     percent signs that escape nothing, stay as they are, and so do escapes of characters that
//     would become a part of another escape, as in "%%361".
//  2. A backslash becomes a slash, and bytes that a URL path cannot contain are escaped: `"`,
//     "<", ">", "^", "`", "{", "|", "}" and those of characters outside ASCII.
//  3. Dot segments are removed as in RFC 3986, section 5.2.4. A segment is one too if
//     parameters follow its dots, as in "..;v=1". Empty segments stay: "//a" is not "/a".
//
// NormalPath returns false for a path that no route or rule matches, whatever it compares: one
// that does not begin with a slash, or has a control character, a space, a "#", an escaped NUL,
// or parameters after dots of which one is escaped, such as "%2e.;". Proxies disagree about
// the last kind. Normalizing a normal path changes nothing.
func NormalPath(path string) (string, bool) {
	path, query, hasQuery := strings.Cut(path, "?")
	if !strings.HasPrefix(path, "/") {
		return "", false
	}
	segments := strings.Split(strings.ReplaceAll(path, `\`, "/")[1:], "/")
	kept := make([]string, 0, len(segments))
	for i, segment := range segments {
		decoded, ok := normalSegment(segment)
		if !ok {
			return "", false
		}
		dots, _, hasParameters := strings.Cut(decoded, ";")
		isDots := dots == "." || dots == ".."
		switch {
		case isDots && hasParameters && !strings.HasPrefix(segment, dots):
			return "", false
		case !isDots:
			kept = append(kept, decoded)
			continue
		case dots == ".." && len(kept) > 0:
			kept = kept[:len(kept)-1]
		}
		if i == len(segments)-1 {
			kept = append(kept, "")
		}
	}
	normal := "/" + strings.Join(kept, "/")
	if hasQuery {
		normal += "?" + query
	}
	return normal, true
}

// normalSegment decodes and escapes the bytes of a segment.
func normalSegment(segment string) (string, bool) {
	const upperHex = "0123456789ABCDEF"
	var out strings.Builder
	for i := 0; i < len(segment); i++ {
		c := segment[i]
		if escaped, ok := unescape(segment[i:]); ok {
			switch {
			case escaped == 0:
				return "", false
			case isUnreserved(escaped) && !(hexDigit(escaped) >= 0 && beginsEscape(out.String())):
				out.WriteByte(escaped)
			default:
				out.WriteString(segment[i : i+3])
			}
			i += 2
			continue
		}
		switch {
		case c <= ' ' || c == 0x7f || c == '#':
			return "", false
		case c >= 0x80 || strings.IndexByte("\"<>^`{|}", c) >= 0:
			out.WriteString(string([]byte{'%', upperHex[c>>4], upperHex[c&15]}))
		default:
			out.WriteByte(c)
		}
	}
	return out.String(), true
}

// beginsEscape reports whether a text ends with a percent sign, or one and a digit.
func beginsEscape(text string) bool {
	n := len(text)
	return n > 0 && text[n-1] == '%' || n > 1 && text[n-2] == '%' && hexDigit(text[n-1]) >= 0
}

func isUnreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

// unescape returns the byte that a percent sign and two hexadecimal digits at the beginning of
// the text stand for.
func unescape(text string) (byte, bool) {
	if len(text) < 3 || text[0] != '%' {
		return 0, false
	}
	high, low := hexDigit(text[1]), hexDigit(text[2])
	return byte(high<<4 | low), high >= 0 && low >= 0
}

// hexDigit returns -1 for other characters.
func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
