package source

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
)

// inert is a field, or a part with all its fields, that is accepted and does
// nothing.
type inert struct {
	// path is the field's.
	path string
	// set reports whether the field asks for more than Open Service Mesh or
	// osm-edge would do by default, so that their presets stay quiet.
	set func(s *v1alpha2.MeshConfigSpec) bool
	// reason is ReasonNoEffect for what Outrigger has no use for, and
	// ReasonNotYet for what is planned.
	reason string
	// why says what is the case, or what to do.
	why string
}

// inertMessage is what a user reads of an inert field.
func inertMessage(reason, why string) string {
	if reason == ReasonNotYet {
		return "accepted, but not in this build, which does not serve configuration to proxies: " + why
	}
	return "accepted, has no effect: " + why
}

// checkInert notes the fields that are set and do nothing.
func (r *reader) checkInert() {
	for _, field := range inertFields() {
		if field.set(r.spec) {
			r.add(field.reason, field.path, "%s", inertMessage(field.reason, field.why))
		}
	}
}

func isTrue(b *bool) bool  { return b != nil && *b }
func isFalse(b *bool) bool { return b != nil && !*b }

// among reports whether a value is one of those that a preset has.
func among[T comparable](value T, defaults ...T) bool {
	return slices.Contains(defaults, value)
}

type spec = v1alpha2.MeshConfigSpec

