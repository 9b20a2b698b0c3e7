// Package redact removes secrets from objects and logs that are shared in bug reports. In
// doubt it removes too much.
package redact

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Mark replaces each removed text.
const Mark = "REDACTED"

var (
	// secretWord matches keys whose values are secret.
	secretWord = regexp.MustCompile(`(?i)authorization|auth\b|cookie|passw(?:or)?d|passphrase|passcode|(?:\b|_)pass\b|(?-i:[a-z0-9]Pass)\b|pwd\b|secret|token|credential|` +
		`(?:api|access|private|client|account|storage|shared|encrypt(?:ion)?|sign(?:ing)?|master|hmac|aes|app|webhook|deploy|license|ssh)[-_.]?key|` +
		`session[-_.]?id|\bsig\b|access[-_.]?signature`)
	// wholeLine are keys whose values extend to the end of the line.
	wholeLine = regexp.MustCompile(`(?i)auth|cookie|passw|passphrase|credential`)
	scheme    = regexp.MustCompile(`(?i)\b(?:bearer|basic|digest|negotiate|apikey)(?:[\s:=,"'\\+]|%20)+`)
	query     = regexp.MustCompile(`\?[^\s"'<>\\]*=[^\s"'<>]*`)
	// known are tokens recognized by their format.
	known = []*regexp.Regexp{
		regexp.MustCompile(`eyJ[A-Za-z0-9_\-+/=.%]{6,}`),
		regexp.MustCompile(`(?:AKIA|ASIA)[A-Z0-9]{12,}`),
		regexp.MustCompile(`(?:gh[pousr]_|github_pat_|glpat-|glsa_|xox[abprs]-|xapp-|hv[sbr]\.|sk-|(?:sk|pk|rk)_(?:live|test)_|whsec_|pypi-|dckr_[po]at_|` +
			`shp(?:at|ca|pa|ss)_|dop_v1_|lin_api_|ya29\.|SG\.|AIza|NRAK-|AGE-SECRET-KEY-)[A-Za-z0-9_\-.]{8,}`),
		regexp.MustCompile(`npm_[A-Za-z0-9]{12,}`),
	}
	// placed are secrets recognized by what precedes them. The group is the secret.
	placed = []*regexp.Regexp{
		regexp.MustCompile(`(?m)^(?:AUTH|PASS)[ \t]+(\S.*)$`),
		regexp.MustCompile(`\b(?:mysql|mariadb)[a-z-]*[ \t][^\n]*?-p(\S+)`),
		regexp.MustCompile(`\b(?:curl|wget)[ \t][^\n]*?(?:-u|--user)[= \t]*(\S+)`),
		regexp.MustCompile(`\b(?:sshpass|ldap[a-z]+|redis-cli)[ \t][^\n]*?-[paw][ \t]*(\S+)`),
		regexp.MustCompile(`hooks\.slack\.com/[a-z]+/(\S+)`),
		regexp.MustCompile(`/bot[0-9]+:(\S+)`),
	}
	// login is a name and a password before a host without a scheme, as in user:password@tcp(host).
	login   = regexp.MustCompile(`[A-Za-z0-9_.+%\-]*:[^\s"'<>` + "`" + `]+@`)
	block   = regexp.MustCompile(`(?s)-----BEGIN ([A-Z0-9 ]+)-----.*?-----END ([A-Z0-9 ]+)-----`)
	begins  = regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]+-----.*`)
	ends    = regexp.MustCompile(`(?:[A-Za-z0-9+/=]{16,}(?:\r?\n|\\n|\s)+)*[A-Za-z0-9+/=]*(?:\r?\n|\\n|\s)*-----END [A-Z0-9 ]+-----`)
	encoded = regexp.MustCompile(`[A-Za-z0-9+/_\-]{60,}={0,2}`)
)

// span is a part of a text.
type span struct{ from, to int }

// Text returns a log, a message or another text without anything that looks like a secret. A
// certificate is replaced by its subject, issuer, expiry and fingerprint.
func Text(text string) string {
	if len(text) < 4 {
		return text
	}
	text = block.ReplaceAllStringFunc(text, func(found string) string {
		return certificate([]byte(strings.ReplaceAll(found, `\n`, "\n")))
	})
	// All rules see the same text, so that no rule hides a match from another.
	var out []span
	for _, rule := range append([]*regexp.Regexp{begins, ends}, known...) {
		for _, at := range rule.FindAllStringIndex(text, -1) {
			out = append(out, span{at[0], at[1]})
		}
	}
	for _, rule := range placed {
		for _, at := range rule.FindAllStringSubmatchIndex(text, -1) {
			out = append(out, span{at[2], at[3]})
		}
	}
	for _, at := range login.FindAllStringIndex(text, -1) {
		password := at[0] + strings.IndexByte(text[at[0]:at[1]], ':') + 1
		// URLs have a rule of their own, and an image's tag is before its digest.
		if rest := text[at[1]:]; !strings.HasPrefix(text[password:], "//") && !strings.HasPrefix(rest, "sha256:") && !strings.HasPrefix(rest, "sha512:") {
			out = append(out, span{password, at[1] - 1})
		}
	}
	for _, at := range query.FindAllStringIndex(text, -1) {
		out = append(out, span{at[0] + 1, at[1]})
	}
	for _, at := range encoded.FindAllStringIndex(text, -1) {
		// Names and hashes use letters of one case only.
		if found := text[at[0]:at[1]]; strings.ToLower(found) != found && strings.ToUpper(found) != found && strings.ContainsAny(found, "0123456789") {
			out = append(out, span{at[0], at[1]})
		}
	}
	for _, at := range scheme.FindAllStringIndex(text, -1) {
		out = append(out, span{at[1], word(text, at[1])})
	}
	for _, at := range secretWord.FindAllStringIndex(text, -1) {
		out = append(out, pair(text, at[0], at[1])...)
	}
	for at := 0; ; {
		next := strings.Index(text[at:], "://")
		if next < 0 {
			break
		}
		at += next + len("://")
		if to := user(text[at:]); to > 0 {
			out = append(out, span{at, at + to})
		}
	}
	return without(text, out)
}

// without replaces the spans by marks.
func without(text string, out []span) string {
	slices.SortFunc(out, func(a, b span) int { return a.from - b.from })
	var b strings.Builder
	at := 0
	for i := 0; i < len(out); {
		s := out[i]
		for i++; i < len(out) && out[i].from <= s.to; i++ {
			s.to = max(s.to, out[i].to)
		}
		if s.to > s.from {
			b.WriteString(text[at:s.from])
			b.WriteString(Mark)
			at = s.to
		}
	}
	b.WriteString(text[at:])
	return b.String()
}

// user returns the length of a URL's userinfo: name and password.
func user(url string) int {
	end := strings.IndexAny(url, " \t\r\n\"'<>`")
	if end < 0 {
		end = len(url)
	}
	host := strings.IndexAny(url[:end], "/?#")
	at := strings.LastIndex(url[:end], "@")
	if at < 0 || host >= 0 && host < at && !strings.Contains(url[:host], ":") && !strings.Contains(url[:host], "@") {
		return 0
	}
	return at
}

