package classmove

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// simulated is a workload whose controller replaces one pod in each look at it.
type simulated struct {
	from, to int
	takes    int
	budget   string
	// broken is set if pods of the new class never get ready, busy if a rollout goes on that never
	// ends, and deaf is how many restarts give pods of the former class again.
	broken, busy bool
	deaf         int
	// refused is set if the API server refuses to restart it.
	refused bool

	rolling, back bool
	restarts      int
	most          int
}

// simulation runs a Machine with workloads, each named NAMESPACE/NAME.
type simulation struct {
	limits    Limits
	watched   bool
	workloads map[string]*simulated
	// allowed are the budgets, by NAMESPACE/NAME.
	allowed map[string]int
	// worse is the look at which the traffic gets worse, or 0.
	worse int
}

func keyOf(name string) Key {
	namespace, name, _ := strings.Cut(name, "/")
	return Key{namespace, kindDeployment, name}
}

// run runs the machine for at most 200 looks, and returns the workloads in the order in which they
// were restarted, and the states at the end.
func (s *simulation) run(t *testing.T) (order []string, ends map[string]State) {
	t.Helper()
	names := slices.Sorted(maps.Keys(s.workloads))
	var keys []Key
	for _, name := range names {
		keys = append(keys, keyOf(name))
	}
	m := NewMachine(s.limits, s.watched, keys)
	now := time.Unix(1e9, 0)
	var measured time.Time
	for look := 1; ; look++ {
		if look == 200 {
			t.Fatalf("no end: %v", s.states(m))
		}
		now = now.Add(10 * time.Second)
		if look == s.worse {
			m.ReturnAll("it got worse")
		}
		var all []Observed
		for _, name := range names {
			all = append(all, s.observe(name))
		}
		step := m.Next(now, all, measured)
		if look%3 == 0 {
			measured = now
		}
		inFlight := 0
		for _, key := range step.Restart {
			name := key.Namespace + "/" + key.Name
			w := s.workloads[name]
			order = append(order, name)
			if w.refused {
				m.Refused(key, errors.New("the API server refuses it"))
				continue
			}
			w.restarts++
			w.rolling = true
			if state, _ := m.State(key); state == Returning {
				w.back = true
			}
		}
		for _, w := range s.workloads {
			w.advance()
			if w.rolling {
				inFlight++
			}
		}
		for _, w := range s.workloads {
			w.most = max(w.most, inFlight)
		}
		if step.Done {
			return order, s.states(m)
		}
	}
}

func (s *simulation) observe(name string) Observed {
	w := s.workloads[name]
	o := Observed{Key: keyOf(name), From: w.from, To: w.to, Rolling: w.rolling || w.busy, Takes: w.takes, Progress: fmt.Sprintf("%d new", w.to)}
	if w.budget != "" {
		o.Budgets = []Budget{{w.budget, s.allowed[o.Namespace+"/"+w.budget]}}
	}
	return o
}

func (w *simulated) advance() {
	switch {
	case !w.rolling:
	case w.back && w.to > 0:
		w.from, w.to = w.from+1, w.to-1
	case w.back:
		w.rolling = false
	case w.broken && w.to == 1, w.from == 0, w.restarts <= w.deaf:
		w.rolling = w.broken
	default:
		w.from, w.to = w.from-1, w.to+1
	}
}

func (s *simulation) states(m *Machine) map[string]State {
	states := make(map[string]State)
	for name := range s.workloads {
		states[name], _ = m.State(keyOf(name))
	}
	return states
}

