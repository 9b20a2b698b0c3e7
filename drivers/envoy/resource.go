package envoy

import (
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/outrigger-mesh/outrigger/sidecar/xds"
)

// The types of resources that Envoy subscribes to.
const (
	listenerType = resource.ListenerType
	clusterType  = resource.ClusterType
	routeType    = resource.RouteType
	endpointType = resource.EndpointType
	// extensionType is that of filters which can change without replacing a listener.
	extensionType = resource.ExtensionConfigType
)

// Resource is an xDS resource, encoded once for all proxies that get it. Equal Views
// give equal bytes.
type Resource = xds.Resource

// newResource returns a resource made of the parts: concatenated encodings of partial
// messages are the encoding of the merged message. If a string is not valid UTF-8, the
// resource cannot be encoded and gets an empty Body, which Envoy rejects.
func newResource(typeURL, name string, parts ...proto.Message) *Resource {
	var e encoder
	for _, part := range parts {
		e.part(part)
	}
	return e.resource(typeURL, name)
}

var deterministic = proto.MarshalOptions{Deterministic: true}

// frozen returns a message that encodes like the merged parts, as fast as copying
// bytes, for use as a part of many other messages. Its fields cannot be read. If a part
// cannot be encoded, neither can the result.
func frozen[M proto.Message](parts ...M) M {
	var body []byte
	for _, part := range parts {
		encoding, err := deterministic.Marshal(part)
		if err != nil {
			return part
		}
		body = append(body, encoding...)
	}
	return encoded[M](body)
}

// encoded returns a frozen message with the given encoding.
func encoded[M proto.Message](body []byte) M {
	var none M
	m := none.ProtoReflect().New()
	m.SetUnknown(protoreflect.RawFields(body))
	return m.Interface().(M)
}
