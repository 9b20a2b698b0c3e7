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

// Value is a string that is not the operator's: it comes from a pod, a
// namespace or an annotation. In a template it can be compared, tested and
// printed like any other string. What is printed is a placeholder, for which the
// value is put in only after the YAML has been read: so no value can become
// anything but the text of one scalar, however the template quotes it.
//
// A function that takes a plain string refuses a Value; plain converts one whose
// characters are harmless.
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

// Format prints the placeholder, whatever the verb.
func (v Value) Format(f fmt.State, verb rune) {
	s := v.String()
	if verb == 'q' {
		s = strconv.Quote(s)
	}
	_, _ = f.Write([]byte(s))
}

// keptValue is a Value that is too long to be worth a placeholder which holds it;
// its placeholder is the number under which it is kept for one rendering.
type keptValue struct{ number int }

const keptMark = 'k'

// String returns the placeholder.
func (v keptValue) String() string {
	return placeholderStart + string(keptMark) + strconv.Itoa(v.number) + string(placeholderEnd)
}

// MarshalJSON returns the placeholder as a JSON string.
func (v keptValue) MarshalJSON() ([]byte, error) { return json.Marshal(v.String()) }

// takePlaceholders writes the text to out with each placeholder replaced by one
// that holds only a number, and returns the values by that number. Texts that
// differ in nothing but values become equal.
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

// placed returns the value that a placeholder stands for.
func placed(inside []byte, kept []string) (string, error) {
	if len(inside) == 0 || inside[0] != keptMark {
		value, err := hex.DecodeString(string(inside))
		return string(value), err
	}
	number, err := strconv.Atoi(string(inside[1:]))
	if err != nil || number < 0 || number >= len(kept) {
		return "", fmt.Errorf("%q is the number of no value", inside[1:])
	}
	return kept[number], nil
}

// putValues is the other half of takePlaceholders, for one string of what was
// read from the text.
func putValues(s string, values []string) string {
	at := strings.Index(s, placeholderStart)
	if at < 0 {
		return s
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
