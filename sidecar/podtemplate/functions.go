package podtemplate

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig/v3"
	"sigs.k8s.io/yaml"
)

// functions are sprig's that give the same for the same arguments, and those
// that users of other injectors know.
func functions() template.FuncMap {
	f := template.FuncMap(sprig.HermeticTxtFuncMap())
	for _, name := range unrepeatable {
		delete(f, name)
	}
	f["print"] = func(args ...any) any { return guard(fmt.Sprint(args...)) }
	f["println"] = func(args ...any) any { return guard(fmt.Sprintln(args...)) }
	f["printf"] = printf
	for _, name := range []string{"quote", "squote", "cat"} {
		text := f[name].(func(...any) string)
		f[name] = func(args ...any) any { return guard(text(args...)) }
	}
	toString, join := f["toString"].(func(any) string), f["join"].(func(string, any) string)
	f["toString"] = func(v any) any { return guard(toString(v)) }
	f["join"] = func(separator string, list any) any { return guard(join(separator, list)) }
	// Taking plain strings, these refuse values; the ones of text/template do not.
	f["html"], f["js"], f["urlquery"] = template.HTMLEscapeString, template.JSEscapeString, url.QueryEscape
	// A number or a truth cannot carry a value's text on.
	toInt, toInt64, toFloat64 := f["int"].(func(any) int), f["int64"].(func(any) int64), f["float64"].(func(any) float64)
	f["int"] = func(v any) int { return toInt(bare(v)) }
	f["int64"] = func(v any) int64 { return toInt64(bare(v)) }
	f["float64"] = func(v any) float64 { return toFloat64(bare(v)) }
	has := f["has"].(func(any, any) bool)
	f["has"] = func(v, list any) bool { return has(bare(v), list) }
	f["plain"] = plain
	f["toYaml"] = func(v any) (string, error) {
		b, err := yaml.Marshal(v)
		return strings.TrimSuffix(string(b), "\n"), err
	}
	f["toJson"] = func(v any) (string, error) {
		b, err := json.Marshal(v)
		return string(b), err
	}
	f["required"] = func(message string, v any) (any, error) {
		if v == nil || fmt.Sprint(v) == "" || v == Value("") {
			return nil, errors.New(message)
		}
		return v, nil
	}
	return f
}

// unrepeatable are functions that sprig counts among the repeatable ones and
// that are not; most of them make keys, which have no place in a pod anyway.
var unrepeatable = []string{
	"ago", "bcrypt", "encryptAES", "genCA", "genCAWithKey", "genPrivateKey", "genSelfSignedCert",
	"genSelfSignedCertWithKey", "genSignedCert", "genSignedCertWithKey", "htpasswd", "randInt", "shuffle",
}

// printed is text with placeholders in it. It can be printed and nothing else:
// cut, changed or compared, its values would not be there yet.
type printed struct{ text string }

// String returns the text with its placeholders.
func (p printed) String() string { return p.text }

// MarshalJSON returns the text with its placeholders as a JSON string.
func (p printed) MarshalJSON() ([]byte, error) { return json.Marshal(p.text) }

// guard returns text that a template function has made of any arguments.
func guard(text string) any {
	if strings.Contains(text, placeholderStart) {
		return printed{text}
	}
	return text
}

// bare returns a Value as a string, and anything else as it is.
func bare(v any) any {
	if s, ok := v.(Value); ok {
		return string(s)
	}
	return v
}

// printf refuses a verb that does not fit its argument: package fmt then prints
// the argument's own bytes, for a Value too.
func printf(format string, args ...any) (any, error) {
	s := fmt.Sprintf(format, args...)
	if strings.Contains(s, "%!") {
		return nil, fmt.Errorf("printf: format %q does not fit its %d arguments", format, len(args))
	}
	return guard(s), nil
}

// plain is the template function that makes a string of a Value whose
// characters mean nothing in YAML.
func plain(v any) (string, error) {
	s, ok := v.(Value)
	if !ok {
		text := fmt.Sprint(v)
		if strings.Contains(text, placeholderStart) {
			return "", errors.New("plain: it must be given a value itself, not what was printed with one")
		}
		return text, nil
	}
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._/@+=-", r) {
			return "", fmt.Errorf("plain: value %q holds %q; only letters, digits and ._/@+=- can be used where a template needs a plain string", string(s), r)
		}
	}
	return string(s), nil
}
