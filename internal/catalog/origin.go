package catalog

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// The kinds of the objects that parts of Views are made of. Routes have their own kinds.
const (
	kindMeshConfig             = "MeshConfig"
	kindNamespace              = "Namespace"
	kindService                = "Service"
	kindPod                    = "Pod"
	kindTrafficTarget          = "TrafficTarget"
	kindTrafficSplit           = "TrafficSplit"
	kindEgress                 = "Egress"
	kindIngressBackend         = "IngressBackend"
	kindAccessPolicy           = "AccessPolicy"
	kindClusterAccessPolicy    = "ClusterAccessPolicy"
	kindTokenPolicy            = "TokenPolicy"
	kindRetry                  = "Retry"
	kindGateway                = "Gateway"
	kindGatewayClass           = "GatewayClass"
	kindUpstreamTrafficSetting = "UpstreamTrafficSetting"
)

// Fields of Services and UpstreamTrafficSettings that change how clients call.
const (
	fieldSessionAffinity     = "spec.sessionAffinity"
	fieldTrafficDistribution = "spec.trafficDistribution"
	fieldRequestTimeout      = "spec.timeouts.request"
	fieldLoadBalancing       = "spec.loadBalancing.policy"
)

// The annotations of namespaces, and of pods or, the last one, of TrafficTargets.
const (
	fieldInboundTLS = "metadata.annotations[" + metadata.InboundTLSMode + "]"
	fieldAccessLog  = "metadata.annotations[" + metadata.AccessLog + "]"
	fieldAccessMode = "metadata.annotations[" + metadata.AccessMode + "]"

	fieldDefaultAccess = "metadata.annotations[" + metadata.DefaultAccess + "]"

	fieldOutboundServices = "metadata.annotations[" + metadata.OutboundServices + "]"
)

// apiVersions has the API version of each kind, the one that the controller reads.
var apiVersions = map[string]string{
	kindService:                "v1",
	kindPod:                    "v1",
	kindTrafficTarget:          "access.smi-spec.io/v1alpha3",
	kindTrafficSplit:           "split.smi-spec.io/v1alpha4",
	kindEgress:                 "policy.openservicemesh.io/v1alpha1",
	kindIngressBackend:         "policy.openservicemesh.io/v1alpha1",
	kindAccessPolicy:           "outrigger.dev/v1alpha1",
	kindClusterAccessPolicy:    "outrigger.dev/v1alpha1",
	kindTokenPolicy:            "outrigger.dev/v1alpha1",
	kindGateway:                gatewayVersion,
	kindRetry:                  "policy.openservicemesh.io/v1alpha1",
	kindUpstreamTrafficSetting: "policy.openservicemesh.io/v1alpha1",
}

// originOf returns the origin of a part that an object of a kind asks for.
func originOf(kind string, object mesh.Name, field string) mesh.Origin {
	return mesh.Origin{Object: mesh.ObjectRef{APIVersion: apiVersions[kind], Kind: kind, Namespace: object.Namespace, Name: object.Name}, Field: field}
}

// originOfNamespace returns the origin of what a namespace asks for.
func originOfNamespace(ns *fact.Namespace, field string) mesh.Origin {
	return mesh.Origin{Object: mesh.ObjectRef{APIVersion: "v1", Kind: kindNamespace, Name: ns.Name}, Field: field}
}

// nameOf returns the name of an origin's object.
func nameOf(o mesh.Origin) mesh.Name {
	return mesh.Name{Namespace: o.Object.Namespace, Name: o.Object.Name}
}

// originOfRoute returns the origin of a part that a route asks for.
func originOfRoute(route *fact.Route, field string) mesh.Origin {
	return mesh.Origin{
		Object: mesh.ObjectRef{APIVersion: gatewayVersion, Kind: string(route.Kind), Namespace: route.Namespace, Name: route.Name.Name},
		Field:  field,
	}
}

// originsOfDestination returns the origins of a Destination that has neither routes nor splits.
func (j *join) originsOfDestination(r *graph.Reader, service mesh.Name) []mesh.Origin {
	return append([]mesh.Origin{originOf(kindService, service, "")}, originsAt(j.policies.Get(r, service).Origins, fieldRequestTimeout)...)
}

// originsAt returns the origins with one of the fields.
func originsAt(origins []mesh.Origin, fields ...string) []mesh.Origin {
	var found []mesh.Origin
	for _, o := range origins {
		if slices.Contains(fields, o.Field) {
			found = append(found, o)
		}
	}
	return found
}

// originsOfPolicy returns an origin for each field that changes what a policy for calls asks of
// proxies.
func originsOfPolicy(setting *fact.UpstreamSetting) []mesh.Origin {
	var origins []mesh.Origin
	for _, feature := range setting.Policy.Needs() {
		origins = withOrigin(origins, originOf(kindUpstreamTrafficSetting, setting.Name, policyFields[feature]))
	}
	return origins
}

// withOrigin appends an origin unless it is there.
func withOrigin(origins []mesh.Origin, more ...mesh.Origin) []mesh.Origin {
	for _, o := range more {
		if !slices.Contains(origins, o) {
			origins = append(origins, o)
		}
	}
	return origins
}
