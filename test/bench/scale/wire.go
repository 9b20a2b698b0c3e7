package main

import (
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/internal/protofield"
)

// frame is a received message that has not been decoded. Decoding every resource in a
// thousand clients would cost more than what is measured.
type frame []byte

// frames are frames that nobody reads any more, whose memory is used again.
var frames = sync.Pool{New: func() any { return new(frame) }}

// codec sends messages of protobuf and frames, and receives frames.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(frame); ok {
		return mem.BufferSlice{mem.SliceBuffer(f)}, nil
	}
	data, err := proto.Marshal(v.(proto.Message))
	return mem.BufferSlice{mem.SliceBuffer(data)}, err
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch to := v.(type) {
	case *frame:
		*to = slices.Grow((*to)[:0], data.Len())[:data.Len()]
		data.CopyTo(*to)
		return nil
	case proto.Message:
		return proto.Unmarshal(data.Materialize(), to)
	}
	return fmt.Errorf("%T can't be received", v)
}

// response is what a client needs from a DeltaDiscoveryResponse or a DiscoveryResponse.
// The values of its resources are parts of the frame.
type response struct {
	typeURL, nonce, version string
	resources               []resource
	removed                 []string
}

// resource is a resource of a response. Those of the state of the world have neither a name
// nor a version.
type resource struct {
	name, version string
	value         []byte
}

// The numbers of the fields in envoy.service.discovery.v3. A DiscoveryResponse has its
// version at the place of the system's, and an Any at the place of a Resource.
const (
	fieldVersion   = 1
	fieldResources = 2
	fieldTypeURL   = 4
	fieldNonce     = 5
	fieldRemoved   = 6

	resourceVersion = 1
	resourceValue   = 2
	resourceName    = 3

	anyValue = 2
)

func (t *texts) parseResponse(data frame, sotw bool) (*response, error) {
	var r response
	err := protofield.Each(data, func(number protowire.Number, value []byte) error {
		switch number {
		case fieldVersion:
			r.version = string(value)
		case fieldTypeURL:
			r.typeURL = t.get(value)
		case fieldNonce:
			r.nonce = string(value)
		case fieldRemoved:
			r.removed = append(r.removed, t.get(value))
		case fieldResources:
			parsed, err := t.parseResource(value, sotw)
			r.resources = append(r.resources, parsed)
			return err
		}
		return nil
	})
	return &r, err
}

func (t *texts) parseResource(data []byte, sotw bool) (resource, error) {
	var r resource
	if sotw {
		return r, protofield.Each(data, func(number protowire.Number, value []byte) error {
			if number == anyValue {
				r.value = value
			}
			return nil
		})
	}
	return r, protofield.Each(data, func(number protowire.Number, value []byte) error {
		switch number {
		case resourceName:
			r.name = t.get(value)
		case resourceVersion:
			r.version = t.get(value)
		case resourceValue:
			return protofield.Each(value, func(number protowire.Number, value []byte) error {
				if number == anyValue {
					r.value = value
				}
				return nil
			})
		}
		return nil
	})
}
