package envoy

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/xds"
)

// Config is the complete configuration of one Envoy by resource type. It is immutable
// and shares parts with the Configs of other proxies.
type Config struct {
	Listeners, Clusters, Routes, Endpoints, Secrets, Extensions mesh.Table[*Resource]
}

// table returns the table of the type.
func (c *Config) table(typeURL string) *mesh.Table[*Resource] {
	tables := [len(types)]*mesh.Table[*Resource]{&c.Listeners, &c.Clusters, &c.Routes, &c.Endpoints, &c.Secrets, &c.Extensions}
	return tables[slices.Index(types[:], typeURL)]
}

// types are the resource types of a Config.
var types = [...]string{listenerType, clusterType, routeType, endpointType, secretType, extensionType}

// deliveredTypes are the resource types in the order in which Envoy is sent them. It
// subscribes to all but listeners and clusters by name. Routes that it already
// subscribes to come before listeners: a draining listener keeps its removed routes,
// and a new listener of the same name would start with them and allow whom they
// allowed.
var deliveredTypes = []xds.Type{
	{URL: secretType, Named: true, Quiet: true},
	{URL: clusterType, Asks: endpointType},
	{URL: endpointType, Named: true, Quiet: true},
	{URL: routeType, Named: true, Held: true, Quiet: true},
	{URL: extensionType, Named: true, Held: true, Quiet: true},
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

// with returns the Config with the changes applied.
func (c *Config) with(changed changes) *Config {
	next := *c
	for _, typeURL := range types {
		table := next.table(typeURL)
		*table = table.With(*changed.list(typeURL)...)
	}
	return &next
}

// withOwn returns the Config with the proxy's own resources. Tables that are equal to
// those of the proxy's former Config are reused.
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

// changes are changes of a Config's tables, in the order of types.
type changes [len(types)][]mesh.Change[*Resource]

// list returns the changes of the type.
func (c *changes) list(typeURL string) *[]mesh.Change[*Resource] {
	return &c[slices.Index(types[:], typeURL)]
}

// reserve makes room for that many more changes of each of the types.
func (c *changes) reserve(n int, types ...string) {
	for _, typeURL := range types {
		list := c.list(typeURL)
		*list = slices.Grow(*list, max(n, 0))
	}
}

// add adds the resources.
func (c *changes) add(resources []*Resource) {
	for _, r := range resources {
		list := c.list(r.TypeURL)
		*list = append(*list, mesh.Change[*Resource]{Name: r.Name, Value: r})
	}
}

// remove removes the resource of that name.
func (c *changes) remove(typeURL, name string) {
	list := c.list(typeURL)
	*list = append(*list, mesh.Change[*Resource]{Name: name, Delete: true})
}

// replace adds the resources, and removes the resources of the given name and types
// that are not among them.
func (c *changes) replace(name string, resources []*Resource, types ...string) {
	for _, typeURL := range types {
		if !slices.ContainsFunc(resources, func(r *Resource) bool { return r.TypeURL == typeURL }) {
			c.remove(typeURL, name)
		}
	}
	c.add(resources)
}
