package xds

import (
	"errors"
	"strings"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/internal/protofield"
)

// deltaRequest is a DeltaDiscoveryRequest that decodes itself. A client that comes back names
// thousands of versions, for which the generated code needs most of the CPU and memory of a
// restart.
type deltaRequest struct{ request }

// Field numbers of DeltaDiscoveryRequest, and of an entry of a map.
const (
	requestNode        = 1
	requestTypeURL     = 2
	requestSubscribe   = 3
	requestUnsubscribe = 4
	requestInitial     = 5
	requestNonce       = 6
	requestError       = 7

	entryKey   = 1
	entryValue = 2
)

var errInvalidText = errors.New("a text is not valid UTF-8")

// unmarshal replaces the request by a decoded one. All its names and versions are parts of one
// string: whoever keeps one of them for long copies it.
func (r *deltaRequest) unmarshal(data mem.BufferSlice) error {
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	b := buffer.ReadOnlyData()
	r.request = request{}
	entries, length := 0, 0
	err := protofield.Each(b, func(number protowire.Number, value []byte) error {
		switch number {
		case requestSubscribe, requestUnsubscribe:
			length += len(value)
		case requestInitial:
			entries++
			length += len(value)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if entries > 0 {
		// Names may be there several times.
		r.initial = make(map[string]string, min(entries, maxNames))
	}
	var all strings.Builder
	all.Grow(length)
	text := func(value []byte) (string, error) {
		start := all.Len()
		all.Write(value)
		return all.String()[start:], validate(value)
	}
	// A message that is there twice is one.
	merge := proto.UnmarshalOptions{Merge: true}
	var node corev3.Node
	return protofield.Each(b, func(number protowire.Number, value []byte) error {
		var err error
		switch number {
		case requestNode:
			err = merge.Unmarshal(value, &node)
			r.nodeID, r.build = node.GetId(), buildOf(&node)
		case requestTypeURL:
			r.typeURL, err = string(value), validate(value)
		case requestNonce:
			r.nonce, err = string(value), validate(value)
		case requestError:
			if r.refusal == nil {
				r.refusal = new(status.Status)
			}
			err = merge.Unmarshal(value, r.refusal)
		case requestSubscribe, requestUnsubscribe:
			var name string
			if name, err = text(value); number == requestSubscribe {
				r.subscribe = append(r.subscribe, name)
			} else {
				r.unsubscribe = append(r.unsubscribe, name)
			}
		case requestInitial:
			var entry [entryValue + 1]string
			err = protofield.Each(value, func(number protowire.Number, value []byte) (err error) {
				if number == entryKey || number == entryValue {
					entry[number], err = text(value)
				}
				return err
			})
			r.initial[entry[entryKey]] = entry[entryValue]
		}
		return err
	})
}

func validate(text []byte) error {
	if !utf8.Valid(text) {
		return errInvalidText
	}
	return nil
}
