// Package protofield reads encoded protobuf messages field by field, where the generated types
// would cost too much memory or program size.
package protofield

import "google.golang.org/protobuf/encoding/protowire"

// Each calls take with the number and content of each length-delimited field of an encoded message,
// in their order: strings, bytes, messages and entries of maps. Fields of other types are skipped. The
// content is a part of b. It returns take's first error, or one of package protowire for an invalid
// encoding.
func Each(b []byte, take func(number protowire.Number, content []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
				return protowire.ParseError(n)
			}
			b = b[n:]
			continue
		}
		content, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if err := take(number, content); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
