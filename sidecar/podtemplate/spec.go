package podtemplate

import (
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// specs remember the values of OUTRIGGER_AGENT, of which most pods of a class share all but
// their probes. It is safe for concurrent use.
type specs struct {
	mu   sync.Mutex
	last []encodedSpec
	// whole are values with probes, which the pods of a workload share.
	whole map[wholeSpec]string
}

// wholeSpec is one of the last specs and the JSON of its probes.
type wholeSpec struct {
	spec   *agentspec.Spec
	probes string
}

// maxWhole bounds the values with probes, and maxProbes the size of the probes in them, in bytes.
const (
	maxWhole  = 64
	maxProbes = 16 << 10
)

// encodedSpec is a spec without probes and its value, and what comes before and after the probes
// in the value of one that has them.
type encodedSpec struct {
	spec                 *agentspec.Spec
	value, before, after string
}

// maxSpecs bounds the specs that are remembered. They differ by the mesh's settings.
const maxSpecs = 8

// value returns the value of the spec, like agentspec.EnvValue.
func (s *specs) value(spec *agentspec.Spec) (string, error) {
	shared := *spec
	shared.Probes = nil
	encoded, ok := s.find(&shared)
	if !ok {
		var err error
		if encoded, err = encodeSpec(&shared); err != nil {
			return "", err
		}
		s.add(encoded)
	}
	if len(spec.Probes) == 0 {
		return encoded.value, nil
	}
	if encoded.before == "" {
		return agentspec.EnvValue(spec)
	}
	probes, err := agentspec.EnvValue(spec.Probes)
	if err != nil {
		return "", err
	}
	return s.join(&encoded, probes), nil
}

func (s *specs) join(e *encodedSpec, probes string) string {
	if len(probes) > maxProbes {
		return e.before + probes + e.after
	}
	key := wholeSpec{e.spec, probes}
	s.mu.Lock()
	defer s.mu.Unlock()
	value, ok := s.whole[key]
	if !ok {
		if s.whole == nil || len(s.whole) >= maxWhole {
			s.whole = make(map[wholeSpec]string)
		}
		value = e.before + probes + e.after
		s.whole[key] = value
	}
	return value
}

func (s *specs) find(shared *agentspec.Spec) (encodedSpec, bool) {
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	i := slices.IndexFunc(last, func(e encodedSpec) bool { return reflect.DeepEqual(e.spec, shared) })
	if i < 0 {
		return encodedSpec{}, false
	}
	return last[i], true
}

// add adds a spec. Readers of the former list keep it.
func (s *specs) add(e encodedSpec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = append([]encodedSpec{e}, s.last[:min(len(s.last), maxSpecs-1)]...)
}

func encodeSpec(shared *agentspec.Spec) (encodedSpec, error) {
	e := encodedSpec{spec: shared}
	var err error
	if e.value, err = agentspec.EnvValue(shared); err != nil {
		return e, err
	}
	// The place of the probes is where a probe is found that nothing else resembles.
	with := *shared
	with.Probes = []agentspec.Probe{{Path: "/the-place-of-probes"}}
	probe, err := agentspec.EnvValue(with.Probes)
	if err != nil {
		return e, err
	}
	text, err := agentspec.EnvValue(with)
	if err != nil || strings.Count(text, probe) != 1 {
		return e, err
	}
	e.before, e.after, _ = strings.Cut(text, probe)
	return e, nil
}
