package envoy

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/xds"
)

// Config is all that one Envoy gets, by type of resource. It is immutable, and its
// parts are shared with the Configs of other proxies.
type Config struct {
	Listeners, Clusters, Routes, Endpoints, Secrets mesh.Table[*Resource]
}

// table returns the table of the type.
func (c *Config) table(typeURL string) *mesh.Table[*Resource] {
	switch typeURL {
	case listenerType:
		return &c.Listeners
	case clusterType:
		return &c.Clusters
	case routeType:
		return &c.Routes
	case endpointType:
		return &c.Endpoints
	default:
		return &c.Secrets
	}
}

// types are those of a Config's tables.
var types = []string{listenerType, clusterType, routeType, endpointType, secretType}

// deliveredTypes are the types in the order in which Envoy is sent them. It asks for
// all but listeners and clusters by name. Routes that it asks for already come before
// listeners: a listener that is still draining keeps the routes that have ended, and a
// new one of that name would begin with these and let in whom they did.
var deliveredTypes = []xds.Type{
	{URL: secretType, Named: true, Quiet: true},
	{URL: clusterType, Asks: endpointType},
	{URL: endpointType, Named: true, Quiet: true},
	{URL: routeType, Named: true, Held: true, Quiet: true},
	{URL: listenerType, Held: true},
}

// delivered returns the tables of deliveredTypes.
func (c *Config) delivered() xds.Config {
	tables := make(xds.Config, len(deliveredTypes))
	for i, t := range deliveredTypes {
		tables[i] = *c.table(t.URL)
	}
	return tables
}

// with returns a Config with the changes.
func (c *Config) with(changed changes) *Config {
	next := *c
	for _, typeURL := range types {
		table := next.table(typeURL)
		*table = table.With(*changed.list(typeURL)...)
	}
	return &next
}

// withOwn returns a Config with what is the proxy's own. What is equal to the
// proxy's former Config is taken from that.
func (c *Config) withOwn(former *proxyState) *Config {
	next := *c
	for _, typeURL := range types {
		table := next.table(typeURL)
		if former.made != nil && former.outbound.table(typeURL).Digest() == table.Digest() {
			*table = *former.made.table(typeURL)
		} else {
			*table = table.With(*former.own.list(typeURL)...)
		}
	}
	return &next
}

// changes are changes of a Config, by type of resource.
type changes struct {
	listeners, clusters, routes, endpoints, secrets []mesh.Change[*Resource]
}

// list returns the changes of the type.
func (c *changes) list(typeURL string) *[]mesh.Change[*Resource] {
	switch typeURL {
	case listenerType:
		return &c.listeners
	case clusterType:
		return &c.clusters
	case routeType:
		return &c.routes
	case endpointType:
		return &c.endpoints
	default:
		return &c.secrets
	}
}

// add puts the resources into their tables.
func (c *changes) add(resources []*Resource) {
	for _, r := range resources {
		list := c.list(r.TypeURL)
		*list = append(*list, mesh.Change[*Resource]{Name: r.Name, Value: r})
	}
}

// remove ends the resource of that name.
func (c *changes) remove(typeURL, name string) {
	list := c.list(typeURL)
	*list = append(*list, mesh.Change[*Resource]{Name: name, Delete: true})
}

// replace puts the resources into their tables, and ends those of the name and the
// types that are not among them.
func (c *changes) replace(name string, resources []*Resource, types ...string) {
	for _, typeURL := range types {
		if !slices.ContainsFunc(resources, func(r *Resource) bool { return r.TypeURL == typeURL }) {
			c.remove(typeURL, name)
		}
	}
	c.add(resources)
}