func TestMachine(t *testing.T) {
	limits := Limits{Pace: 2, Patience: time.Minute}
	for name, tt := range map[string]struct {
		simulation
		order []string
		want  map[string]State
	}{
		"the smallest first, then in turn by namespaces": {
			simulation{workloads: map[string]*simulated{"a/big": {from: 9}, "a/middle": {from: 3}, "b/small": {from: 1}, "b/other": {from: 2}}},
			[]string{"b/small", "a/big", "b/other", "a/middle"},
			map[string]State{"a/big": Moved, "a/middle": Moved, "b/small": Moved, "b/other": Moved},
		},
		"nothing to do": {
			simulation{workloads: map[string]*simulated{"a/a": {to: 3}}},
			nil, map[string]State{"a/a": Moved},
		},
		"scaled to 0, last": {
			simulation{workloads: map[string]*simulated{"a/none": {}, "a/one": {from: 1}}},
			[]string{"a/one", "a/none"}, map[string]State{"a/none": Moved, "a/one": Moved},
		},
		"a budget without room": {
			simulation{workloads: map[string]*simulated{"a/one": {from: 1, takes: 1, budget: "all"}, "b/two": {from: 2}}, allowed: map[string]int{"a/all": 0}},
			[]string{"b/two"}, map[string]State{"a/one": Stuck, "b/two": Moved},
		},
		"a budget without room, and a rollout that takes nothing away": {
			simulation{workloads: map[string]*simulated{"a/one": {from: 1, budget: "all"}}, allowed: map[string]int{"a/all": 0}},
			[]string{"a/one"}, map[string]State{"a/one": Moved},
		},
		"a budget that two share": {
			simulation{workloads: map[string]*simulated{"a/one": {from: 3, takes: 1, budget: "all"}, "a/two": {from: 4, takes: 1, budget: "all"}}, allowed: map[string]int{"a/all": 1}},
			[]string{"a/one", "a/two"}, map[string]State{"a/one": Moved, "a/two": Moved},
		},
		"pods that never get ready: their namespace goes back, others go on": {
			simulation{workloads: map[string]*simulated{"a/bad": {from: 2, broken: true}, "a/good": {from: 3}, "b/good": {from: 3}}},
			[]string{"a/bad", "a/bad", "b/good"}, map[string]State{"a/bad": Returned, "a/good": Returned, "b/good": Moved},
		},
		"pods that never get ready, in the second workload of a namespace": {
			simulation{workloads: map[string]*simulated{"a/bad": {from: 4, broken: true}, "a/good": {from: 1}, "b/good": {from: 3}}},
			[]string{"a/good", "a/bad", "b/good", "a/bad", "a/good"}, map[string]State{"a/bad": Returned, "a/good": Returned, "b/good": Moved},
		},
		"a rollout that was stuck before": {
			simulation{workloads: map[string]*simulated{"a/busy": {from: 1, busy: true}, "a/good": {from: 2}, "b/good": {from: 3}}},
			[]string{"a/good", "b/good"}, map[string]State{"a/busy": Stuck, "a/good": Moved, "b/good": Moved},
		},
		"an injector that is late": {
			simulation{workloads: map[string]*simulated{"a/a": {from: 1, deaf: 1}}},
			[]string{"a/a", "a/a"}, map[string]State{"a/a": Moved},
		},
		"an injector that never sees it": {
			simulation{workloads: map[string]*simulated{"a/a": {from: 1, deaf: 9}, "b/b": {from: 2}}},
			[]string{"a/a", "a/a", "a/a", "b/b", "a/a"}, map[string]State{"a/a": Returned, "b/b": Moved},
		},
		"a restart that is refused": {
			simulation{workloads: map[string]*simulated{"a/a": {from: 1, refused: true}, "b/b": {from: 2}}},
			[]string{"a/a", "a/a", "a/a", "b/b", "a/a"}, map[string]State{"a/a": Returned, "b/b": Moved},
		},
		"traffic that gets worse": {
			simulation{workloads: map[string]*simulated{"a/one": {from: 1}, "b/two": {from: 5}, "c/three": {from: 6}}, worse: 6},
			[]string{"a/one", "b/two", "c/three", "b/two", "c/three", "a/one"}, map[string]State{"a/one": Returned, "b/two": Returned, "c/three": Returned},
		},
		"traffic that is watched": {
			simulation{watched: true, workloads: map[string]*simulated{"a/one": {from: 1}, "b/two": {from: 2}}},
			[]string{"a/one", "b/two"}, map[string]State{"a/one": Moved, "b/two": Moved},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.limits = limits
			order, states := tt.run(t)
			if !slices.Equal(order, tt.order) {
				t.Errorf("it restarts %q, want %q", order, tt.order)
			}
			if !maps.Equal(states, tt.want) {
				t.Errorf("it ends with %v, want %v", states, tt.want)
			}
			for name, w := range tt.workloads {
				if w.most > limits.Pace {
					t.Errorf("with %s there were %d at a time", name, w.most)
				}
			}
		})
	}
}

