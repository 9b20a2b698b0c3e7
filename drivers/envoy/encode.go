package envoy

import (
	"encoding/binary"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/xds"
)

// constant is an encoded fragment that is part of many resources.
type constant struct {
	encoding []byte
	digest   mesh.Digest
}

func newConstant(encoding []byte) constant {
	return constant{encoding: encoding, digest: mesh.DigestBytes(encoding)}
}

// constantOf encodes the parts as a constant.
func constantOf(parts ...proto.Message) constant {
	var e encoder
	for _, part := range parts {
		e.part(part)
	}
	return newConstant(e.body)
}

// encoder writes the most frequent resources, several times as fast as marshaling
// messages would. Fragments written one after the other form one message; message
// fields that are written twice are merged, as in any encoding of protocol buffers.
//
// Large constants are not copied: the resources that have them share them.
type encoder struct {
	// body is what is written without the pieces, which are constants, in order.
	body   []byte
	pieces [4]piece
	count  int
	// invalid is set if a string is not valid UTF-8, which protocol buffers require.
	invalid bool
}

// piece is a constant at a position in the body.
type piece struct {
	constant
	at int
}

// minPiece is the size in bytes from which a constant is a piece. Smaller ones are cheaper to
// copy.
const minPiece = 256

// newEncoder returns an encoder with a capacity of size bytes, without pieces.
func newEncoder(size int) encoder { return encoder{body: make([]byte, 0, size)} }

// text writes a string, unless it is empty.
func (e *encoder) text(field protowire.Number, s string) {
	e.invalid = e.invalid || !utf8.ValidString(s)
	if s != "" {
		e.body = protowire.AppendString(protowire.AppendTag(e.body, field, protowire.BytesType), s)
	}
}

// bytes writes bytes, or a non-empty string.
func (e *encoder) bytes(field protowire.Number, b []byte) {
	e.body = protowire.AppendBytes(protowire.AppendTag(e.body, field, protowire.BytesType), b)
}

// number writes an integer or enum, unless it is 0.
func (e *encoder) number(field protowire.Number, n uint64) {
	if n != 0 {
		e.body = protowire.AppendVarint(protowire.AppendTag(e.body, field, protowire.VarintType), n)
	}
}

// part writes the fields of the message.
func (e *encoder) part(m proto.Message) {
	body, err := deterministic.MarshalAppend(e.body, m)
	e.invalid = e.invalid || err != nil
	e.body = body
}

// fields writes the output of another encoder, which must have no pieces.
func (e *encoder) fields(other encoder) {
	e.body, e.invalid = append(e.body, other.body...), e.invalid || other.invalid
}

// constant writes the fields of a constant.
func (e *encoder) constant(c constant) {
	if len(c.encoding) < minPiece || e.count == len(e.pieces) {
		e.body = append(e.body, c.encoding...)
		return
	}
	e.pieces[e.count] = piece{c, len(e.body)}
	e.count++
}

// message writes a message whose fields are written by the function.
func (e *encoder) message(field protowire.Number, fields func()) {
	e.body = protowire.AppendTag(e.body, field, protowire.BytesType)
	// One byte is enough for the length of most messages.
	at := len(e.body)
	e.body = append(e.body, 0)
	start, first := len(e.body), e.count
	fields()
	inside := e.pieces[first:e.count]
	length := len(e.body) - start
	for _, p := range inside {
		length += len(p.encoding)
	}
	more := protowire.SizeVarint(uint64(length)) - 1
	if more > 0 {
		e.body = slices.Insert(e.body, start, make([]byte, more)...)
		for i := range inside {
			inside[i].at += more
		}
	}
	binary.PutUvarint(e.body[at:], uint64(length))
}

// resource returns the encoded resource. Like newResource it returns an empty Body if
// the resource cannot be encoded.
func (e *encoder) resource(typeURL, name string) *Resource {
	if e.invalid {
		*e = encoder{}
	}
	parts, end := make([][]byte, 0, 2*e.count+1), 0
	for _, p := range e.pieces[:e.count] {
		if p.at > end {
			parts = append(parts, e.body[end:p.at])
		}
		parts = append(parts, p.encoding)
		end = p.at
	}
	if end < len(e.body) || len(parts) == 0 {
		parts = append(parts, e.body[end:])
	}
	return xds.NewResource(typeURL, name, e.digest(typeURL, name), parts...)
}

// digest returns the digest of the content. It includes pieces by their digest, so
// its cost depends only on the rest.
func (e *encoder) digest(typeURL, name string) mesh.Digest {
	var space [1024]byte
	content := append(append(space[:0], typeURL...), 0)
	content = append(append(content, name...), 0)
	end := 0
	for _, p := range e.pieces[:e.count] {
		content = append(append(content, e.body[end:p.at]...), p.digest[:]...)
		end = p.at
	}
	return mesh.DigestBytes(append(content, e.body[end:]...))
}

// Numbers of the fields that encoders write, from Envoy's proto files.
const (
	addressSocketAddress   = 1
	socketAddressAddress   = 2
	socketAddressPortValue = 3

	listenerName                = 1
	listenerAddress             = 2
	listenerFilterChains        = 3
	listenerAdditionalAddresses = 33
	additionalAddressAddress    = 1
	filterChainFilters          = 3
	filterName                  = 1
	filterTypedConfig           = 4
	anyValue                    = 2
	httpManagerStatPrefix       = 2
	httpManagerRds              = 3
	rdsRouteConfigName          = 2

	extensionName        = 1
	extensionTypedConfig = 2

	routeConfigurationName         = 1
	routeConfigurationVirtualHosts = 2
	virtualHostName                = 1
	virtualHostDomains             = 2
	virtualHostRoutes              = 3
	routeName                      = 14
	routeAction                    = 2
	routeActionCluster             = 1

	clusterName             = 1
	clusterEdsClusterConfig = 3
	clusterAltStatName      = 28
	edsServiceName          = 2

	assignmentClusterName       = 1
	assignmentEndpoints         = 2
	localityLocality            = 1
	localityLbEndpoints         = 2
	localityPriority            = 5
	localityZone                = 2
	lbEndpointEndpoint          = 1
	lbEndpointHealthStatus      = 2
	endpointAddress             = 1
	endpointHostname            = 3
	endpointAdditionalAddresses = 4
)
