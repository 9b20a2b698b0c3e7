package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	corev1 "k8s.io/api/core/v1"
)

// encoder writes patches as MarshalPatch does, in a fraction of its time. The added containers
// of most pods differ only in the values of variables, and the added volumes in nothing, so their
// other JSON is remembered. It is found by content, in Kubernetes' binary encoding, which needs no
// reflection: nobody has to say where a container comes from or whether it was changed.
//
// It is safe for concurrent use.
type encoder struct {
	mu    sync.RWMutex
	parts map[string]part
	// texts are long strings as JSON.
	texts map[string][]byte
}

// part is the JSON of a volume, or of a container before and after the elements of its
// variables.
type part struct{ before, after []byte }

const (
	// maxParts bounds what is remembered. A mesh has a few containers and volumes.
	maxParts = 256
	// maxPart bounds the size of each and that of its key, in bytes.
	maxPart = 16 << 10
	// maxTexts bounds the long strings that are remembered, which are of minText to maxPart bytes.
	// The instructions for the agent are one, and are equal for the pods of a workload.
	maxTexts = 64
	minText  = 1 << 10
)

func newEncoder() *encoder {
	return &encoder{parts: make(map[string]part), texts: make(map[string][]byte)}
}

// patch appends the operations as a JSON patch document.
func (e *encoder) patch(b []byte, ops []Operation) (_ []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("encoding the patch: %v", r)
		}
	}()
	b = append(b, '[')
	for i := range ops {
		op := &ops[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, `{"op":"`...), op.Op...), '"')
		if op.From != "" {
			if b, err = jsontext.AppendQuote(append(b, `,"from":`...), op.From); err != nil {
				return b, fmt.Errorf("encoding the patch: %w", err)
			}
		}
		b, err = jsontext.AppendQuote(append(b, `,"path":`...), op.Path)
		if err == nil && op.Value != nil {
			b, err = e.value(append(b, `,"value":`...), op.Value)
		}
		if err != nil {
			return b, fmt.Errorf("encoding the patch: %s: %w", op.Path, err)
		}
		b = append(b, '}')
	}
	return append(b, ']'), nil
}

func (e *encoder) value(b []byte, value any) ([]byte, error) {
	switch v := value.(type) {
	case string:
		return jsontext.AppendQuote(b, v)
	case corev1.Container:
		return e.container(b, &v)
	case []corev1.Container:
		var err error
		b = append(b, '[')
		for i := range v {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = e.container(b, &v[i]); err != nil {
				return b, err
			}
		}
		return append(b, ']'), nil
	case corev1.Volume:
		return e.volume(b, &v)
	}
	return appendJSON(b, value)
}

func (e *encoder) volume(b []byte, v *corev1.Volume) ([]byte, error) {
	// The binary encoding does not tell an empty list from none. Of these sources only one list
	// is written to JSON if it is empty.
	known := corev1.VolumeSource{EmptyDir: v.EmptyDir, ConfigMap: v.ConfigMap, Projected: v.Projected}
	if v.VolumeSource != known || v.Projected != nil && len(v.Projected.Sources) == 0 {
		return appendJSON(b, v)
	}
	p, err := e.part('v', v, func() (part, error) {
		text, err := appendJSON(nil, v)
		return part{before: text}, err
	})
	return append(b, p.before...), err
}

func (e *encoder) container(b []byte, c *corev1.Container) ([]byte, error) {
	if len(c.Env) == 0 {
		return appendJSON(b, c)
	}
	rest := *c
	rest.Env = nil
	p, err := e.part('c', &rest, func() (part, error) { return around(rest) })
	if err != nil {
		return b, err
	}
	b = append(b, p.before...)
	for i := range c.Env {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = e.variable(b, &c.Env[i]); err != nil {
			return b, err
		}
	}
	return append(b, p.after...), nil
}

