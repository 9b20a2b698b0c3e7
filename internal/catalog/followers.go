package catalog

import (
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/outrigger-mesh/outrigger/internal/fact"
)

// followers are the proxies whose View somebody has asked for, mostly because they are
// connected. Of a mesh with several controllers, or with pods that have not started, these are
// a part, and a change of an Outbound is work only for them. It is safe for concurrent use.
type followers struct {
	mu sync.Mutex
	// outbounds has the name of the Outbound of each proxy, and proxies the reverse.
	outbounds map[string]string
	proxies   map[string]map[string]struct{}
}

// follow adds a proxy, or says that it has another Outbound now.
func (f *followers) follow(uid, outbound string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	former, ok := f.outbounds[uid]
	if ok && former == outbound {
		return
	}
	f.remove(uid)
	if f.outbounds == nil {
		f.outbounds, f.proxies = map[string]string{}, map[string]map[string]struct{}{}
	}
	f.outbounds[uid] = outbound
	if f.proxies[outbound] == nil {
		f.proxies[outbound] = map[string]struct{}{}
	}
	f.proxies[outbound][uid] = struct{}{}
}

// leave removes a proxy.
func (f *followers) leave(uid string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.remove(uid)
}

func (f *followers) remove(uid string) {
	outbound, ok := f.outbounds[uid]
	if !ok {
		return
	}
	delete(f.outbounds, uid)
	delete(f.proxies[outbound], uid)
	if len(f.proxies[outbound]) == 0 {
		delete(f.proxies, outbound)
	}
}

// of returns the proxies with an Outbound.
func (f *followers) of(outbound string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.proxies[outbound]))
}

// changed yields the UIDs of proxies whose View has changed: all of those that are new, gone or
// have changed themselves, and the followers of changed Outbounds. It may yield one twice.
func (f *followers) changed(former, next fact.Views) iter.Seq[string] {
	return func(yield func(string) bool) {
		for change := range next.Viewers.Diff(former.Viewers) {
			if change.Delete {
				f.leave(change.Name)
			}
			if !yield(change.Name) {
				return
			}
		}
		for change := range next.Outbounds.Diff(former.Outbounds) {
			for _, uid := range f.of(change.Name) {
				if !yield(uid) {
					return
				}
			}
		}
	}
}
