package registry

import (
	"cmp"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Failure is a proxy that does not stay up, as its agent reports it. Such a proxy may be
// connected in between, or never have been.
type Failure struct {
	// Pod is the proxy's, with its UID and the identity of the pod.
	Pod      mesh.Name `json:"-"`
	UID      string    `json:"-"`
	Identity string    `json:"-"`
	// Since is when it was first reported, and Last when it was last.
	Since time.Time `json:"since"`
	Last  time.Time `json:"last"`
	// Starts is how often it was started since it last was stable.
	Starts int `json:"starts"`
	// How is how it ended, and LastWords the end of what it has printed. Both are one
	// line that the proxy controls.
	How       string `json:"how"`
	LastWords string `json:"lastWords,omitempty"`
}

// Text says it in one sentence for people.
func (f *Failure) Text() string {
	text := "the proxy does not stay up: " + cmp.Or(f.How, "it ended")
	if f.LastWords != "" {
		text += "; it last printed: " + f.LastWords
	}
	return text
}

// forgotten is after how long without another report a failure is over. Agents repeat
// theirs each minute, to any replica.
const forgotten = 10 * time.Minute

// Failed notes that a proxy does not stay up. It reports whether that is news here.
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

// Recovered notes that a proxy stays up.
func (r *Registry) Recovered(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.failing, uid)
	r.forget()
	r.countFailing()
}

// forget ends what nobody has repeated. It is called with mu held.
func (r *Registry) forget() {
	for uid, f := range r.failing {
		if time.Since(f.Last) > forgotten {
			delete(r.failing, uid)
		}
	}
}

// countFailing sets the metric. It is called with mu held.
func (r *Registry) countFailing() {
	r.metrics.failing.Reset()
	for _, f := range r.failing {
		r.metrics.failing.WithLabelValues(f.Pod.Namespace).Inc()
	}
}

// addFailing puts failures into a list of proxies. It is called with mu held.
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
		list[i].State, list[i].Failure = "Failing", &f
	}
	return list
}
