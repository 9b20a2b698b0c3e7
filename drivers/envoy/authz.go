package envoy

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// authorization returns a filter that asks the user's external authorization service
// about each request that the rules have allowed, or nil if there is no such service.
func authorization(a *mesh.Authorization) []*hcmv3.HttpFilter {
	if a == nil {
		return nil
	}
	service := grpcService(authorizationCluster)
	if a.Timeout > 0 {
		service.Timeout = duration(a.Timeout)
	}
	return []*hcmv3.HttpFilter{httpFilterOf("envoy.filters.http.ext_authz", &authzv3.ExtAuthz{
		Services:            &authzv3.ExtAuthz_GrpcService{GrpcService: service},
		TransportApiVersion: corev3.ApiVersion_V3,
		StatPrefix:          a.StatPrefix,
		FailureModeAllow:    a.AllowOnFailure,
	})}
}
