package xds

import (
	"encoding/hex"
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that reads other requests
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// request is a request of either protocol.
type request struct {
	// nodeID and build are the node's id and version, set in the first request only.
	nodeID, build string
	typeURL       string
	nonce         string
	// refusal is the error of the rejected response with the nonce; nil if it was
	// accepted.
	refusal *status.Status
	// subscribe, unsubscribe and initial are set in the delta protocol.
	subscribe, unsubscribe []string
	initial                map[string]string
	// names and version are set in the SotW protocol.
	names   []string
	version string
}

func sotwRequest(r *discoveryv3.DiscoveryRequest) request {
	return request{
		nodeID: r.GetNode().GetId(), build: buildOf(r.GetNode()),
		typeURL: r.GetTypeUrl(), nonce: r.GetResponseNonce(), refusal: r.GetErrorDetail(),
		names: r.GetResourceNames(), version: r.GetVersionInfo(),
	}
}

// buildOf returns the user agent and its version, such as "envoy 1.40.0".
func buildOf(node *corev3.Node) string {
	version := node.GetUserAgentVersion()
	if v := node.GetUserAgentBuildVersion().GetVersion(); version == "" && v.GetMajorNumber()+v.GetMinorNumber() > 0 {
		version = fmt.Sprintf("%d.%d.%d", v.GetMajorNumber(), v.GetMinorNumber(), v.GetPatch())
	}
	return truncate(strings.Trim(node.GetUserAgentName()+" "+version, " "))
}

// truncate limits text from a client that is stored or logged.
func truncate(text string) string { return beginning(text, 128) }

// beginning returns a copy of the beginning of a text, which does not keep the rest in memory.
func beginning(text string, size int) string {
	return strings.ToValidUTF8(strings.Clone(text[:min(len(text), size)]), "")
}

// response is an encoded response. Its parts are shared with other streams.
type response struct {
	parts mem.BufferSlice
	size  int
}

func (r *response) add(b []byte) {
	if len(b) > 0 {
		r.parts = append(r.parts, mem.SliceBuffer(b))
		r.size += len(b)
	}
}

// deltaResponse encodes the items for the delta protocol.
func deltaResponse(typeURL, nonce string, items []item) *response {
	r := &response{parts: make(mem.BufferSlice, 0, len(items)+1)}
	var removed []string
	for _, i := range items {
		if i.resource == nil {
			removed = append(removed, i.name)
			continue
		}
		var size int
		r.parts, size = i.resource.appendEntry(r.parts)
		r.size += size
	}
	r.add(appendTail(nil, typeURL, nonce, removed))
	return r
}

// sotwResponse encodes resources for the SotW protocol.
func sotwResponse(typeURL, nonce, version string, resources []*Resource) *response {
	r := &response{parts: make(mem.BufferSlice, 0, 1+2*len(resources))}
	for _, resource := range resources {
		r.add(resource.appendAny(nil, responseResources))
		for _, part := range resource.body {
			r.add(part)
		}
	}
	tail := protowire.AppendString(protowire.AppendTag(nil, responseVersion, protowire.BytesType), version)
	r.add(appendTail(tail, typeURL, nonce, nil))
	return r
}

func appendTail(b []byte, typeURL, nonce string, removed []string) []byte {
	b = protowire.AppendString(protowire.AppendTag(b, responseTypeURL, protowire.BytesType), typeURL)
	b = protowire.AppendString(protowire.AppendTag(b, responseNonce, protowire.BytesType), nonce)
	for _, name := range removed {
		b = protowire.AppendString(protowire.AppendTag(b, responseRemoved, protowire.BytesType), strings.ToValidUTF8(name, "?"))
	}
	return b
}

// codec sends encoded responses without copying them, and lets requests of the delta protocol
// decode themselves.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(*response); ok {
		return r.parts, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if r, ok := v.(*deltaRequest); ok {
		return r.unmarshal(data)
	}
	return c.CodecV2.Unmarshal(data, v)
}

// digestOf parses a version. Versions that this package did not issue become
// unknownDigest.
func digestOf(version string) mesh.Digest {
	var d mesh.Digest
	if len(version) != 2*len(d) {
		return unknownDigest
	}
	if _, err := hex.Decode(d[:], []byte(version)); err != nil || d.IsZero() {
		return unknownDigest
	}
	return d
}

// unknownDigest stands for an unknown version. No resource has it.
var unknownDigest = mesh.DigestBytes([]byte("a state that is not known"))
