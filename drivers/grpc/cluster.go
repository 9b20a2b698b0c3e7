package grpc

import (
	"math"
	"net/netip"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/xds"
)

// refuse is the name of a cluster without endpoints.
const refuse = "outrigger-refuse"

// provider is the certificate provider in gRPC's bootstrap: the pod's certificate, its key
// and the mesh's roots.
const provider = "outrigger"

// backend returns the cluster and the endpoints of a Backend.
func backend(b *mesh.Backend) []*xds.Resource {
	endpoints := reachable(b)
	return []*xds.Resource{
		newResource(resource.ClusterType, b.Name, cluster(b, endpoints)),
		newResource(resource.EndpointType, b.Name, assignment(b.Name, endpoints)),
	}
}

// reachable returns the endpoints that clients call: those with an identity. A cluster of
// gRPC has TLS for all or none of them.
func reachable(b *mesh.Backend) []mesh.Endpoint {
	if b.Policy.Refuses(b.Protocol) {
		return nil
	}
	seen := map[netip.AddrPort]bool{}
	return slices.DeleteFunc(slices.Clone(b.Endpoints), func(e mesh.Endpoint) bool {
		if e.ServerName == "" || len(e.Addresses) == 0 {
			return true
		}
		// gRPC rejects all endpoints if two have the same address.
		at := netip.AddrPortFrom(e.Addresses[0], e.Port)
		twice := seen[at]
		seen[at] = true
		return twice
	})
}

// cluster returns the cluster. With GRPC_EXPERIMENTAL_XDS_SNI, gRPC sends the server name
// of each endpoint and verifies exactly that. Without it, gRPC accepts the name of any
// endpoint, and without a name it would accept every certificate of the mesh.
func cluster(b *mesh.Backend, endpoints []mesh.Endpoint) *clusterv3.Cluster {
	names := []string{refuse}
	for _, e := range endpoints {
		names = append(names, e.ServerName)
	}
	slices.Sort(names)
	var matchers []*matcherv3.StringMatcher
	for _, name := range slices.Compact(names) {
		matchers = append(matchers, exact(name))
	}
	c := &clusterv3.Cluster{
		Name:                 b.Name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads},
		// By default gRPC fails calls while 1,024 others are in progress.
		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{MaxRequests: wrapperspb.UInt32(math.MaxUint32)}}},
		TransportSocket: tlsSocket(&tlsv3.UpstreamTlsContext{
			CommonTlsContext: identity(matchers), AutoHostSni: true, AutoSniSanValidation: true,
		}),
	}
	if b.Policy.LoadBalancing.Policy == mesh.LeastRequest {
		c.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
	}
	return c
}

// identity returns the part of TLS that clients and servers share.
func identity(names []*matcherv3.StringMatcher) *tlsv3.CommonTlsContext {
	instance := &tlsv3.CertificateProviderPluginInstance{InstanceName: provider}
	return &tlsv3.CommonTlsContext{
		TlsCertificateProviderInstance: instance,
		ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			CaCertificateProviderInstance: instance,
			//lint:ignore SA1019 gRPC reads this field, and ignores the one that replaces it.
			MatchSubjectAltNames: names,
		}},
	}
}

// assignment returns the endpoints. If all are draining, all are used.
func assignment(name string, endpoints []mesh.Endpoint) *endpointv3.ClusterLoadAssignment {
	alive := slices.ContainsFunc(endpoints, func(e mesh.Endpoint) bool { return !e.Draining })
	var list []*endpointv3.LbEndpoint
	for _, e := range endpoints {
		if e.Draining && alive {
			continue
		}
		to := &endpointv3.Endpoint{Hostname: e.ServerName, Address: socket(e.Addresses[0], e.Port)}
		for _, address := range e.Addresses[1:] {
			to.AdditionalAddresses = append(to.AdditionalAddresses, &endpointv3.Endpoint_AdditionalAddress{Address: socket(address, e.Port)})
		}
		list = append(list, &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: to}})
	}
	all := &endpointv3.ClusterLoadAssignment{ClusterName: name}
	if len(list) > 0 {
		// gRPC ignores localities without a weight.
		all.Endpoints = []*endpointv3.LocalityLbEndpoints{{
			Locality: &corev3.Locality{}, LbEndpoints: list, LoadBalancingWeight: wrapperspb.UInt32(1),
		}}
	}
	return all
}
