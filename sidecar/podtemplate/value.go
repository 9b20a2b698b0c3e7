package podtemplate

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Value is an untrusted string: it comes from a pod, a namespace or an annotation, and
// not from the operator. A template can compare, test and print it like any other
// string. It prints as a placeholder, which is replaced only after the YAML has been
// decoded, so that a value always stays within one scalar, however the template quotes
// it.
//
// Functions that take a string reject a Value; plain converts one whose characters are
// harmless.
type Value string

const (
	placeholderStart = "OUTRIGGERv"
	placeholderEnd   = 'v'
)

// String returns the placeholder.
func (v Value) String() string {
	return placeholderStart + hex.EncodeToString([]byte(v)) + string(placeholderEnd)
}

// MarshalJSON returns the placeholder as a JSON string, so that toJson and
// toYaml are as safe as printing.
func (v Value) MarshalJSON() ([]byte, error) { return json.Marshal(v.String()) }

// Format prints the placeholder for every verb.
func (v Value) Format(f fmt.State, verb rune) {
	s := v.String()
	if verb == 'q' {
		s = strconv.Quote(s)
	}
	_, _ = f.Write([]byte(s))
}

// keptValue stands for a long value, which its placeholder does not contain: the
// placeholder holds an index of data.kept instead.
type keptValue struct{ number int }

const keptMark = 'k'

// String returns the placeholder.
func (v keptValue) String() string {
	return placeholderStart + string(keptMark) + strconv.Itoa(v.number) + string(placeholderEnd)
}

// MarshalJSON returns the placeholder as a JSON string.
func (v keptValue) MarshalJSON() ([]byte, error) { return json.Marshal(v.String()) }

// takePlaceholders writes the text to out with numbers as placeholders, and returns the
// values by their numbers. Texts that differ only in values become equal.
func takePlaceholders(out *bytes.Buffer, text []byte, kept []string) ([]string, error) {
	var values []string
	for at := bytes.Index(text, start); at >= 0; at = bytes.Index(text, start) {
		out.Write(text[:at])
		text = text[at+len(start):]
		end := bytes.IndexByte(text, placeholderEnd)
		if end < 0 {
			return nil, errors.New("a placeholder was cut by a template function")
		}
		value, err := placed(text[:end], kept)
		if err != nil {
			return nil, fmt.Errorf("a placeholder was changed by a template function: %w", err)
		}
		out.Write(start)
		out.Write(strconv.AppendInt(out.AvailableBuffer(), int64(len(values)), 10))
		out.WriteByte(placeholderEnd)
		values = append(values, value)
		text = text[end+1:]
	}
	out.Write(text)
	return values, nil
}

var start = []byte(placeholderStart)

// placed returns the value of a placeholder.
func placed(inside []byte, kept []string) (string, error) {
	if len(inside) == 0 || inside[0] != keptMark {
		value, err := hex.DecodeString(string(inside))
		return string(value), err
	}
	number, err := strconv.Atoi(string(inside[1:]))
	if err != nil || number < 0 || number >= len(kept) {
		return "", fmt.Errorf("there is no value with number %q", inside[1:])
	}
	return kept[number], nil
}

// putValues replaces the placeholders of takePlaceholders in one decoded string by
// their values.
func putValues(s string, values []string) string {
	at := strings.Index(s, placeholderStart)
	if at < 0 {
		return s
	}
	// Most long values are alone, and are not copied.
	if number, ok := strings.CutSuffix(s[at+len(placeholderStart):], string(placeholderEnd)); ok && at == 0 {
		if n, err := strconv.Atoi(number); err == nil && n >= 0 && n < len(values) && strconv.Itoa(n) == number {
			return values[n]
		}
	}
	var b strings.Builder
	for ; at >= 0; at = strings.Index(s, placeholderStart) {
		b.WriteString(s[:at])
		s = s[at+len(placeholderStart):]
		n := 0
		for len(s) > 0 && s[0] >= '0' && s[0] <= '9' && n < len(values) {
			n = 10*n + int(s[0]-'0')
			s = s[1:]
		}
		if len(s) > 0 {
			s = s[1:]
		}
		if n < len(values) {
			b.WriteString(values[n])
		}
	}
	b.WriteString(s)
	return b.String()
}