// word returns the end of the word at a position.
func word(text string, offset int) int {
	for offset < len(text) && !space(text[offset]) {
		offset++
	}
	return offset
}

func space(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

func line(text string, offset int) int {
	if end := strings.IndexByte(text[offset:], '\n'); end >= 0 {
		return offset + end
	}
	return len(text)
}

func named(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.'
}

// pair returns the span of the value of a key that has a secret word.
func pair(text string, from, to int) []span {
	begin := from
	for begin > 0 && named(text[begin-1]) {
		begin--
	}
	at := to
	for at < len(text) && named(text[at]) {
		at++
	}
	before, after := text[max(0, begin-16):begin], at
	// Configuration languages of proxies: hdr(cookie) -m str VALUE, set-header authorization VALUE.
	if strings.HasSuffix(before, "-header ") || strings.HasSuffix(before, "hdr(") || strings.HasSuffix(before, "cook(") {
		return []span{{at, line(text, at)}}
	}
	for at < len(text) && strings.IndexByte(" \t\\\"'`])", text[at]) >= 0 {
		at++
	}
	quoted := strings.ContainsAny(text[after:at], "\"'`")
	flag := text[begin] == '-'
	switch {
	case at >= len(text):
		return nil
	case text[at] == ':' || text[at] == '=':
		for at < len(text) && strings.IndexByte(":=>~ \t", text[at]) >= 0 {
			at++
		}
	case quoted && text[at] == ',':
		// A header as Envoy logs it, and a flag in a list.
		at++
	case flag && at > after:
		at = after
	default:
		return nil
	}
	return value(text, begin, at, wholeLine.MatchString(text[begin:after]))
}

// value returns the span of the value that begins at a position.
func value(text string, key, offset int, whole bool) []span {
	for offset < len(text) && (text[offset] == ' ' || text[offset] == '\t') {
		offset++
	}
	end := line(text, offset)
	switch rest := strings.TrimSpace(text[offset:end]); {
	case rest == "" || rest[0] == '|' || rest[0] == '>':
		return []span{{offset, indented(text, key, end)}}
	case rest[0] == '[' || rest[0] == '{' || rest[0] == '(' || rest[0] == '&' || rest[0] == '!':
		return []span{{offset, indented(text, key, end)}}
	}
	to, quoted := quote(text, offset)
	switch {
	case quoted:
		// If this was a key, its value still follows.
		next := to
		for next < len(text) && space(text[next]) {
			next++
		}
		if next < len(text) && (text[next] == ':' || text[next] == '=') {
			return append(value(text, key, next+1, whole), span{offset, to})
		}
		// The string ends here but the word goes on: 'it''s', "a"b.
		if to < len(text) && strings.IndexByte(",}]);:", text[to]) < 0 {
			to = max(to, word(text, to))
		}
	case whole:
		to = end
	default:
		to = word(text, offset)
	}
	return []span{{offset, to}}
}

// quote returns the end of the string that begins at a position. Inside another string its
// quotes are escaped by backslashes.
func quote(text string, offset int) (int, bool) {
	begin := offset
	for offset < len(text) && text[offset] == '\\' {
		offset++
	}
	level := offset - begin
	if offset >= len(text) || text[offset] != '"' && text[offset] != '\'' && text[offset] != '`' {
		return 0, false
	}
	mark, slashes := text[offset], 0
	const longest = 64 << 10
	for i := offset + 1; i < min(len(text), offset+longest); i++ {
		switch {
		case text[i] == '\\':
			slashes++
			continue
		case text[i] == mark && slashes%(2*(level+1)) == level:
			if mark == '\'' && i+1 < len(text) && text[i+1] == mark {
				i++
				break
			}
			return i + 1, true
		}
		slashes = 0
	}
	// An unterminated string is hidden up to the limit.
	return min(len(text), offset+longest), true
}

// indented returns the end of the lines that belong to a key by their indentation.
func indented(text string, key, end int) int {
	begin := strings.LastIndexByte(text[:key], '\n') + 1
	depth := indentation(text[begin:])
	for end < len(text) {
		next := text[end+1:]
		to := line(next, 0)
		if strings.TrimSpace(next[:to]) != "" && indentation(next) <= depth {
			break
		}
		end = end + 1 + to
	}
	return end
}

func indentation(text string) int { return len(text) - len(strings.TrimLeft(text, " \t-")) }

// Certificates describes the certificates in PEM by their public data, a line each.
func Certificates(text []byte) string {
	var lines []string
	for {
		var found *pem.Block
		if found, text = pem.Decode(text); found == nil {
			break
		}
		lines = append(lines, describe(found))
	}
	if len(bytes.TrimSpace(text)) > 0 || len(lines) == 0 {
		lines = append(lines, Mark)
	}
	return strings.Join(lines, "\n")
}

func certificate(text []byte) string {
	if found, rest := pem.Decode(text); found != nil && len(bytes.TrimSpace(rest)) == 0 {
		return describe(found)
	}
	return Mark
}

func describe(found *pem.Block) string {
	if found.Type != "CERTIFICATE" {
		return Mark
	}
	c, err := x509.ParseCertificate(found.Bytes)
	if err != nil {
		return Mark
	}
	sum := sha256.Sum256(c.Raw)
	return fmt.Sprintf("certificate of %q by %q until %s, SHA-256 %x", c.Subject, c.Issuer, c.NotAfter.UTC().Format(time.RFC3339), sum)
}
