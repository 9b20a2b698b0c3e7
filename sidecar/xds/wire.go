package xds

import (
	"encoding/hex"
	"strconv"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that reads requests
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// request is what a client says, in either protocol.
type request struct {
	// nodeID and build are the node's id and version, which the first request has.
	nodeID, build string
	typeURL       string
	nonce         string
	// refusal is why the response with the nonce was refused; nil if it was not.
	refusal *status.Status
	// subscribe, unsubscribe and initial are those of the delta protocol.
	subscribe, unsubscribe []string
	initial                map[string]string
	// names and version are those of the other.
	names   []string
	version string
}

func deltaRequest(r *discoveryv3.DeltaDiscoveryRequest) request {
	return request{
		nodeID: r.GetNode().GetId(), build: buildOf(r.GetNode().GetUserAgentName(), r.GetNode().GetUserAgentBuildVersion().GetVersion(), r.GetNode().GetUserAgentVersion()),
		typeURL: r.GetTypeUrl(), nonce: r.GetResponseNonce(), refusal: r.GetErrorDetail(),
		subscribe: r.GetResourceNamesSubscribe(), unsubscribe: r.GetResourceNamesUnsubscribe(), initial: r.GetInitialResourceVersions(),
	}
}

func worldRequest(r *discoveryv3.DiscoveryRequest) request {
	return request{
		nodeID: r.GetNode().GetId(), build: buildOf(r.GetNode().GetUserAgentName(), r.GetNode().GetUserAgentBuildVersion().GetVersion(), r.GetNode().GetUserAgentVersion()),
		typeURL: r.GetTypeUrl(), nonce: r.GetResponseNonce(), refusal: r.GetErrorDetail(),
		names: r.GetResourceNames(), version: r.GetVersionInfo(),
	}
}

// semantic is the version of a build, as Envoy tells it.
type semantic interface {
	GetMajorNumber() uint32
	GetMinorNumber() uint32
	GetPatch() uint32
}

func buildOf[S semantic](agent string, v S, text string) string {
	if text == "" && v.GetMajorNumber()+v.GetMinorNumber() > 0 {
		text = strconv.Itoa(int(v.GetMajorNumber())) + "." + strconv.Itoa(int(v.GetMinorNumber())) + "." + strconv.Itoa(int(v.GetPatch()))
	}
	switch {
	case text == "":
		return shortened(agent)
	case agent == "":
		return shortened(text)
	}
	return shortened(agent + " " + text)
}

// shortened bounds what a client says and somebody keeps.
func shortened(text string) string {
	const most = 128
	if len(text) > most {
		text = text[:most]
	}
	return text
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

// deltaResponse returns the resources, and the names of those that are no more, as
// the delta protocol has it.
func deltaResponse(typeURL, nonce string, resources []*Resource, removed []string) *response {
	r := &response{parts: make(mem.BufferSlice, 0, 1+2*len(resources))}
	for _, resource := range resources {
		r.add(resource.deltaEntry())
		r.add(resource.Body)
	}
	r.add(appendTail(nil, typeURL, nonce, removed))
	return r
}

// worldResponse returns the resources as the other protocol has it.
func worldResponse(typeURL, nonce, version string, resources []*Resource) *response {
	r := &response{parts: make(mem.BufferSlice, 0, 1+2*len(resources))}
	for _, resource := range resources {
		r.add(resource.appendAny(nil, responseResources))
		r.add(resource.Body)
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

// codec sends responses as they are, without another copy, and reads requests as
// usual.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(*response); ok {
		return r.parts, nil
	}
	return c.CodecV2.Marshal(v)
}

// digestOf reads a version. Any that is not one of ours becomes a digest that no
// resource has.
func digestOf(version string) mesh.Digest {
	var d mesh.Digest
	if len(version) != 2*len(d) {
		return foreign
	}
	if _, err := hex.Decode(d[:], []byte(version)); err != nil || d.IsZero() {
		return foreign
	}
	return d
}

// foreign is the digest of a state that is not known: it is something, and not what
// it should be.
var foreign = mesh.DigestBytes([]byte("a state that is not known"))
