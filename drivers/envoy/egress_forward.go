package envoy

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	clusterforwardv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dynamic_forward_proxy/v3"
	forwardv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/dynamic_forward_proxy/v3"
	httpforwardv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/dynamic_forward_proxy/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	sniforwardv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/sni_dynamic_forward_proxy/v3"
)

// The hosts of a wildcard are known only when they are requested. A filter then
// resolves the name and the cluster connects to the result. Both must be configured
// with the same cache.
var (
	forwardCache = &forwardv3.DnsCacheConfig{Name: "egress", DnsLookupFamily: clusterv3.Cluster_ALL}

	dynamicForwardCluster = frozen(&clusterv3.Cluster{
		ClusterDiscoveryType: &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
			Name: "envoy.clusters.dynamic_forward_proxy",
			TypedConfig: pack(&clusterforwardv3.ClusterConfig{
				ClusterImplementationSpecifier: &clusterforwardv3.ClusterConfig_DnsCacheConfig{DnsCacheConfig: forwardCache},
				// Envoy insists on verifying upstream certificates, but the cluster uses plaintext.
				AllowInsecureClusterOptions: true,
			}),
		}},
		LbPolicy: clusterv3.Cluster_CLUSTER_PROVIDED,
	})

	dynamicForward = []*hcmv3.HttpFilter{httpFilterOf("envoy.filters.http.dynamic_forward_proxy", &httpforwardv3.FilterConfig{
		ImplementationSpecifier: &httpforwardv3.FilterConfig_DnsCacheConfig{DnsCacheConfig: forwardCache},
	})}
)

func dynamicForwardSNI(port uint16) *listenerv3.Filter {
	return filter("envoy.filters.network.sni_dynamic_forward_proxy", &sniforwardv3.FilterConfig{
		DnsCacheConfig: forwardCache,
		PortSpecifier:  &sniforwardv3.FilterConfig_PortValue{PortValue: uint32(port)},
	})
}
