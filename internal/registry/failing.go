package registry

import (
	"cmp"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Failure describes a proxy that keeps crashing, as its agent reports it. Such a proxy may
// be connected at times, or never have been.
type Failure struct {
	// Pod, UID and Identity are those of the proxy's pod.
	Pod      mesh.Name `json:"-"`
	UID      string    `json:"-"`
	Identity string    `json:"-"`
	// Since and Last are the times of the first and the last report.
	Since time.Time `json:"since"`
	Last  time.Time `json:"last"`
	// Starts is how often the proxy was started since it was last stable.
	Starts int `json:"starts"`
	// How describes how the proxy ended, and LastWords is the end of its output. Each is
	// one line, whose content the proxy determines.
	How       string `json:"how"`
	LastWords string `json:"lastWords,omitempty"`
}

// Text describes the failure in one sentence.
func (f *Failure) Text() string {
	text := "the proxy does not stay up: " + cmp.Or(f.How, "it ended")
	if f.LastWords != "" {
		text += "; it last printed: " + f.LastWords
	}
	return text
}

// forgotten is the time without another report after which a failure is over. Agents
// repeat their reports every minute, to any replica.
const forgotten = 10 * time.Minute

// Failed records that a proxy keeps crashing. It returns true unless this is already
// known.
func (r *Registry) Failed(f Failure) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget()
	f.Last = time.Now()
	f.Since = f.Last
	former, known := r.failing[f.UID]
	if known {
		f.Since = former.Since
	}
	r.failing[f.UID] = f
	r.countFailing()
	time.AfterFunc(forgotten+time.Second, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.forget()
		r.countFailing()
	})
	return !known
}

// Recovered records that a proxy runs stably again.
func (r *Registry) Recovered(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.failing, uid)
	r.forget()
	r.countFailing()
}

// forget removes failures without a recent report. The caller holds mu.
func (r *Registry) forget() {
	for uid, f := range r.failing {
		if time.Since(f.Last) > forgotten {
			delete(r.failing, uid)
		}
	}
}

// countFailing sets the metric. The caller holds mu.
func (r *Registry) countFailing() {
	r.metrics.failing.Reset()
	for _, f := range r.failing {
		r.metrics.failing.WithLabelValues(f.Pod.Namespace).Inc()
	}
}

// addFailing adds the failures to a list of proxies. The caller holds mu.
func (r *Registry) addFailing(list []Proxy) []Proxy {
	r.forget()
	r.countFailing()
	connected := make(map[string]int, len(list))
	for i := range list {
		connected[list[i].UID] = i
	}
	for uid, f := range r.failing {
		i, ok := connected[uid]
		if !ok {
			i, list = len(list), append(list, Proxy{Name: f.Pod, UID: uid, Identity: f.Identity})
		}
		list[i].State, list[i].Failure = Failing, &f
	}
	return list
}
