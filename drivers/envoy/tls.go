package envoy

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// invalidHost is the server name of endpoints without one. No certificate of the mesh
// has it, so such endpoints cannot be called.
const invalidHost = "nobody.invalid"

// httpALPN is the ALPN list for HTTP. Other protocols use no ALPN.
var httpALPN = []string{"h2", "http/1.1"}

// upstreamTLS returns mesh TLS for a client. The endpoint's host name is both the
// server name and the name that the server's certificate must have.
func upstreamTLS(s *mesh.Settings) *corev3.TransportSocket {
	return transportSocket(&tlsv3.UpstreamTlsContext{
		CommonTlsContext:     meshTLS(s, agentSecret(agentspec.SecretBundle)),
		Sni:                  invalidHost,
		AutoHostSni:          true,
		AutoSniSanValidation: true,
		// Some proxies close connections that resume a session.
		MaxSessionKeys: wrapperspb.UInt32(0),
	})
}

// clientCert configures the verification of client certificates. The zero clientCert
// neither requests nor verifies one.
type clientCert struct {
	// validation is the secret with the validation context.
	validation *tlsv3.SdsSecretConfig
	// required rejects clients without a certificate.
	required bool
}

var (
	memberCert   = clientCert{validation: agentSecret(agentspec.SecretBundle), required: true}
	optionalCert = clientCert{validation: agentSecret(agentspec.SecretBundle)}
)

// downstreamTLS returns mesh TLS for a server.
func downstreamTLS(s *mesh.Settings, client clientCert, alpn []string) *corev3.TransportSocket {
	common := meshTLS(s, client.validation)
	common.AlpnProtocols = alpn
	return transportSocket(&tlsv3.DownstreamTlsContext{
		CommonTlsContext:         common,
		RequireClientCertificate: wrapperspb.Bool(client.required),
		// A resumed session would outlive its certificate.
		SessionTicketKeysType:            &tlsv3.DownstreamTlsContext_DisableStatelessSessionResumption{DisableStatelessSessionResumption: true},
		DisableStatefulSessionResumption: true,
	})
}

// meshTLS returns the proxy's certificate with the validation context for peers; nil
// verifies no peer.
func meshTLS(s *mesh.Settings, validation *tlsv3.SdsSecretConfig) *tlsv3.CommonTlsContext {
	common := &tlsv3.CommonTlsContext{
		TlsParams: &tlsv3.TlsParameters{
			TlsMinimumProtocolVersion: tlsVersion(s.TLS.Min),
			TlsMaximumProtocolVersion: tlsVersion(s.TLS.Max),
			CipherSuites:              s.TLS.Ciphers,
			EcdhCurves:                keyExchanges(s),
		},
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{agentSecret(agentspec.SecretIdentity)},
	}
	if validation != nil {
		common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{
			ValidationContextSdsSecretConfig: validation,
		}
	}
	return common
}

// defaultKeyExchanges are those of Envoy 1.40. Older ones know the first, but do not use it unless
// it is named.
var defaultKeyExchanges = []string{driver.KeyExchangeHybrid, driver.KeyExchangeClassic, "P-256"}

// keyExchanges returns the key exchanges of mesh TLS, the preferred one first.
func keyExchanges(s *mesh.Settings) []string {
	if len(s.TLS.Curves) == 0 {
		return defaultKeyExchanges
	}
	return s.TLS.Curves
}

// agentSecret refers to a secret that the agent serves under the name. The source must
// equal that in the bootstrap: otherwise Envoy subscribes twice.
func agentSecret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{
		Name: name,
		SdsConfig: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
				ApiType:             corev3.ApiConfigSource_GRPC,
				TransportApiVersion: corev3.ApiVersion_V3,
				GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
					ClusterName: "outrigger-agent",
					RetryPolicy: &corev3.RetryPolicy{RetryBackOff: &corev3.BackoffStrategy{
						BaseInterval: durationpb.New(100 * time.Millisecond), MaxInterval: durationpb.New(time.Second),
					}},
				}}}},
			}},
			ResourceApiVersion: corev3.ApiVersion_V3,
			// Accept no connections before the secret has arrived.
			InitialFetchTimeout: durationpb.New(0),
		},
	}
}

// adsSecret refers to a secret that is delivered by ADS.
func adsSecret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: adsSource()}
}

// tlsVersion maps unknown versions to the newest.
func tlsVersion(version string) tlsv3.TlsParameters_TlsProtocol {
	if version == "1.2" {
		return tlsv3.TlsParameters_TLSv1_2
	}
	return tlsv3.TlsParameters_TLSv1_3
}

func transportSocket(context proto.Message) *corev3.TransportSocket {
	return &corev3.TransportSocket{
		Name:       "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(context)},
	}
}