// around returns what comes before and after the elements of env in a container's JSON.
func around(c corev1.Container) (part, error) {
	const only = `{"name":"X"}`
	c.Env = []corev1.EnvVar{{Name: "X"}}
	text, err := appendJSON(nil, c)
	if err != nil {
		return part{}, err
	}
	// Quotes in a string are escaped, and no other field of a container is called env.
	before, after, found := bytes.Cut(text, []byte(`"env":[`+only+`]`))
	if !found {
		return part{}, errors.New("a container's JSON has no env")
	}
	return part{before: append(before[:len(before):len(before)], `"env":[`...), after: append([]byte{']'}, after...)}, nil
}

func (e *encoder) variable(b []byte, v *corev1.EnvVar) ([]byte, error) {
	ref := (*corev1.ObjectFieldSelector)(nil)
	if v.ValueFrom != nil {
		if ref = v.ValueFrom.FieldRef; ref == nil || v.Value != "" || *v.ValueFrom != (corev1.EnvVarSource{FieldRef: ref}) {
			return appendJSON(b, v)
		}
	}
	b, err := jsontext.AppendQuote(append(b, `{"name":`...), v.Name)
	switch {
	case err != nil:
		return b, err
	case v.Value != "":
		b, err = e.text(append(b, `,"value":`...), v.Value)
	case ref != nil:
		b = append(b, `,"valueFrom":{"fieldRef":{`...)
		if ref.APIVersion != "" {
			if b, err = jsontext.AppendQuote(append(b, `"apiVersion":`...), ref.APIVersion); err != nil {
				return b, err
			}
			b = append(b, ',')
		}
		b, err = jsontext.AppendQuote(append(b, `"fieldPath":`...), ref.FieldPath)
		b = append(b, "}}"...)
	}
	return append(b, '}'), err
}

// text appends a string.
func (e *encoder) text(b []byte, s string) ([]byte, error) {
	if len(s) < minText || len(s) > maxPart {
		return jsontext.AppendQuote(b, s)
	}
	e.mu.RLock()
	quoted, ok := e.texts[s]
	e.mu.RUnlock()
	if ok {
		return append(b, quoted...), nil
	}
	at := len(b)
	b, err := jsontext.AppendQuote(b, s)
	if err != nil {
		return b, err
	}
	if len(b)-at > maxPart {
		return b, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.texts) >= maxTexts {
		clear(e.texts)
	}
	// Both are parts of something that may be much longer.
	e.texts[strings.Clone(s)] = bytes.Clone(b[at:])
	return b, nil
}

// binary is a Kubernetes type that can be encoded without reflection.
type binary interface {
	Size() int
	MarshalToSizedBuffer(b []byte) (int, error)
}

// keys holds idle buffers.
var keys = sync.Pool{New: func() any { return new([]byte) }}

// part returns what is remembered of a value, or else what encode returns. The kind keeps
// values of different types apart.
func (e *encoder) part(kind byte, of binary, encode func() (part, error)) (part, error) {
	size := of.Size()
	if size > maxPart {
		return encode()
	}
	buffer := keys.Get().(*[]byte)
	defer keys.Put(buffer)
	if cap(*buffer) <= size {
		*buffer = make([]byte, 2*size+1)
	}
	key := (*buffer)[:size+1]
	key[0] = kind
	if n, err := of.MarshalToSizedBuffer(key[1:]); err != nil || n != size {
		return encode()
	}
	e.mu.RLock()
	p, ok := e.parts[string(key)]
	e.mu.RUnlock()
	if ok {
		return p, nil
	}
	p, err := encode()
	if err != nil || len(p.before)+len(p.after) > maxPart {
		return p, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.parts) >= maxParts {
		clear(e.parts)
	}
	e.parts[string(key)] = p
	return p, nil
}

// appendJSON appends the value as encoding/json encodes it, but with HTML's characters as
// they are.
func appendJSON(b []byte, value any) ([]byte, error) {
	to := bytes.NewBuffer(b)
	to.Grow(512)
	j := json.NewEncoder(to)
	j.SetEscapeHTML(false)
	err := j.Encode(value)
	return bytes.TrimSuffix(to.Bytes(), []byte("\n")), err
}
