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

// functions returns sprig's deterministic functions, and others that users know from
// other injectors.
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
	// These take strings and so reject a Value, unlike the ones of text/template.
	f["html"], f["js"], f["urlquery"] = template.HTMLEscapeString, template.JSEscapeString, url.QueryEscape
	// Numbers and booleans cannot leak a value's text.
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

// unrepeatable are functions that sprig lists as hermetic although their results vary.
// Most of them generate keys, which do not belong in a pod anyway.
var unrepeatable = []string{
	"ago", "bcrypt", "encryptAES", "genCA", "genCAWithKey", "genPrivateKey", "genSelfSignedCert",
	"genSelfSignedCertWithKey", "genSignedCert", "genSignedCertWithKey", "htpasswd", "randInt", "shuffle",
}

// printed is text that contains placeholders. It can only be printed: functions that
// cut, change or compare it would see the placeholders and not the values.
type printed struct{ text string }

// String returns the text with its placeholders.
func (p printed) String() string { return p.text }

// MarshalJSON returns the text with its placeholders as a JSON string.
func (p printed) MarshalJSON() ([]byte, error) { return json.Marshal(p.text) }

// guard returns the text, as printed if it contains placeholders.
func guard(text string) any {
	if strings.Contains(text, placeholderStart) {
		return printed{text}
	}
	return text
}

// bare returns a Value as a string, and anything else unchanged.
func bare(v any) any {
	if s, ok := v.(Value); ok {
		return string(s)
	}
	return v
}

// printf rejects verbs that do not fit their arguments: package fmt would print the
// bytes of the argument, even of a Value.
func printf(format string, args ...any) (any, error) {
	s := fmt.Sprintf(format, args...)
	if strings.Contains(s, "%!") {
		return nil, fmt.Errorf("printf: format %q does not fit its %d arguments", format, len(args))
	}
	return guard(s), nil
}

// plain is the template function that converts a Value to a string if its characters
// have no meaning in YAML.
func plain(v any) (string, error) {
	s, ok := v.(Value)
	if !ok {
		text := fmt.Sprint(v)
		if strings.Contains(text, placeholderStart) {
			return "", errors.New("plain: the argument must be a value, not text printed with one")
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
