package fact

import (
	"iter"
	"sync/atomic"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Views are the Views of all proxies, by pod UID. What proxies call is mostly the same, so it
// is stored once for all of them, and a change of it costs nothing for each. The zero Views is
// empty.
type Views struct {
	Viewers mesh.Table[*Viewer]
	// Outbounds are those of the Viewers, by the names that they have there.
	Outbounds mesh.Table[*mesh.Outbound]
}

// Viewer is a proxy with what its View does not share.
type Viewer struct {
	proxy    *mesh.Proxy
	settings *mesh.Settings
	inbound  *mesh.Inbound
	egress   *mesh.Egress
	outbound string
	digest   mesh.Digest
	// view is the last View that was made, which most often is made again.
	view atomic.Pointer[mesh.View]
}

// NewViewer returns a Viewer of sealed parts and the name of an Outbound.
func NewViewer(proxy *mesh.Proxy, settings *mesh.Settings, inbound *mesh.Inbound, egress *mesh.Egress, outbound string) *Viewer {
	return &Viewer{
		proxy: proxy, settings: settings, inbound: inbound, egress: egress, outbound: outbound,
		digest: mesh.JoinDigests(proxy.Digest(), settings.Digest(), inbound.Digest(), egress.Digest(), mesh.DigestBytes([]byte(outbound))),
	}
}

// Digest returns a digest of all parts.
func (v *Viewer) Digest() mesh.Digest { return v.digest }

// Outbound returns the name of its Outbound.
func (v *Viewer) Outbound() string { return v.outbound }

// see returns the Viewer's View with an Outbound.
func (v *Viewer) see(outbound *mesh.Outbound) *mesh.View {
	if last := v.view.Load(); last != nil && last.Outbound == outbound {
		return last
	}
	view := mesh.NewView(v.proxy, v.settings, v.inbound, outbound, v.egress)
	v.view.Store(view)
	return view
}

// ViewsOf returns Views by UID.
func ViewsOf(views map[string]*mesh.View) Views {
	viewers, outbounds := map[string]*Viewer{}, map[string]*mesh.Outbound{}
	for uid, view := range views {
		name := view.Outbound.Digest().String()
		viewers[uid] = NewViewer(view.Proxy, view.Settings, view.Inbound, view.Egress, name)
		outbounds[name] = view.Outbound
	}
	return Views{Viewers: mesh.TableOf(viewers), Outbounds: mesh.TableOf(outbounds)}
}

// Len returns the number of Views.
func (v Views) Len() int { return v.Viewers.Len() }

// Names returns the UIDs, sorted.
func (v Views) Names() []string { return v.Viewers.Names() }

// Digest returns a digest of everything in the Views.
func (v Views) Digest() mesh.Digest {
	return mesh.JoinDigests(v.Viewers.Digest(), v.Outbounds.Digest())
}

// Get returns the View of the proxy with the UID, and whether there is one.
func (v Views) Get(uid string) (*mesh.View, bool) {
	viewer, ok := v.Viewers.Get(uid)
	if !ok {
		return nil, false
	}
	return v.of(viewer)
}

// All yields the Views with their UIDs, in the order of Table.All.
func (v Views) All() iter.Seq2[string, *mesh.View] {
	return func(yield func(string, *mesh.View) bool) {
		for uid, viewer := range v.Viewers.All() {
			if view, ok := v.of(viewer); ok && !yield(uid, view) {
				return
			}
		}
	}
}

func (v Views) of(viewer *Viewer) (*mesh.View, bool) {
	outbound, ok := v.Outbounds.Get(viewer.outbound)
	if !ok {
		return nil, false
	}
	return viewer.see(outbound), true
}
