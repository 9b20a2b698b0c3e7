package xds

import (
	"strings"
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Resource is a resource, encoded once for all proxies that get it. Its fields must
// not be changed once it is in a Config. It is safe for use by many goroutines.
type Resource struct {
	// TypeURL is the resource's type, such as
	// "type.googleapis.com/envoy.config.cluster.v3.Cluster".
	TypeURL string
	// Name is its name, unique among those of its type.
	Name string
	// Body is its encoding, the value of an Any of TypeURL.
	Body []byte
	// Asks is the name of the resource of the type Type.Asks that the proxy asks for
	// when it gets this one, as a cluster asks for its endpoints; empty if none.
	Asks string

	digest mesh.Digest
	// entry is what precedes Body in a delta response, nil until it is first sent.
	entry atomic.Pointer[[]byte]
}

// NewResource returns a resource of which the digest says what it is: resources of
// one type and name with equal digests are never told apart, on any replica and after
// any restart.
func NewResource(typeURL, name string, body []byte, digest mesh.Digest) *Resource {
	return &Resource{TypeURL: typeURL, Name: name, Body: body, digest: digest}
}

// Digest returns the digest.
func (r *Resource) Digest() mesh.Digest { return r.digest }

// Message decodes the resource. It returns an error if the type is not linked into
// the program or the Body is not an encoding of it.
func (r *Resource) Message() (proto.Message, error) {
	return anypb.UnmarshalNew(&anypb.Any{TypeUrl: r.TypeURL, Value: r.Body}, proto.UnmarshalOptions{})
}

// kindOf returns the last word of a type's URL, for people.
func kindOf(typeURL string) string { return typeURL[strings.LastIndexAny(typeURL, "./")+1:] }

// Type is a type of resources.
type Type struct {
	// URL is its type URL.
	URL string
	// Named says that clients ask for these resources by name only. Of others a client
	// gets all that there are.
	Named bool
	// Held says that these resources are sent only when what was sent of all types
	// before has been acknowledged, as what they refer to must be there first.
	Held bool
	// Quiet says that a client is not told of the end of a resource that it has asked
	// for by name: it stops asking by itself once nothing of its own needs it.
	Quiet bool
	// Asks is the type URL of the resources that Resource.Asks names.
	Asks string
}

// Config is all that one proxy gets: a table of resources for each of Options.Types,
// in the same order.
type Config []mesh.Table[*Resource]

// The numbers of fields, from Envoy's and Google's proto files.
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

// version returns what the resource's state is called in delta responses.
func (r *Resource) version() string { return r.digest.String() }

// appendAny appends the field of an Any of the resource but for the Body at its end.
func (r *Resource) appendAny(b []byte, field protowire.Number) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(r.anySize()))
	b = protowire.AppendTag(b, anyTypeURL, protowire.BytesType)
	b = protowire.AppendString(b, r.TypeURL)
	b = protowire.AppendTag(b, anyValue, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(len(r.Body)))
}

func (r *Resource) anySize() int {
	return 2 + protowire.SizeBytes(len(r.TypeURL)) + protowire.SizeBytes(len(r.Body))
}

// deltaEntry returns the field of a delta response that holds the resource but for
// the Body at its end.
func (r *Resource) deltaEntry() []byte {
	if entry := r.entry.Load(); entry != nil {
		return *entry
	}
	version, name := r.version(), strings.ToValidUTF8(r.Name, "?")
	size := 3 + protowire.SizeBytes(len(name)) + protowire.SizeBytes(len(version)) + protowire.SizeBytes(r.anySize())
	entry := make([]byte, 0, size-len(r.Body)+12)
	entry = protowire.AppendTag(entry, responseResources, protowire.BytesType)
	entry = protowire.AppendVarint(entry, uint64(size))
	entry = protowire.AppendString(protowire.AppendTag(entry, resourceName, protowire.BytesType), name)
	entry = protowire.AppendString(protowire.AppendTag(entry, resourceVersion, protowire.BytesType), version)
	entry = r.appendAny(entry, resourceResource)
	r.entry.Store(&entry)
	return entry
}
