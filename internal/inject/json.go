package inject

import (
	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// unmarshal reads JSON into Kubernetes types as an API server does: names in
// their own case, and encoding/json's rules otherwise. Two equal names and
// invalid UTF-8, which an API server never sends and of which a JSON patch would
// see another reading, are errors. It takes a third of the time of encoding/json.
func unmarshal(data []byte, into any) error {
	return jsonv2.Unmarshal(data, into, jsonv1.DefaultOptionsV1(), jsonv2.MatchCaseInsensitiveNames(false),
		jsontext.AllowDuplicateNames(false), jsontext.AllowInvalidUTF8(false))
}
