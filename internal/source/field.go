package source

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
)

// inert is a field, or a group of fields, that is accepted and has no effect.
type inert struct {
	// path is the path of the field.
	path string
	// set reports whether the field differs from the presets of Open Service Mesh and
	// osm-edge, so that their presets cause no Problems.
	set func(s *v1alpha2.MeshConfigSpec) bool
	// why is the reason, or what to do.
	why string
}

// inertMessage is the message of the Problem about an inert field.
func inertMessage(why string) string { return "accepted, has no effect: " + why }

// checkInert adds a Problem for each field that is set and has no effect.
func (r *reader) checkInert() {
	for _, field := range inertFields() {
		if field.set(r.spec) {
			r.add(ReasonNoEffect, field.path, "%s", inertMessage(field.why))
		}
	}
}

func isTrue(b *bool) bool  { return b != nil && *b }
func isFalse(b *bool) bool { return b != nil && !*b }

// among reports whether a value is one of the presets' values.
func among[T comparable](value T, defaults ...T) bool {
	return slices.Contains(defaults, value)
}

type spec = v1alpha2.MeshConfigSpec

// inertFields returns all fields of the spec without effect. A test checks that every
// other field has an effect.
func inertFields() []inert {
	return []inert{
		{
			"spec.clusterSet",
			func(s *spec) bool { return len(s.ClusterSet.Properties) > 0 },
			"Outrigger does not join meshes of several clusters; remove it",
		},
		{
			"spec.repoServer.ipaddr",
			func(s *spec) bool { return !among(s.RepoServer.IPAddr, "", "127.0.0.1") },
			"the controller is the Pipy repository itself; remove it",
		},
		{
			"spec.repoServer.codebase",
			func(s *spec) bool { return s.RepoServer.Codebase != "" },
			"the controller is the Pipy repository itself; remove it",
		},
		{
			"spec.pluginChains",
			func(s *spec) bool {
				c := &s.PluginChains
				return len(c.InboundTCPChains)+len(c.InboundHTTPChains)+len(c.OutboundTCPChains)+len(c.OutboundHTTPChains) > 0
			},
			"Outrigger does not load the modules of osm-edge's scripts; remove it",
		},

		{
			"spec.sidecar.sidecarTimeout",
			func(s *spec) bool { return !among(s.Sidecar.SidecarTimeout, 0, 60) },
			"timeouts belong to the routes, not to the sidecars; remove it",
		},
		{
			"spec.sidecar.localDNSProxy",
			func(s *spec) bool { return s.Sidecar.LocalDNSProxy.Enable },
			"sidecars leave DNS alone; remove it",
		},

		{
			"spec.traffic.interceptionMode",
			func(s *spec) bool {
				return !among(s.Traffic.InterceptionMode, "", v1alpha2.InterceptionModeIPTables, v1alpha2.InterceptionModeNone)
			},
			"there is no agent on the nodes, so pods are redirected as with iptables; remove it",
		},
		{
			"spec.traffic.http1PerRequestLoadBalancing",
			func(s *spec) bool { return isTrue(s.Traffic.HTTP1PerRequestLoadBalancing) },
			"how HTTP/1 is balanced is the driver's choice; remove it",
		},
		{
			"spec.traffic.http2PerRequestLoadBalancing",
			func(s *spec) bool { return isFalse(s.Traffic.HTTP2PerRequestLoadBalancing) },
			"how HTTP/2 is balanced is the driver's choice; remove it",
		},
		{
			"spec.traffic.useHTTPSIngress",
			func(s *spec) bool { return s.Traffic.UseHTTPSIngress },
			"ingress is described by IngressBackend objects; remove it",
		},

		{
			"spec.observability.prometheusScraping",
			func(s *spec) bool { return isFalse(s.Observability.PrometheusScraping) },
			"Open Service Mesh dropped it after version 0.9; remove it",
		},
		{
			"spec.observability.remoteLogging",
			func(s *spec) bool { return s.Observability.RemoteLogging.Enable },
			"sidecars log to their own output only; collect it there and remove this",
		},

		{
			"spec.certificate.certKeyBitSize",
			func(s *spec) bool { return !among(s.Certificate.CertKeyBitSize, 0, 2048) },
			"the keys of workloads are ECDSA on the curve P-256; remove it",
		},

		{
			"spec.featureFlags.enableWASMStats",
			func(s *spec) bool { return isFalse(s.FeatureFlags.EnableWASMStats) },
			"there is no WASM filter to turn off; remove it",
		},
		{
			"spec.featureFlags.enableMulticlusterMode",
			func(s *spec) bool { return isTrue(s.FeatureFlags.EnableMulticlusterMode) },
			"Outrigger does not join meshes of several clusters; remove it",
		},
		{
			"spec.featureFlags.enableSnapshotCacheMode",
			func(s *spec) bool { return isTrue(s.FeatureFlags.EnableSnapshotCacheMode) },
			"there is one implementation and nothing to choose; remove it",
		},
		{
			"spec.featureFlags.enableAsyncProxyServiceMapping",
			func(s *spec) bool { return isTrue(s.FeatureFlags.EnableAsyncProxyServiceMapping) },
			"there is one implementation and nothing to choose; remove it",
		},
		{
			"spec.featureFlags.enableValidatingWebhook",
			func(s *spec) bool { return isFalse(s.FeatureFlags.EnableValidatingWebhook) },
			"the API server itself validates MeshConfigs by their schema; remove it",
		},
		{
			"spec.featureFlags.enableAccessControlPolicy",
			func(s *spec) bool { return isTrue(s.FeatureFlags.EnableAccessControlPolicy) },
			"Outrigger has no AccessControl objects; use IngressBackend",
		},
		{
			"spec.featureFlags.enableAccessCertPolicy",
			func(s *spec) bool { return isTrue(s.FeatureFlags.EnableAccessCertPolicy) },
			"Outrigger has no AccessCert objects; remove it",
		},
		{
			"spec.featureFlags.enablePluginPolicy",
			func(s *spec) bool { return isTrue(s.FeatureFlags.EnablePluginPolicy) },
			"Outrigger has no Plugin objects; remove it",
		},
	}
}
