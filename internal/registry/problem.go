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

// ReasonRejected is the reason of Problems about rejected configuration.
const ReasonRejected = "Rejected"

const (
	// maxRejections is how many rejections of one proxy are kept.
	maxRejections = 20
	// maxMessages is how many different rejections become Problems of one object, and for
	// how many pods a rejection is reported that belongs to no object.
	maxMessages = 3
	// maxMessage is the maximum length of a proxy's message, in bytes.
	maxMessage = 2000
)

// refuse records a rejection. The caller holds mu.
func (r *Registry) refuse(p *proxy, rejection Rejection) {
	rejection.Message = plain(rejection.Message)
	// Rejections of other versions are outdated, and drivers may report a rejection of this
	// version again. Rejections of other parts of this version remain.
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

// accept records that a proxy no longer rejects anything. The caller holds mu.
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

// Run reports rejections until ctx ends. It must be called once.
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

// refusal is a rejection with the same message by one or more proxies.
type refusal struct {
	class, resources, message string
	leftOut                   bool
}

// refusers are the proxies with the same rejection.
type refusers struct {
	refusal
	// first is the proxy that rejected it first; if there are several, the first by name.
	first mesh.Name
	since time.Time
	pods  []mesh.Name
}

// problems returns the Problems for all rejections, by object.
func (r *Registry) problems() map[mesh.ObjectRef][]mesh.Problem {
	byObject := make(map[mesh.ObjectRef]map[refusal]*refusers)
	homeless := make(map[refusal]*refusers)
	r.mu.Lock()
	for p := range r.refusing {
		for _, rejection := range p.rejections {
			same := refusal{p.Class, someOf(rejection.Resources), rejection.Message, rejection.LeftOut}
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

func add(refusals map[refusal]*refusers, what refusal, who mesh.Name, when time.Time) {
	by := refusals[what]
	if by == nil {
		by = &refusers{refusal: what, first: who, since: when}
		refusals[what] = by
	}
	by.pods = append(by.pods, who)
	if cmp.Or(when.Compare(by.since), who.Compare(by.first)) < 0 {
		by.first, by.since = who, when
	}
}

// first returns the oldest rejections, at most most.
func first(all []*refusers, most int) []*refusers {
	slices.SortFunc(all, func(a, b *refusers) int {
		return cmp.Or(a.since.Compare(b.since), a.first.Compare(b.first), cmp.Compare(a.message, b.message))
	})
	return all[:min(len(all), most)]
}

// problem returns the Problem. Its text has no number of proxies, since it would change with
// every proxy; the number is a metric.
func (refused *refusers) problem(object mesh.ObjectRef, pod mesh.Name) mesh.Problem {
	who := fmt.Sprintf("the %s proxy of pod %s", refused.class, pod)
	verb := "rejects"
	if len(refused.pods) > 1 {
		who += " and others"
		verb = "reject"
	}
	what := "a part of its configuration"
	if refused.resources != "" {
		what = refused.resources
	}
	instead := "the previous configuration stays in use"
	if refused.leftOut {
		instead = "it is left out, so its requests are answered with 500 or denied until it changes"
	}
	return mesh.Problem{Object: object, Reason: ReasonRejected,
		Message: fmt.Sprintf("%s %s %s; %s: %s", who, verb, what, instead, refused.message)}
}

// plain returns the message as one line of limited length.
func plain(message string) string {
	message = message[:min(len(message), 4*maxMessage)]
	message = strings.ToValidUTF8(strings.Join(strings.Fields(message), " "), "?")
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage], "") + "…"
}

// someOf lists the first names; there may be thousands.
func someOf(names []string) string {
	const few = 3
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}
