package grpc

import (
	"slices"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
	"github.com/outrigger-mesh/outrigger/sidecar/xds"
)

// types are gRPC's resource types, referenced types first. A client subscribes to all of
// them by name, and takes the absence of listeners and clusters for their removal. A server
// subscribes to listeners only.
var types = []xds.Type{
	{URL: resource.EndpointType, Named: true, Quiet: true},
	{URL: resource.ClusterType, Optional: true},
	{URL: resource.RouteType, Named: true, Quiet: true},
	{URL: resource.ListenerType},
}

// translator makes Configs of Views. It is safe for concurrent use.
type translator struct {
	outbounds *delivery.Outbounds[outboundKey, xds.Config]
}

// outboundKey identifies the resources of an Outbound. Short names of services depend on
// the namespace of the client.
type outboundKey struct{ scope, namespace string }

// maxOutbounds is the minimum number of cached Outbounds.
const maxOutbounds = 4096

func newTranslator() *translator {
	return &translator{delivery.NewOutbounds[outboundKey, xds.Config](maxOutbounds)}
}

// config returns the configuration of the View's proxy: the listeners, routes, clusters
// and endpoints of its client, which proxies of a namespace share, and the listeners of
// its servers.
func (t *translator) config(view *mesh.View) xds.Config {
	key := outboundKey{view.Outbound.Scope, view.Proxy.Namespace}
	shared := t.outbounds.Update(key, view.Outbound, func(former *mesh.Outbound, config xds.Config) xds.Config {
		if config == nil {
			config = with(make(xds.Config, len(types)), backend(&mesh.Backend{Name: refuse}))
		}
		return outbound(config, key.namespace, former, view.Outbound)
	})
	return with(shared, servers(view))
}

// outbound returns the resources of an Outbound, from those of the former one. The cost
// is that of the difference.
func outbound(config xds.Config, namespace string, former, next *mesh.Outbound) xds.Config {
	var gone, made []*xds.Resource
	for change := range next.Destinations.Diff(former.Destinations) {
		if was, ok := former.Destinations.Get(change.Name); ok {
			gone = append(gone, destination(was, namespace)...)
		}
		if !change.Delete {
			made = append(made, destination(change.Value, namespace)...)
		}
	}
	for change := range next.Backends.Diff(former.Backends) {
		if was, ok := former.Backends.Get(change.Name); ok {
			gone = append(gone, backend(was)...)
		}
		if !change.Delete {
			made = append(made, backend(change.Value)...)
		}
	}
	return with(without(config, gone), made)
}

func with(config xds.Config, resources []*xds.Resource) xds.Config {
	return changed(config, resources, func(r *xds.Resource) mesh.Change[*xds.Resource] {
		return mesh.Change[*xds.Resource]{Name: r.Name, Value: r}
	})
}

func without(config xds.Config, resources []*xds.Resource) xds.Config {
	return changed(config, resources, func(r *xds.Resource) mesh.Change[*xds.Resource] {
		return mesh.Change[*xds.Resource]{Name: r.Name, Delete: true}
	})
}

func changed(config xds.Config, resources []*xds.Resource, change func(*xds.Resource) mesh.Change[*xds.Resource]) xds.Config {
	next := slices.Clone(config)
	for i, t := range types {
		var changes []mesh.Change[*xds.Resource]
		for _, r := range resources {
			if r.TypeURL == t.URL {
				changes = append(changes, change(r))
			}
		}
		next[i] = next[i].With(changes...)
	}
	return next
}

var deterministic = proto.MarshalOptions{Deterministic: true}

// newResource encodes a resource. A message that can't be encoded, since a text in it is
// not valid UTF-8, becomes an empty one, which gRPC rejects.
func newResource(typeURL, name string, message proto.Message) *xds.Resource {
	body, err := deterministic.Marshal(message)
	if err != nil {
		body = nil
	}
	return xds.NewResource(typeURL, name, mesh.JoinDigests(mesh.DigestBytes([]byte(typeURL+" "+name)), mesh.DigestBytes(body)), body)
}
