package source

import (
	"maps"
	"slices"

	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// gatewayFeatures are the features that Gateway API defines for gateways and that the mesh has, each
// with what a proxy must be able to do for it. What is not listed is not built, whatever the proxy.
// HTTPRouteRetryConnectionError is not: for an application that does not listen, its sidecar takes the
// connection and answers 503, which is no connection error to the gateway.
// The conformance suite runs the tests of what a GatewayClass claims by this list (make conformance
// PROFILE=gateway).
var gatewayFeatures = map[gateway.FeatureName][]mesh.Feature{
	"Gateway":                      nil,
	"GatewayAddressEmpty":          nil,
	"GatewayHTTPListenerIsolation": nil,
	"GatewayHTTPSListenerDetectMisdirectedRequests": {mesh.FeatureTermination},
	"GatewayInfrastructure":                         nil,
	"GatewayPort8080":                               nil,
	"GatewayRouteHostnameIntersectionPrecedence":    nil,
	"GRPCRoute":                                 {mesh.FeatureHTTP2, mesh.FeatureHeaderMatches},
	"GRPCRouteNamedRouteRule":                   {mesh.FeatureHTTP2},
	"GRPCRouteRequestHeaderModifier":            {mesh.FeatureHTTP2, mesh.FeatureHeaderChanges},
	"HTTPRoute":                                 {mesh.FeatureHeaderMatches, mesh.FeatureHeaderChanges, mesh.FeatureRedirects},
	"HTTPRoute303RedirectStatusCode":            {mesh.FeatureRedirects},
	"HTTPRoute307RedirectStatusCode":            {mesh.FeatureRedirects},
	"HTTPRoute308RedirectStatusCode":            {mesh.FeatureRedirects},
	"HTTPRouteBackendProtocolH2C":               {mesh.FeatureHTTP2},
	"HTTPRouteBackendProtocolWebSocket":         {mesh.FeatureWebSocket},
	"HTTPRouteBackendRequestHeaderModification": {mesh.FeatureHeaderChanges},
	"HTTPRouteBackendTimeout":                   {mesh.FeatureTimeouts},
	"HTTPRouteCORS":                             {mesh.FeatureCORS},
	"HTTPRouteDestinationPortMatching":          nil,
	"HTTPRouteHostRewrite":                      {mesh.FeatureRewrites},
	"HTTPRouteMethodMatching":                   nil,
	"HTTPRouteNamedRouteRule":                   nil,
	"HTTPRouteParentRefPort":                    nil,
	"HTTPRoutePathRedirect":                     {mesh.FeatureRedirects},
	"HTTPRoutePathRewrite":                      {mesh.FeatureRewrites},
	"HTTPRoutePortRedirect":                     {mesh.FeatureRedirects},
	"HTTPRouteQueryParamMatching":               {mesh.FeatureQueryMatches},
	"HTTPRouteRequestMirror":                    {mesh.FeatureMirrors},
	"HTTPRouteRequestMultipleMirrors":           {mesh.FeatureMirrors},
	"HTTPRouteRequestPercentageMirror":          {mesh.FeatureMirrors},
	"HTTPRouteRequestTimeout":                   {mesh.FeatureTimeouts},
	"HTTPRouteResponseHeaderModification":       {mesh.FeatureHeaderChanges},
	"HTTPRouteRetryCodes":                       {mesh.FeatureRetries, mesh.FeatureRetryCodes, mesh.FeatureRetryBackoff},
	"HTTPRouteSchemeRedirect":                   {mesh.FeatureRedirects},
	"ReferenceGrant":                            nil,
	"TCPRoute":                                  nil,
	"TLSRoute":                                  {mesh.FeatureServerNames},
	"TLSRouteModeTerminate":                     {mesh.FeatureServerNames, mesh.FeatureTermination},
}

// supportedFeatures returns what gateways support whose proxies have the features, sorted as the status of
// a GatewayClass must be. Proxies that cannot be gateways support nothing.
func supportedFeatures(has []mesh.Feature) []gateway.SupportedFeature {
	if !slices.Contains(has, mesh.FeatureGateways) {
		return nil
	}
	var list []gateway.SupportedFeature
	for _, name := range slices.Sorted(maps.Keys(gatewayFeatures)) {
		if !slices.ContainsFunc(gatewayFeatures[name], func(f mesh.Feature) bool { return !slices.Contains(has, f) }) {
			list = append(list, gateway.SupportedFeature{Name: name})
		}
	}
	return list
}
