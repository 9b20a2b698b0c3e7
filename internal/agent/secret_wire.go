package agent

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// The few messages of the discovery protocol that the agent speaks are encoded by hand:
// with their generated types the program is 1.4 MiB larger, as docs/decisions says.
// The numbers are those of the fields in envoy/service/discovery/v3/discovery.proto and
// envoy/extensions/transport_sockets/tls/v3/{secret,common}.proto.

const secretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

// secretRequest is what matters here of a DiscoveryRequest.
type secretRequest struct {
	names          []string
	typeURL, nonce string
	// problem is why the last response was refused, if it was.
	problem string
}

func parseSecretRequest(b []byte) (secretRequest, error) {
	var r secretRequest
	err := eachField(b, func(number protowire.Number, value []byte) error {
		switch number {
		case 3:
			r.names = append(r.names, string(value))
		case 4:
			r.typeURL = string(value)
		case 5:
			r.nonce = string(value)
		case 6:
			r.problem = "it does not say why"
			return eachField(value, func(number protowire.Number, value []byte) error {
				if number == 2 && len(value) > 0 {
					r.problem = string(value)
				}
				return nil
			})
		}
		return nil
	})
	return r, err
}

// eachField calls take with the content of each field that holds a text or a message.
func eachField(b []byte, take func(protowire.Number, []byte) error) error {
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
		value, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if err := take(number, value); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// field appends a field that holds a text or a message.
func field(b []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value)
}

// inline returns a DataSource.
func inline(content []byte) []byte { return field(nil, 2, content) }

// identitySecret returns a Secret with a TlsCertificate. It is as secret as the key.
func identitySecret(m material) []byte {
	certificate := field(field(nil, 1, inline(m.chain)), 2, inline(m.key))
	return field(field(nil, 1, []byte("identity")), 2, certificate)
}

// bundleSecret returns a Secret with a CertificateValidationContext.
func bundleSecret(m material) []byte {
	return field(field(nil, 1, []byte("bundle")), 4, field(nil, 1, inline(m.bundle)))
}

// secretResponse returns a DiscoveryResponse with Secrets.
func secretResponse(version, nonce string, secrets [][]byte) []byte {
	b := field(nil, 1, []byte(version))
	for _, secret := range secrets {
		b = field(b, 2, field(field(nil, 1, []byte(secretType)), 2, secret))
	}
	return field(field(b, 4, []byte(secretType)), 5, []byte(nonce))
}

// rawCodec passes messages on as they are on the wire. They are pointers to bytes.
type rawCodec struct{}

// Name is for encoding.CodecV2.
func (rawCodec) Name() string { return "proto" }

// Marshal is for encoding.CodecV2.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("a message of type %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

// Unmarshal is for encoding.CodecV2.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("a message of type %T", v)
	}
	*b = data.Materialize()
	return nil
}
