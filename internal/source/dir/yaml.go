package dir

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	yaml3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// toJSON converts a document, which begins on a line of its file, from YAML to JSON. A key may not
// be there twice, but a key of a mapping overrides the one that a merge key (<<) brings, as in
// kubectl.
func toJSON(content []byte, line int) ([]byte, error) {
	converted, err := yaml.YAMLToJSONStrict(content)
	if err == nil {
		return converted, nil
	}
	if at := bytes.Index(content, []byte("{{")); at >= 0 {
		return nil, fmt.Errorf("line %d has {{, as a template of Helm; render it first, with helm template, and read the result", line+bytes.Count(content[:at], []byte("\n")))
	}
	text := plain(err)
	var any any
	if strings.Contains(text, "already set in map") && bytes.Contains(content, []byte("<<")) && yaml3.Unmarshal(content, &any) == nil {
		return yaml.YAMLToJSON(content)
	}
	if strings.Contains(text, "invalid map key") {
		// The message has the key as Go prints it.
		return nil, fmt.Errorf("a key is a mapping or a list; write a text, and quote one that begins with { or [")
	}
	return nil, fmt.Errorf("%s", inFile(text, line))
}

var lineNumber = regexp.MustCompile(`\bline (\d+)`)

// inFile turns the line numbers of a document's errors into those of its file.
func inFile(text string, line int) string {
	return lineNumber.ReplaceAllStringFunc(text, func(match string) string {
		n, err := strconv.Atoi(match[len("line "):])
		if err != nil {
			return match
		}
		return fmt.Sprintf("line %d", line+max(n, 1)-1)
	})
}

// unquoted is the way out for a value that YAML does not take for a text.
const unquoted = "without quotes, YAML takes y, yes, no, on, off, true, 1234 and 1e3 for something else than a text, so put the value in quotes"

// wrongType describes a field whose value has not the type of text.
func wrongType(field string, value json.RawMessage) error {
	switch first := bytes.TrimSpace(value); {
	case len(first) > 0 && (first[0] == '{' || first[0] == '['):
		return fmt.Errorf("%s must be a text, and is a mapping or a list", field)
	default:
		return fmt.Errorf("%s is %s, not a text; %s", field, first, unquoted)
	}
}

var jsonType = regexp.MustCompile(`json: cannot unmarshal (\w+)(?: \S+)? into Go (?:struct field \w+\.(\S+)|value) of type (\S+)`)

// jsonTypes are the words for types of JSON, and of Go by their beginning.
var jsonTypes, goTypes = map[string]string{
	"string": "a text", "number": "a number", "bool": "true or false", "array": "a list", "object": "a mapping",
}, []struct{ prefix, word string }{
	{"string", "a text"}, {"bool", "true or false"}, {"int", "a whole number"}, {"uint", "a whole number"}, {"float", "a number"}, {"[]", "a list"},
}

// readable returns the text of an error of a decoder, without the types of Go.
func readable(err error) string {
	text := plain(err)
	found := jsonType.FindStringSubmatch(text)
	if found == nil {
		return text
	}
	field, wanted := found[2], "a mapping"
	if field == "" {
		field = "the value"
	}
	for _, t := range goTypes {
		if strings.HasPrefix(strings.TrimPrefix(found[3], "*"), t.prefix) {
			wanted = t.word
			break
		}
	}
	text = strings.Replace(text, found[0], fmt.Sprintf("%s must be %s, and is %s", field, wanted, jsonTypes[found[1]]), 1)
	if wanted == "a text" && (found[1] == "bool" || found[1] == "number") {
		text += "; " + unquoted
	}
	return text
}
