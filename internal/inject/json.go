package inject

import (
	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// unmarshal decodes JSON into Kubernetes types as an API server does: by the rules of
// encoding/json, but with case-sensitive names. Duplicate names and invalid UTF-8 are
// errors: an API server never sends them, and a JSON patch could be applied to another
// reading of them. It takes a third of the time of encoding/json.
func unmarshal(data []byte, into any) error {
	return jsonv2.Unmarshal(data, into, jsonv1.DefaultOptionsV1(), jsonv2.MatchCaseInsensitiveNames(false),
		jsontext.AllowDuplicateNames(false), jsontext.AllowInvalidUTF8(false))
}
