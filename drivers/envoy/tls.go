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
)

// nobody is the server name for an endpoint that has none: no certificate of the
// mesh is for it, so such an endpoint cannot be called.
const nobody = "nobody.invalid"

// httpALPN is what is agreed on for HTTP. Other protocols agree on nothing.
var httpALPN = []string{"h2", "http/1.1"}

// upstreamTLS returns mesh TLS as a client speaks it. The server name, and the name
// that the server's certificate must have, is the host name of the endpoint.
func upstreamTLS(s *mesh.Settings) *corev3.TransportSocket {
	return transportSocket(&tlsv3.UpstreamTlsContext{
		CommonTlsContext:     meshTLS(s, agentSecret(agentspec.SecretBundle)),
		Sni:                  nobody,
		AutoHostSni:          true,
		AutoSniSanValidation: true,
		// Some proxies kill a connection that resumes a session.
		MaxSessionKeys: wrapperspb.UInt32(0),
	})
}

// clientCert says which certificates of clients are taken. The zero clientCert asks
// for none, and one that is shown means nothing.
type clientCert struct {
	// validation is the secret that says whose are.
	validation *tlsv3.SdsSecretConfig
	// required refuses clients that show none.
	required bool
}

var (
	memberCert   = clientCert{validation: agentSecret(agentspec.SecretBundle), required: true}
	optionalCert = clientCert{validation: agentSecret(agentspec.SecretBundle)}
)

// downstreamTLS returns mesh TLS as a server speaks it.
func downstreamTLS(s *mesh.Settings, client clientCert, alpn []string) *corev3.TransportSocket {
	common := meshTLS(s, client.validation)
	common.AlpnProtocols = alpn
	return transportSocket(&tlsv3.DownstreamTlsContext{
		CommonTlsContext:         common,
		RequireClientCertificate: wrapperspb.Bool(client.required),
		// A resumed session would outlive the certificate that began it.
		SessionTicketKeysType:            &tlsv3.DownstreamTlsContext_DisableStatelessSessionResumption{DisableStatelessSessionResumption: true},
		DisableStatefulSessionResumption: true,
	})
}

// meshTLS is the proxy's identity, and what says which peers are verified; nil
// verifies nobody.
func meshTLS(s *mesh.Settings, validation *tlsv3.SdsSecretConfig) *tlsv3.CommonTlsContext {
	common := &tlsv3.CommonTlsContext{
		TlsParams: &tlsv3.TlsParameters{
			TlsMinimumProtocolVersion: tlsVersion(s.TLS.Min),
			TlsMaximumProtocolVersion: tlsVersion(s.TLS.Max),
			CipherSuites:              s.TLS.Ciphers,
			EcdhCurves:                s.TLS.Curves,
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

// agentSecret is a secret that the agent beside serves, by the name that it has there.
// The words are those of the bootstrap: other words are another subscription to Envoy.
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
			// What has no secret yet takes nobody's connections.
			InitialFetchTimeout: durationpb.New(0),
		},
	}
}

// adsSecret is a secret that is fetched like the rest of the configuration.
func adsSecret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: adsSource()}
}

// tlsVersion takes what it does not know for the newest.
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
