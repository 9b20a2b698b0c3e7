// Package health reports whether the components of the control plane are alive
// and ready. A driver's Start returns a Probes; core joins those of all drivers
// and serves the result.
//
// It imports the standard library only.
package health

import (
	"net/http"
	"slices"
	"strings"
)

// Probes reports the health of one component. Its methods are called from HTTP
// handlers, at any time and from many goroutines, and must not block.
type Probes interface {
	// Liveness reports whether the component works; false asks for a restart.
	Liveness() bool
	// Readiness reports whether the component can serve now.
	Readiness() bool
	// GetID names the component in the answers, in metrics and in logs.
	GetID() string
}

// Join returns Probes that are alive, or ready, if all of the given ones are.
// GetID returns id. Without probes the result is alive and ready.
func Join(id string, probes ...Probes) Probes {
	return joined{id: id, probes: slices.Clone(probes)}
}

type joined struct {
	id     string
	probes []Probes
}

var _ Probes = joined{}

func (j joined) GetID() string { return j.id }

func (j joined) Liveness() bool { return len(failing(j, Probes.Liveness)) == 0 }

func (j joined) Readiness() bool { return len(failing(j, Probes.Readiness)) == 0 }

// failing returns the IDs of the parts of p that do not pass the check.
func failing(p Probes, check func(Probes) bool) []string {
	if j, ok := p.(joined); ok {
		var ids []string
		for _, part := range j.probes {
			ids = append(ids, failing(part, check)...)
		}
		return ids
	}
	if check(p) {
		return nil
	}
	return []string{p.GetID()}
}

// LivenessHandler answers 200 while p is alive, otherwise 503 with the names of
// the failing components, one per line.
func LivenessHandler(p Probes) http.Handler { return handler(p, Probes.Liveness) }

// ReadinessHandler answers 200 while p is ready, otherwise 503 with the names of
// the failing components, one per line.
func ReadinessHandler(p Probes) http.Handler { return handler(p, Probes.Readiness) }

func handler(p Probes, check func(Probes) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if ids := failing(p, check); len(ids) > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(strings.Join(ids, "\n") + "\n"))
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
}

// Func implements Probes by functions. A nil function counts as true.
type Func struct {
	// ID is what GetID returns.
	ID string
	// Live and Ready are what Liveness and Readiness return.
	Live, Ready func() bool
}

var _ Probes = Func{}

// GetID returns f.ID.
func (f Func) GetID() string { return f.ID }

// Liveness returns f.Live(), or true if it is nil.
func (f Func) Liveness() bool { return f.Live == nil || f.Live() }

// Readiness returns f.Ready(), or true if it is nil.
func (f Func) Readiness() bool { return f.Ready == nil || f.Ready() }
