package delivery

import (
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Conviction is a part that a proxy refused although it accepted everything else, or that its
// driver has left out.
type Conviction struct {
	Part mesh.Part
	// Message is the proxy's, about a configuration with this part, or the driver's.
	Message string

	until time.Time
}

// Rejections returns what a kit reports about a proxy that runs a version from which parts
// are left out.
func Rejections(version string, view *mesh.View, leftOut []Conviction) []driver.Rejection {
	rejections := make([]driver.Rejection, len(leftOut))
	for i, c := range leftOut {
		rejections[i] = driver.Rejection{
			Version: version, Message: c.Message, LeftOut: true,
			Resources: []string{c.Part.String()}, Objects: Objects(view, c.Part),
		}
	}
	return rejections
}

// Objects returns the user's objects that a part of a View was made of, or the proxy's own pod if
// the View does not have the part, or knows no origin of it.
func Objects(view *mesh.View, part mesh.Part) []mesh.ObjectRef {
	if objects := mesh.ObjectsOf(view.OriginsOf(part)); len(objects) > 0 {
		return objects
	}
	return []mesh.ObjectRef{PodObject(view.Proxy)}
}

// Limits of convictions. A proxy may refuse a part by accident, for example while its node
// is overloaded, so each is tried again after a time.
const (
	maxConvictions = 256
	convictedFor   = 10 * time.Minute
)

// Convictions are the parts that proxies of one class refuse, so that other proxies of the
// class are not given them at all. They are safe for concurrent use.
type Convictions struct {
	now func() time.Time

	mu sync.Mutex
	// all are ordered by their end.
	all []Conviction
}

// NewConvictions returns none.
func NewConvictions() *Convictions { return &Convictions{now: time.Now} }

func (c *Convictions) convict(part mesh.Part, message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = slices.DeleteFunc(c.all, func(known Conviction) bool { return known.Part == part })
	c.all = append(c.all, Conviction{part, message, c.now().Add(convictedFor)})
	c.all = slices.Delete(c.all, 0, max(len(c.all)-maxConvictions, 0))
}

// of returns the convicted parts of the View, sorted.
func (c *Convictions) of(view *mesh.View) []Conviction {
	c.mu.Lock()
	now := c.now()
	c.all = slices.DeleteFunc(c.all, func(known Conviction) bool { return !now.Before(known.until) })
	all := slices.Clone(c.all)
	c.mu.Unlock()
	all = slices.DeleteFunc(all, func(known Conviction) bool { return !view.Has(known.Part) })
	slices.SortFunc(all, func(a, b Conviction) int { return a.Part.Compare(b.Part) })
	return all
}
