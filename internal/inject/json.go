package inject

import (
	"bytes"
	"slices"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
	corev1 "k8s.io/api/core/v1"
)

// strictly are the rules of unmarshal.
var strictly = jsonv2.JoinOptions(jsonv1.DefaultOptionsV1(), jsonv2.MatchCaseInsensitiveNames(false),
	jsontext.AllowDuplicateNames(false), jsontext.AllowInvalidUTF8(false))

// inOnePass reads without first looking for errors in the whole text.
var inOnePass = jsonv2.JoinOptions(strictly, jsonv1.ReportErrorsWithLegacySemantics(false))

// unmarshal decodes JSON into Kubernetes types as an API server does: by the rules of
// encoding/json, but with case-sensitive names. Duplicate names and invalid UTF-8 are
// errors: an API server never sends them, and a JSON patch could be applied to another
// reading of them. It takes a fifth of the time of encoding/json.
func unmarshal[T any](data []byte, into *T) error {
	before := *into
	if jsonv2.Unmarshal(data, into, inOnePass) == nil {
		return nil
	}
	// Read again, what is wrong is said in the words of encoding/json.
	*into = before
	return jsonv2.Unmarshal(data, into, strictly)
}

// object is the object of a review. It is read as a pod together with the review.
type object struct {
	// pod is nil if the object is null or missing, or could not be read as a pod.
	pod *corev1.Pod
	// raw is the object's JSON.
	raw []byte
	// from and to are where it begins and ends in the review.
	from, to int64
}

// UnmarshalJSONFrom reads a pod.
func (o *object) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	if d.PeekKind() == 'n' {
		return d.SkipValue()
	}
	o.from = d.InputOffset()
	pod := &corev1.Pod{}
	if err := jsonv2.UnmarshalDecode(d, pod); err != nil {
		return err
	}
	o.pod, o.to = pod, d.InputOffset()
	return nil
}

// keepObjects leaves objects undecoded.
var keepObjects = jsonv2.WithUnmarshalers(jsonv2.UnmarshalFromFunc(func(d *jsontext.Decoder, o *object) error {
	value, err := d.ReadValue()
	if err == nil && value.Kind() != 'n' {
		o.raw = slices.Clone(value)
	}
	return err
}))

// unmarshalReview decodes a review together with its pod. If that fails, the pod is kept as it
// is, so that the answer can say what is wrong with it.
func unmarshalReview(data []byte) (*review, error) {
	in := &review{}
	if jsonv2.Unmarshal(data, in, inOnePass) == nil {
		if in.Request != nil && in.Request.Object.pod != nil {
			o := &in.Request.Object
			// The decoder stands before the colon.
			o.raw = bytes.TrimLeft(data[o.from:o.to], ": \t\r\n")
		}
		return in, nil
	}
	in = &review{}
	return in, jsonv2.Unmarshal(data, in, strictly, keepObjects)
}
