package registry

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// ReasonRejected is the reason of the Problems of what proxies refuse.
const ReasonRejected = "Rejected"

const (
	// maxRejections is how many refusals of one proxy are kept.
	maxRejections = 20
	// maxMessages is how many different refusals become Problems of one object, and on
	// how many pods one is reported that came of no object.
	maxMessages = 3
	// maxMessage is the longest answer of a proxy that is kept, in bytes.
	maxMessage = 2000
)

// refuse notes what a proxy refuses. The caller has locked the registry.
func (r *Registry) refuse(p *proxy, rejection Rejection) {
	rejection.Message = plain(rejection.Message)
	// What was refused of another configuration is out of date, and drivers may tell
	// again what was refused of this one. Other parts of it still are.
	p.rejections = slices.DeleteFunc(p.rejections, func(former Rejection) bool {
		again := func(resource string) bool { return slices.Contains(rejection.Resources, resource) }
		return former.Version != rejection.Version || len(former.Resources) == 0 || slices.ContainsFunc(former.Resources, again)
	})
	if p.rejections = append(p.rejections, rejection); len(p.rejections) > maxRejections {
		p.rejections = slices.Delete(p.rejections, 0, 1)
	}
	if _, already := r.refusing[p]; !already {
		r.refusing[p] = struct{}{}
		r.metrics.refusing.WithLabelValues(p.Class).Inc()
	}
	r.changed()
}

// accept notes that a proxy refuses nothing any more. The caller has locked the
// registry.
func (r *Registry) accept(p *proxy) {
	p.rejections = nil
	if _, refused := r.refusing[p]; !refused {
		return
	}
	delete(r.refusing, p)
	r.metrics.refusing.WithLabelValues(p.Class).Dec()
	r.changed()
}

func (r *Registry) changed() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run reports refusals until ctx ends. It is called once.
func (r *Registry) Run(ctx context.Context) {
	reported := make(map[mesh.ObjectRef][]mesh.Problem)
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(r.options.Settle):
		}
		if r.options.Report == nil {
			continue
		}
		now := r.problems()
		for object, problems := range now {
			if !slices.Equal(reported[object], problems) {
				r.options.Report(object, problems)
			}
		}
		for object := range reported {
			if _, still := now[object]; !still {
				r.options.Report(object, nil)
			}
		}
		reported = now
	}
}

// refusal is what some proxies refuse in the same words.
type refusal struct{ class, resources, message string }

// refusers are the proxies that refuse the same.
type refusers struct {
	refusal
	// first is the one that has done so for longest, or the first by name.
	first mesh.Name
	since time.Time
	pods  []mesh.Name
}

// problems makes Problems of all refusals, by object.
func (r *Registry) problems() map[mesh.ObjectRef][]mesh.Problem {
	byObject := make(map[mesh.ObjectRef]map[refusal]*refusers)
	homeless := make(map[refusal]*refusers)
	r.mu.Lock()
	for p := range r.refusing {
		for _, rejection := range p.rejections {
			same := refusal{p.Class, someOf(rejection.Resources), rejection.Message}
			own := mesh.ObjectRef{APIVersion: "v1", Kind: "Pod", Namespace: p.Name.Namespace, Name: p.Name.Name}
			if len(rejection.Objects) == 0 || slices.Contains(rejection.Objects, own) {
				add(homeless, same, p.Name, rejection.Time)
			}
			for _, object := range rejection.Objects {
				if object == own {
					continue // There may be a thousand.
				}
				if byObject[object] == nil {
					byObject[object] = make(map[refusal]*refusers)
				}
				add(byObject[object], same, p.Name, rejection.Time)
			}
		}
	}
	r.mu.Unlock()

	problems := make(map[mesh.ObjectRef][]mesh.Problem)
	for object, refused := range byObject {
		for _, by := range first(slices.Collect(maps.Values(refused)), maxMessages) {
			problems[object] = append(problems[object], by.problem(object, by.first))
		}
	}
	for _, by := range homeless {
		slices.SortFunc(by.pods, mesh.Name.Compare)
		for _, pod := range by.pods[:min(len(by.pods), maxMessages)] {
			object := mesh.ObjectRef{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name}
			problems[object] = append(problems[object], by.problem(object, pod))
		}
	}
	for _, list := range problems {
		slices.SortFunc(list, func(a, b mesh.Problem) int { return cmp.Compare(a.Message, b.Message) })
	}
	return problems
}

func add(to map[refusal]*refusers, what refusal, who mesh.Name, when time.Time) {
	by := to[what]
	if by == nil {
		by = &refusers{refusal: what, first: who, since: when}
		to[what] = by
	}
	by.pods = append(by.pods, who)
	if cmp.Or(when.Compare(by.since), who.Compare(by.first)) < 0 {
		by.first, by.since = who, when
	}
}

// first returns those that have refused for longest.
func first(all []*refusers, most int) []*refusers {
	slices.SortFunc(all, func(a, b *refusers) int {
		return cmp.Or(a.since.Compare(b.since), a.first.Compare(b.first), cmp.Compare(a.message, b.message))
	})
	return all[:min(len(all), most)]
}

// problem says who refuses what. How many do is a metric, and not in the text, which
// would else change with each of a thousand proxies.
func (by *refusers) problem(object mesh.ObjectRef, pod mesh.Name) mesh.Problem {
	who := fmt.Sprintf("the %s proxy of pod %s", by.class, pod)
	verb := "refuses"
	if len(by.pods) > 1 {
		who += " and others"
		verb = "refuse"
	}
	what := "a part of its configuration"
	if by.resources != "" {
		what = by.resources
	}
	return mesh.Problem{Object: object, Reason: ReasonRejected,
		Message: fmt.Sprintf("%s %s %s, and what was before goes on: %s", who, verb, what, by.message)}
}

// plain returns an answer on one line that is not too long.
func plain(message string) string {
	message = message[:min(len(message), 4*maxMessage)]
	message = strings.ToValidUTF8(strings.Join(strings.Fields(message), " "), "?")
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage], "") + "…"
}

// someOf lists a few names; there may be thousands.
func someOf(names []string) string {
	const few = 3
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}
