package usage

import (
	"encoding/json"
	"io"

	"sigs.k8s.io/yaml"
)

// PrintAs writes a value in one of the formats json and yaml of the flag -o.
func PrintAs(w io.Writer, format string, value any) error {
	if format == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(value)
	}
	text, err := yaml.Marshal(value)
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}
