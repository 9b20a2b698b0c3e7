package envoy

import (
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/outrigger-mesh/outrigger/sidecar/xds"
)

// The types of resources that Envoy asks for.
const (
	listenerType = resource.ListenerType
	clusterType  = resource.ClusterType
	routeType    = resource.RouteType
	endpointType = resource.EndpointType
)

// Resource is an xDS resource, encoded once for all proxies that get it. Equal Views
// give equal bytes.
type Resource = xds.Resource

// newResource returns a resource of the parts put together: by the rules of
// protocol buffers the encodings of parts, one after the other, are the encoding of
// the whole. One whose text is not UTF-8 has no encoding; it gets an empty Body,
// which Envoy refuses.
func newResource(typeURL, name string, parts ...proto.Message) *Resource {
	var e encoder
	for _, part := range parts {
		e.part(part)
	}
	return e.resource(typeURL, name)
}

var deterministic = proto.MarshalOptions{Deterministic: true}

// frozen returns a message whose encoding is that of the parts and takes no longer
// than copying it, for messages that are parts of many others. Its fields can't be
// read. Parts that can't be encoded make a message that can't be, either.
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

// encoded returns a frozen message of the encoding.
func encoded[M proto.Message](body []byte) M {
	var none M
	m := none.ProtoReflect().New()
	m.SetUnknown(protoreflect.RawFields(body))
	return m.Interface().(M)
}