// TestMachineDeleted has a workload deleted while its pods are replaced.
func TestMachineDeleted(t *testing.T) {
	m := NewMachine(Limits{Pace: 1, Patience: time.Minute}, false, []Key{keyOf("a/a")})
	now := time.Unix(1e9, 0)
	if step := m.Next(now, []Observed{{Key: keyOf("a/a"), From: 1}}, now); len(step.Restart) != 1 || step.Done {
		t.Errorf("it begins with %+v", step)
	}
	if step := m.Next(now, nil, now); !step.Done || len(step.Return) > 0 {
		t.Errorf("without the workload it goes on with %+v", step)
	}
}

func TestJudge(t *testing.T) {
	at := func(requests, failed, p95 float64) []Measure {
		return []Measure{{At{"shop", ByCallers}, requests, failed, &p95}}
	}
	limits := Limits{Failed: 0.01, Slower: 3}
	for name, tt := range map[string]struct {
		before []Measure
		then   [][]Measure
		want   string
	}{
		"as before":                       {at(1000, 0, 0.01), [][]Measure{at(1000, 1, 0.02), at(900, 0, 0.01)}, ""},
		"some fail, once":                 {at(1000, 0, 0.01), [][]Measure{at(1000, 50, 0.01), at(1000, 0, 0.01), at(1000, 50, 0.01)}, ""},
		"some fail, twice":                {at(1000, 0, 0.01), [][]Measure{at(1000, 50, 0.01), at(1000, 50, 0.01)}, "5.0% of 1000 failed, 0.0% before"},
		"most fail":                       {at(1000, 0, 0.01), [][]Measure{at(1000, 900, 0.01)}, "90.0% of 1000 failed"},
		"as many fail as before":          {at(1000, 500, 0.01), [][]Measure{at(1000, 505, 0.01), at(1000, 505, 0.01)}, ""},
		"slower":                          {at(1000, 0, 0.1), [][]Measure{at(1000, 0, 0.4), at(1000, 0, 0.4)}, "the p95 is 400 ms, 100 ms before"},
		"three times of very little":      {at(1000, 0, 0.002), [][]Measure{at(1000, 0, 0.09), at(1000, 0, 0.09)}, ""},
		"too few to tell":                 {at(1000, 0, 0.01), [][]Measure{at(10, 9, 1), at(10, 9, 1)}, ""},
		"too few before":                  {at(5, 0, 0.01), [][]Measure{at(1000, 500, 1), at(1000, 500, 1)}, ""},
		"no requests":                     {nil, [][]Measure{nil, nil}, ""},
		"none between two that are worse": {at(1000, 0, 0.01), [][]Measure{at(1000, 50, 0.01), nil, at(1000, 50, 0.01)}, ""},
	} {
		j := NewJudge(limits, tt.before)
		got := ""
		for _, measures := range tt.then {
			if got = j.Add(measures); got != "" {
				break
			}
		}
		if got != tt.want && (tt.want == "" || !strings.Contains(got, tt.want)) {
			t.Errorf("%s: it says %q, want %q", name, got, tt.want)
		}
	}
}
