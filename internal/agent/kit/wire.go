package kit

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// AppendField appends a length-delimited field.
func AppendField(b []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value)
}

// RawCodec passes messages through unchanged. A message is a *[]byte.
type RawCodec struct{}

// Name is for encoding.CodecV2.
func (RawCodec) Name() string { return "proto" }

// Marshal is for encoding.CodecV2.
func (RawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("unexpected message of type %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

// Unmarshal is for encoding.CodecV2.
func (RawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("unexpected message of type %T", v)
	}
	*b = data.Materialize()
	return nil
}