// inertFields is every field of the spec that does nothing today. A field leaves
// this table when it begins to do something; a test holds that each field is
// either here or does something.
func inertFields() []inert {
	return []inert{
		{
			"spec.clusterSet",
			func(s *spec) bool { return len(s.ClusterSet.Properties) > 0 },
			ReasonNoEffect, "Outrigger does not join meshes of several clusters; remove it",
		},
		{
			"spec.repoServer.ipaddr",
			func(s *spec) bool { return !among(s.RepoServer.IPAddr, "", "127.0.0.1") },
			ReasonNoEffect, "the controller is the Pipy repository itself; remove it",
		},
		{
			"spec.repoServer.codebase",
			func(s *spec) bool { return s.RepoServer.Codebase != "" },
			ReasonNoEffect, "the controller is the Pipy repository itself; remove it",
		},
		{
			"spec.pluginChains",
			func(s *spec) bool {
				c := &s.PluginChains
				return len(c.InboundTCPChains)+len(c.InboundHTTPChains)+len(c.OutboundTCPChains)+len(c.OutboundHTTPChains) > 0
			},
			ReasonNoEffect, "Outrigger does not load the modules of osm-edge's scripts; remove it",
		},

		{
			"spec.sidecar.maxDataPlaneConnections",
			func(s *spec) bool { return s.Sidecar.MaxDataPlaneConnections > 0 },
			ReasonNotYet, "no proxy connects, so none is refused",
		},
		{
			"spec.sidecar.configResyncInterval",
			func(s *spec) bool {
				length, err := s.Sidecar.ConfigResyncInterval.Parse()
				return err == nil && length > 0
			},
			ReasonNotYet, "nothing is sent again",
		},
		{
			"spec.sidecar.sidecarTimeout",
			func(s *spec) bool { return !among(s.Sidecar.SidecarTimeout, 0, 60) },
			ReasonNoEffect, "timeouts belong to the routes, not to the sidecars; remove it",
		},
		{
			"spec.sidecar.tlsMinProtocolVersion",
			func(s *spec) bool { return !among(s.Sidecar.TLSMinProtocolVersion, "", v1alpha2.TLSv1_2) },
			ReasonNotYet, "sidecars speak no mesh TLS",
		},
		{
			"spec.sidecar.tlsMaxProtocolVersion",
			func(s *spec) bool { return !among(s.Sidecar.TLSMaxProtocolVersion, "", v1alpha2.TLSv1_3) },
			ReasonNotYet, "sidecars speak no mesh TLS",
		},
		{
			"spec.sidecar.cipherSuites",
			func(s *spec) bool { return len(s.Sidecar.CipherSuites) > 0 },
			ReasonNotYet, "sidecars speak no mesh TLS",
		},
		{
			"spec.sidecar.ecdhCurves",
			func(s *spec) bool { return len(s.Sidecar.ECDHCurves) > 0 },
			ReasonNotYet, "sidecars speak no mesh TLS",
		},
		{
			"spec.sidecar.localDNSProxy",
			func(s *spec) bool { return s.Sidecar.LocalDNSProxy.Enable },
			ReasonNoEffect, "sidecars leave DNS alone; remove it",
		},

		{
			"spec.traffic.inboundTLSMode",
			func(s *spec) bool { return !among(s.Traffic.InboundTLSMode, "", v1alpha2.InboundTLSStrict) },
			ReasonNotYet, "sidecars take no connections",
		},
		{
			"spec.traffic.interceptionMode",
			func(s *spec) bool {
				return !among(s.Traffic.InterceptionMode, "", v1alpha2.InterceptionModeIPTables, v1alpha2.InterceptionModeNone)
			},
			ReasonNoEffect, "there is no agent on the nodes, so pods are redirected as with iptables; remove it",
		},
		{
			"spec.traffic.enableEgress",
			func(s *spec) bool { return s.Traffic.EnableEgress },
			ReasonNotYet, "sidecars let nothing out of the mesh; exclude ports or ranges instead",
		},
		{
			"spec.traffic.enablePermissiveTrafficPolicyMode",
			func(s *spec) bool { return isFalse(s.Traffic.EnablePermissiveTrafficPolicyMode) },
			ReasonNotYet, "no traffic policy is applied",
		},
		{
			"spec.traffic.inboundExternalAuthorization",
			func(s *spec) bool { return s.Traffic.InboundExternalAuthorization.Enable },
			ReasonNotYet, "no request is authorised",
		},
		{
			"spec.traffic.http1PerRequestLoadBalancing",
			func(s *spec) bool { return isTrue(s.Traffic.HTTP1PerRequestLoadBalancing) },
			ReasonNoEffect, "how HTTP/1 is balanced is the driver's choice; remove it",
		},
		{
			"spec.traffic.http2PerRequestLoadBalancing",
			func(s *spec) bool { return isFalse(s.Traffic.HTTP2PerRequestLoadBalancing) },
			ReasonNoEffect, "how HTTP/2 is balanced is the driver's choice; remove it",
		},
		{
			"spec.traffic.useHTTPSIngress",
			func(s *spec) bool { return s.Traffic.UseHTTPSIngress },
			ReasonNoEffect, "ingress is described by IngressBackend objects; remove it",
		},

		{
			"spec.observability.enableDebugServer",
			func(s *spec) bool { return s.Observability.EnableDebugServer },
			ReasonNotYet, "there are no debug pages",
		},
		{
			"spec.observability.prometheusScraping",
			func(s *spec) bool { return isFalse(s.Observability.PrometheusScraping) },
			ReasonNoEffect, "Open Service Mesh dropped it after version 0.9; remove it",
		},
		{
			"spec.observability.tracing",
			func(s *spec) bool { return s.Observability.Tracing.Enable },
			ReasonNotYet, "no spans are sent",
		},
		{
			"spec.observability.remoteLogging",
			func(s *spec) bool { return s.Observability.RemoteLogging.Enable },
			ReasonNoEffect, "sidecars log to their own output only; collect it there and remove this",
		},

		{
			"spec.certificate.serviceCertValidityDuration",
			func(s *spec) bool {
				d := s.Certificate.ServiceCertValidityDuration
				length, err := d.Parse()
				return err == nil && d != "" && length.Hours() != 24
			},
			ReasonNotYet, "no certificates are issued",
		},
		{
			"spec.certificate.certKeyBitSize",
			func(s *spec) bool { return !among(s.Certificate.CertKeyBitSize, 0, 2048) },
			ReasonNotYet, "no certificates are issued",
		},
		{
			"spec.certificate.ingressGateway",
			func(s *spec) bool { return s.Certificate.IngressGateway != nil },
			ReasonNotYet, "no certificates are issued",
		},

		{
			"spec.featureFlags.enableWASMStats",
			func(s *spec) bool { return isFalse(s.FeatureFlags.EnableWASMStats) },
			ReasonNoEffect, "there is no WASM filter to turn off; remove it",
		},
		{
			"spec.featureFlags.enableEgressPolicy",
			func(s *spec) bool { return isFalse(s.FeatureFlags.EnableEgressPolicy) },
			ReasonNotYet, "no Egress object is honoured whatever this says",
		},
		{
			"spec.featureFlags.enableMulticlusterMode",
			func(s *spec) bool { return isTrue(s.FeatureFlags.EnableMulticlusterMode) },
			ReasonNoEffect, "Outrigger does not join meshes of several clusters; remove it",
		},
		{
			"spec.featureFlags.enableSnapshotCacheMode",
			func(s *spec) bool { return isTrue(s.FeatureFlags.EnableSnapshotCacheMode) },
			ReasonNoEffect, "there is one implementation and nothing to choose; remove it",
		},
		{
			"spec.featureFlags.enableAsyncProxyServiceMapping",
			func(s *spec) bool { return isTrue(s.FeatureFlags.EnableAsyncProxyServiceMapping) },
			ReasonNoEffect, "there is one implementation and nothing to choose; remove it",
		},
		{
			"spec.featureFlags.enableValidatingWebhook",
			func(s *spec) bool { return isFalse(s.FeatureFlags.EnableValidatingWebhook) },
			ReasonNoEffect, "the API server itself validates MeshConfigs by their schema; remove it",
		},
		{
			"spec.featureFlags.enableIngressBackendPolicy",
			func(s *spec) bool { return isFalse(s.FeatureFlags.EnableIngressBackendPolicy) },
			ReasonNotYet, "no IngressBackend object is honoured whatever this says",
		},
		{
			"spec.featureFlags.enableAccessControlPolicy",
			func(s *spec) bool { return isTrue(s.FeatureFlags.EnableAccessControlPolicy) },
			ReasonNoEffect, "Outrigger has no AccessControl objects; use IngressBackend",
		},
		{
			"spec.featureFlags.enableAccessCertPolicy",
			func(s *spec) bool { return isTrue(s.FeatureFlags.EnableAccessCertPolicy) },
			ReasonNoEffect, "Outrigger has no AccessCert objects; remove it",
		},
		{
			"spec.featureFlags.enableEnvoyActiveHealthChecks",
			func(s *spec) bool { return isTrue(s.FeatureFlags.EnableEnvoyActiveHealthChecks) },
			ReasonNotYet, "proxies do not probe endpoints",
		},
		{
			"spec.featureFlags.enableSidecarActiveHealthChecks",
			func(s *spec) bool { return isTrue(s.FeatureFlags.EnableSidecarActiveHealthChecks) },
			ReasonNotYet, "proxies do not probe endpoints",
		},
		{
			"spec.featureFlags.enableRetryPolicy",
			func(s *spec) bool { return isTrue(s.FeatureFlags.EnableRetryPolicy) },
			ReasonNotYet, "no Retry object is honoured",
		},
		{
			"spec.featureFlags.enablePluginPolicy",
			func(s *spec) bool { return isTrue(s.FeatureFlags.EnablePluginPolicy) },
			ReasonNoEffect, "Outrigger has no Plugin objects; remove it",
		},
	}
}
