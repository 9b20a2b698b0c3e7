package identity

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/protofield"
)

// The agent encodes the few messages of the discovery protocol that it needs by hand: their
// generated types would add 1.4 MiB to the program (see docs/decisions). The field numbers
// are from envoy/service/discovery/v3/discovery.proto and
// envoy/extensions/transport_sockets/tls/v3/{secret,common}.proto.

const secretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

// secretRequest holds the used fields of a DiscoveryRequest.
type secretRequest struct {
	names          []string
	typeURL, nonce string
	// problem is why the proxy rejected the last response; empty if it did not.
	problem string
}

func parseSecretRequest(b []byte) (secretRequest, error) {
	var r secretRequest
	err := protofield.Each(b, func(number protowire.Number, value []byte) error {
		switch number {
		case 3:
			r.names = append(r.names, string(value))
		case 4:
			r.typeURL = string(value)
		case 5:
			r.nonce = string(value)
		case 6:
			r.problem = "no reason given"
			return protofield.Each(value, func(number protowire.Number, value []byte) error {
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

// inline returns a DataSource.
func inline(content []byte) []byte { return kit.AppendField(nil, 2, content) }

// identitySecret returns a Secret with a TlsCertificate. It contains the private key.
func identitySecret(m material) []byte {
	certificate := kit.AppendField(kit.AppendField(nil, 1, inline(m.chain)), 2, inline(m.key))
	return kit.AppendField(kit.AppendField(nil, 1, []byte("identity")), 2, certificate)
}

// bundleSecret returns a Secret with a CertificateValidationContext.
func bundleSecret(m material) []byte {
	return kit.AppendField(kit.AppendField(nil, 1, []byte("bundle")), 4, kit.AppendField(nil, 1, inline(m.bundle)))
}

// secretResponse returns a DiscoveryResponse with Secrets.
func secretResponse(version, nonce string, secrets [][]byte) []byte {
	b := kit.AppendField(nil, 1, []byte(version))
	for _, secret := range secrets {
		b = kit.AppendField(b, 2, kit.AppendField(kit.AppendField(nil, 1, []byte(secretType)), 2, secret))
	}
	return kit.AppendField(kit.AppendField(b, 4, []byte(secretType)), 5, []byte(nonce))
}
