package xds

import (
	"bytes"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Resource is an xDS resource, encoded once for all proxies that get it. Its fields
// must not be changed once it is in a Config. It is safe for concurrent use.
type Resource struct {
	// TypeURL is the resource's type, such as
	// "type.googleapis.com/envoy.config.cluster.v3.Cluster".
	TypeURL string
	// Name is unique among the resources of the type.
	Name string
	// Asks is the name of the resource of type Type.Asks to which the proxy subscribes
	// when it gets this one, as a cluster subscribes to its endpoints; empty if none.
	Asks string

	digest mesh.Digest
	// body are the parts of the encoded message, the value of an Any of TypeURL, and size is
	// their length.
	body [][]byte
	size int
	// entry is the field of a delta response with the resource, in one piece. That is cheaper
	// to send than parts, but takes memory, so it is made only for the second client that
	// gets the resource: most of those that nobody shares are sent once.
	entry atomic.Pointer[mem.Buffer]
	sent  atomic.Bool
}

// NewResource returns a resource. The digest identifies its content: resources with
// equal type, name and digest are considered the same, on any replica and after any
// restart. The body is the encoded message, the value of an Any of the type, in parts, which
// many resources may share. They must not be changed any more.
func NewResource(typeURL, name string, digest mesh.Digest, body ...[]byte) *Resource {
	r := &Resource{TypeURL: typeURL, Name: name, digest: digest, body: body}
	for _, part := range body {
		r.size += len(part)
	}
	return r
}

// Body returns the encoded message. The caller must not change it.
func (r *Resource) Body() []byte {
	if len(r.body) == 1 {
		return r.body[0]
	}
	return bytes.Join(r.body, nil)
}

// Digest returns the digest of the content.
func (r *Resource) Digest() mesh.Digest { return r.digest }

// Message decodes the resource. It returns an error if the type is not linked into
// the program or the body is not a valid encoding of it.
func (r *Resource) Message() (proto.Message, error) {
	return anypb.UnmarshalNew(&anypb.Any{TypeUrl: r.TypeURL, Value: r.Body()}, proto.UnmarshalOptions{})
}

// shortType returns the last element of a type URL, for logs and debug pages.
func shortType(typeURL string) string { return typeURL[strings.LastIndexAny(typeURL, "./")+1:] }

// Type is a type of resources.
type Type struct {
	// URL is the type URL.
	URL string
	// Named is set if clients subscribe to these resources by name only. By default a
	// client gets all of them.
	Named bool
	// Optional is set if some clients never subscribe to the type. Then neither removals of
	// resources nor the acknowledgement of a View waits for a subscription to it.
	Optional bool
	// Held delays these resources until everything sent of the types before has been
	// acknowledged, since they refer to it.
	Held bool
	// Quiet suppresses removals of resources that a client subscribes to by name: it
	// unsubscribes by itself once nothing refers to them.
	Quiet bool
	// Asks is the type URL of the resources that Resource.Asks refers to.
	Asks string
}

// Config is the complete configuration of one proxy: a table of resources for each of
// Options.Types, in the same order.
type Config []mesh.Table[*Resource]

// Field numbers from Envoy's and Google's proto files.
const (
	anyTypeURL = 1
	anyValue   = 2

	resourceVersion  = 1
	resourceResource = 2
	resourceName     = 3

	responseVersion   = 1
	responseResources = 2
	responseTypeURL   = 4
	responseNonce     = 5
	responseRemoved   = 6
)

// version returns the resource's version in delta responses.
func (r *Resource) version() string { return r.digest.String() }

// appendAny appends an Any field with the resource, up to but not including its body.
func (r *Resource) appendAny(b []byte, field protowire.Number) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(r.anySize()))
	b = protowire.AppendTag(b, anyTypeURL, protowire.BytesType)
	b = protowire.AppendString(b, r.TypeURL)
	b = protowire.AppendTag(b, anyValue, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(r.size))
}

func (r *Resource) anySize() int {
	return 2 + protowire.SizeBytes(len(r.TypeURL)) + protowire.SizeBytes(r.size)
}

// appendEntry appends the field of a delta response that holds the resource, and returns its
// length too.
func (r *Resource) appendEntry(parts mem.BufferSlice) (mem.BufferSlice, int) {
	if entry := r.entry.Load(); entry != nil {
		return append(parts, *entry), (*entry).Len()
	}
	version, name := r.version(), strings.ToValidUTF8(r.Name, "?")
	size := 3 + protowire.SizeBytes(len(name)) + protowire.SizeBytes(len(version)) + protowire.SizeBytes(r.anySize())
	whole := r.sent.Swap(true)
	room := size + 12
	if !whole {
		room -= r.size
	}
	entry := make([]byte, 0, room)
	entry = protowire.AppendTag(entry, responseResources, protowire.BytesType)
	entry = protowire.AppendVarint(entry, uint64(size))
	entry = protowire.AppendString(protowire.AppendTag(entry, resourceName, protowire.BytesType), name)
	entry = protowire.AppendString(protowire.AppendTag(entry, resourceVersion, protowire.BytesType), version)
	entry = r.appendAny(entry, resourceResource)
	if !whole {
		parts = append(parts, mem.SliceBuffer(entry))
		for _, part := range r.body {
			parts = append(parts, mem.SliceBuffer(part))
		}
		return parts, len(entry) + r.size
	}
	for _, part := range r.body {
		entry = append(entry, part...)
	}
	var buffer mem.Buffer = mem.SliceBuffer(entry)
	r.entry.Store(&buffer)
	return append(parts, buffer), len(entry)
}
