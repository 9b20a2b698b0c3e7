package catalog

import "encoding/json"

func asJSON(v any) string {
	content, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err.Error()
	}
	return string(content)
}
