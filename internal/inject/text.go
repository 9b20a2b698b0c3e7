package inject

import "encoding/json"

// annotated is the part of a pod that has its annotations.
type annotated struct {
	Metadata struct {
		Annotations map[string]json.RawMessage `json:"annotations"`
	} `json:"metadata"`
}

// statusOf returns the value of a pod's status annotation, or "".
func statusOf(pod []byte) string {
	var p annotated
	var value string
	if json.Unmarshal(pod, &p) != nil || json.Unmarshal(p.Metadata.Annotations[StatusAnnotation], &value) != nil {
		return ""
	}
	return value
}

// IsInjected reports whether a pod, as JSON, has been injected.
func IsInjected(pod []byte) bool { return statusOf(pod) != "" }

// Text is an entry of a mapping as a file has it.
type Text struct {
	// Text is the entry; empty if it is written as kubectl would.
	Text string `json:"text,omitempty"`
	// Before are the keys after the entry, of which the last is still there.
	Before []string `json:"before,omitempty"`
}

// TextOf returns what WithText has added to a pod.
func TextOf(pod []byte) map[string]Text {
	s, err := parseStatus(statusOf(pod))
	if err != nil {
		return nil
	}
	return s.Text
}

// WithText returns the status annotation of an injected pod with parts of the file that injection
// has replaced, by their place, or "" if it would become too long. Only uninject reads them, to
// restore the file's quotes and comments.
func WithText(pod []byte, text map[string]Text) string {
	s, err := parseStatus(statusOf(pod))
	if err != nil {
		return ""
	}
	s.Text = text
	encoded, err := json.Marshal(s)
	if err != nil || len(encoded) > maxStatus/2 {
		return ""
	}
	return string(encoded)
}
