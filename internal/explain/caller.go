package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// caller is the sender of the request.
type caller struct {
	workload *fact.Workload
	// view is nil for a workload without a sidecar.
	view *mesh.View
}

// identity is zero for a caller that can't be authenticated.
func (c caller) identity() mesh.Identity {
	if c.view == nil || c.view.Proxy.Plaintext {
		return mesh.Identity{}
	}
	return c.view.Proxy.Identity
}

// address returns an address of the workload, of the same family as other if possible.
func (c caller) address(other netip.Addr) netip.Addr {
	for _, addr := range c.workload.Addresses {
		if addr.Is4() == other.Is4() {
			return addr
		}
	}
	return netip.Addr{}
}

func (x *inquiry) findCaller(name mesh.Name) (caller, bool) {
	if workload, ok := x.snapshot.Workloads.Get(name.String()); ok {
		c := caller{workload: workload, view: x.viewOf(workload)}
		x.say("caller", "pod "+name.String()+" "+c.describe())
		x.involveName("Pod", name)
		return c, true
	}
	var with, without []caller
	var inNamespace []string
	for _, key := range x.snapshot.Workloads.Names() {
		workload, _ := x.snapshot.Workloads.Get(key)
		if workload.Namespace != name.Namespace {
			continue
		}
		inNamespace = append(inNamespace, workload.Name.Name+" ("+workload.ServiceAccount+")")
		if workload.ServiceAccount != name.Name || workload.Ended {
			continue
		}
		if view := x.viewOf(workload); view != nil {
			with = append(with, caller{workload, view})
		} else {
			without = append(without, caller{workload: workload})
		}
	}
	all := slices.Concat(with, without)
	if len(all) == 0 {
		hint := "the mesh has no workload in namespace " + name.Namespace
		if len(inNamespace) > 0 {
			hint = "the workloads there, and their service accounts, are " + list(inNamespace, 10)
		}
		x.fail("FROM %s: the mesh has no pod of that name, and none with that service account; %s", name, hint)
		return caller{}, false
	}
	c := all[0]
	one := "the only one running"
	if len(all) > 1 {
		one = fmt.Sprintf("one of %d running", len(all))
	}
	x.say("caller", fmt.Sprintf("pod %s, %s as service account %s, %s", c.workload.Name, one, name, c.describe()))
	x.involveName("Pod", c.workload.Name)
	return c, true
}

// viewOf returns the View of a workload's proxy, or nil if it has none.
func (x *inquiry) viewOf(w *fact.Workload) *mesh.View {
	view, ok := x.snapshot.Views.Get(w.UID)
	if !ok {
		return nil
	}
	return view
}

func (c caller) describe() string {
	switch {
	case c.view == nil:
		return "has no sidecar: it calls in plaintext, without an identity"
	case c.view.Proxy.Plaintext:
		return fmt.Sprintf("calls through its %s sidecar, whose class does not use mesh TLS: it has no identity", c.view.Proxy.Class)
	}
	return fmt.Sprintf("calls through its %s sidecar as %s", c.view.Proxy.Class, c.view.Proxy.Identity)
}

// count returns "1 thing" or "2 things".
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
