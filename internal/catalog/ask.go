package catalog

import (
	"fmt"
	"slices"
	"unique"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// ask is a feature that a part of a View requires, and the field of an object that asks for
// it. Together the asks of a View are its Needs but for two that no object asks for: access logs
// as such, which are on by default, and IPv6 of the pod's own addresses.
type ask struct {
	origin  mesh.Origin
	feature mesh.Feature
}

// asksOf returns an ask for each of the features.
func asksOf(origin mesh.Origin, features []mesh.Feature) []ask {
	asks := make([]ask, len(features))
	for i, feature := range features {
		asks[i] = ask{origin, feature}
	}
	return asks
}

// policyFields are the fields of UpstreamTrafficSettings that ask for the features of an
// UpstreamPolicy.
var policyFields = map[mesh.Feature]string{
	mesh.FeatureTimeouts:              fieldRequestTimeout,
	mesh.FeatureConnectTimeouts:       "spec.connectionSettings.tcp.connectTimeout",
	mesh.FeatureIdleTimeouts:          "spec.timeouts.idle",
	mesh.FeatureConnectionLimits:      "spec.connectionSettings.tcp.maxConnections",
	mesh.FeatureRequestLimits:         "spec.connectionSettings.http",
	mesh.FeatureRequestsPerConnection: "spec.connectionSettings.http.maxRequestsPerConnection",
	mesh.FeatureOutlierEjection:       "spec.outlierDetection",
	mesh.FeatureLeastRequest:          fieldLoadBalancing,
	mesh.FeatureRandomEndpoint:        fieldLoadBalancing,
	mesh.FeatureConsistentHash:        fieldLoadBalancing,
	mesh.FeatureZonePreference:        "spec.loadBalancing.zoneAware",
}

// serviceFields are the fields of Services that ask for such features.
var serviceFields = map[mesh.Feature]string{
	mesh.FeatureConsistentHash: fieldSessionAffinity,
	mesh.FeatureZonePreference: fieldTrafficDistribution,
}

// retryFields are the fields of Retries that ask for the features of a mesh.Retry.
var retryFields = map[mesh.Feature]string{
	mesh.FeatureRetries:      "spec.retryPolicy",
	mesh.FeatureTimeouts:     "spec.retryPolicy.perTryTimeout",
	mesh.FeatureRetryBackoff: "spec.retryPolicy.retryBackoffBaseInterval",
}

// settingsFields are the fields of the MeshConfig that ask for features.
var settingsFields = map[mesh.Feature]string{
	mesh.FeatureHealthChecks:          "spec.featureFlags.enableSidecarActiveHealthChecks",
	mesh.FeatureConnectTimeouts:       "spec.traffic.connectTimeout",
	mesh.FeatureExternalAuthorization: "spec.traffic.inboundExternalAuthorization",
	mesh.FeatureForwardedFor:          "spec.traffic.enableForwardedFor",
	mesh.FeatureZipkinTracing:         "spec.observability.tracing",
	mesh.FeatureOTLPTracing:           "spec.observability.tracing",
	mesh.FeatureAccessLogSampling:     "spec.observability.accessLog",
	mesh.FeatureTLSSettings:           "spec.sidecar",
	mesh.FeatureTLSCurves:             "spec.sidecar",
	mesh.FeaturePlaintextMesh:         "spec.sidecar.sidecarDrivers",
	mesh.FeaturePermissiveTLS:         "spec.traffic.inboundTLSMode",
	mesh.FeatureEgressTCP:             "spec.traffic.enableEgress",
}

// originOfSettings is the MeshConfig, of which there is one, whatever its name.
func originOfSettings(feature mesh.Feature) mesh.Origin {
	return mesh.Origin{Object: mesh.ObjectRef{Kind: kindMeshConfig}, Field: settingsFields[feature]}
}

// originOfPort returns the field of a port of a Service.
func originOfPort(svc *fact.Service, port uint16) mesh.Origin {
	i := slices.IndexFunc(svc.Ports, func(spec fact.PortSpec) bool { return spec.Port == port })
	return originOf(kindService, svc.Name, fmt.Sprintf("spec.ports[%d]", i))
}

// asksOfDestinations returns what an audience of a service port is asked for by the Destinations
// that it gets.
func (j *join) asksOfDestinations(r *graph.Reader, svc *fact.Service, of audience) []ask {
	var asks []ask
	for _, d := range j.destinations.Get(r, of).list {
		asks = append(asks, asksOfDestination(svc, d)...)
	}
	for _, split := range j.splitsFor(r, svc, of) {
		for i, group := range split.Matches {
			origin := originOf(kindTrafficSplit, split.Name, fmt.Sprintf("spec.matches[%d]", i))
			asks = append(asks, asksOf(origin, needsOf(j.matchesOf(r, split.Namespace, []string{group})))...)
		}
	}
	return asks
}

// asksOfBackends returns what those are asked for who get the Backends of an audience.
func (j *join) asksOfBackends(r *graph.Reader, svc *fact.Service, of audience) []ask {
	var asks []ask
	for _, used := range j.destinations.Get(r, of).uses {
		of := j.service(r, used.Name)
		for _, b := range j.backends.Get(r, used).list {
			asks = append(asks, asksOfBackend(of, b)...)
		}
	}
	for _, split := range j.splitsFor(r, svc, of) {
		for i, backend := range split.Backends {
			to, ok := j.splitPort(r, split, backend, of.port)
			if !ok || backend.Weight == 0 {
				continue
			}
			if list := j.backends.Get(r, to).list; len(list) > 0 && list[0].ExternalName != "" {
				asks = append(asks, ask{originOf(kindTrafficSplit, split.Name, fmt.Sprintf("spec.backends[%d].service", i)), mesh.FeatureExternalNames})
			}
		}
	}
	return asks
}

// splitsFor returns the splits of the Destinations that an audience gets.
func (j *join) splitsFor(r *graph.Reader, svc *fact.Service, of audience) []*fact.Split {
	spec, _ := portOf(svc, of.port.Port)
	if svc.Headless || len(j.destinations.Get(r, of).list) == 0 || len(j.routesInForce(r, svc, spec, of.namespace)) > 0 {
		return nil
	}
	return j.splitsInForce(r, svc, spec.Protocol)
}

// asksOfDestination returns what a service and its routes ask for.
func asksOfDestination(svc *fact.Service, d *mesh.Destination) []ask {
	own := mesh.Destination{Protocol: d.Protocol, Addresses: d.Addresses}
	asks := asksOfPort(svc, d.Service.Port, own.Needs())
	for _, server := range d.Servers {
		asks = append(asks, ask{server.Origin, mesh.FeatureServerNames})
	}
	for _, route := range d.Routes {
		if route.Origin.Object.APIVersion == gatewayVersion {
			one := mesh.Destination{Routes: []mesh.Route{route}}
			asks = append(asks, asksOf(route.Origin, one.Needs())...)
		}
	}
	return asks
}

// asksOfPort attributes the features of a port's protocol and of addresses to the Service.
func asksOfPort(svc *fact.Service, port uint16, features []mesh.Feature) []ask {
	var asks []ask
	for _, feature := range features {
		origin := originOfPort(svc, port)
		if feature == mesh.FeatureIPv6 {
			origin.Field = "spec.ipFamilies"
		}
		asks = append(asks, ask{origin, feature})
	}
	return asks
}

// asksOfBackend returns what a service and the policy for calling it ask for.
func asksOfBackend(svc *fact.Service, b *mesh.Backend) []ask {
	own := mesh.Backend{Protocol: b.Protocol, Endpoints: b.Endpoints}
	return append(asksOfPort(svc, b.Service.Port, own.Needs()), asksOfPolicy(b.Origins, b.Policy)...)
}

// asksOfPolicy attributes the features of a policy to those of its origins that have a field
// for them. What no origin has, the MeshConfig asks for.
func asksOfPolicy(origins []mesh.Origin, policy mesh.UpstreamPolicy) []ask {
	var asks []ask
	for _, feature := range policy.Needs() {
		for _, o := range origins {
			if o.Field != "" && (o.Field == policyFields[feature] || o.Field == serviceFields[feature]) {
				asks = append(asks, ask{o, feature})
			}
		}
	}
	return asks
}

// asksOfRetry returns what a RetryRule asks its source for by the Destinations of an audience: nothing
// if the source does not call them, or all their routes have a retry of their own.
func (j *join) asksOfRetry(r *graph.Reader, rule *fact.RetryRule, of audience) []ask {
	without := func(route mesh.Route) bool { return route.Retry == nil }
	changed := slices.ContainsFunc(j.destinations.Get(r, of).list, func(d *mesh.Destination) bool { return slices.ContainsFunc(d.Routes, without) })
	if !changed || !j.mustSettings(r).PermissivePolicy && !slices.Contains(j.sourcesOf(r, of), rule.Source) {
		return nil
	}
	var asks []ask
	for _, feature := range rule.Retry.Needs() {
		asks = append(asks, ask{originOf(kindRetry, rule.Name, retryFields[feature]), feature})
	}
	return asks
}

// asksOfDirect returns what the callers of a workload at its own address are asked for by the
// services whose ports it has there.
func (j *join) asksOfDirect(r *graph.Reader, w *fact.Workload, destinations []*mesh.Destination) []ask {
	var asks []ask
	for _, d := range destinations {
		own := mesh.Destination{Protocol: d.Protocol, Addresses: d.Addresses}
		for _, t := range j.targets(r, w) {
			if t.port == d.Port {
				asks = append(asks, asksOfPort(j.service(r, t.service.Name), t.service.Port, own.Needs())...)
			}
		}
	}
	return asks
}

// asksOfProxy returns what the proxy of a workload is asked for by all but its Outbound.
func (j *join) asksOfProxy(r *graph.Reader, w *fact.Workload) []ask {
	plaintext := j.proxies.Get(r, w.Name).Plaintext
	in := j.inboundOf.Get(r, w.Name)
	asks := append(j.asksOfSettings(r, plaintext), j.asksOfEgress(r, accountOf(w))...)
	if j.egress.Get(r, accountOf(w)).AllowAll {
		asks = append(asks, ask{originOfSettings(mesh.FeatureEgressTCP), mesh.FeatureEgressTCP})
	}
	ns, _ := j.namespaces.Get(r, mesh.Name{Name: w.Namespace})
	if policies := j.applied.Get(r, w.Name); policies != (unique.Handle[appliedPolicies]{}) {
		// The Inbound of a class that lacks the feature does not have what is left out.
		in = j.inbounds.Get(r, j.inboundKeyOf(r, w))
		asks = append(asks, j.asksOfPolicies(r, policies, in)...)
	}
	if in.TLS == mesh.Permissive && !plaintext {
		asks = append(asks, askOf(w, ns, fieldInboundTLS, mesh.FeaturePermissiveTLS, w.InboundTLS != "", ns.InboundTLS != ""))
	}
	if j.settingsOf(r, w).AccessLog.IsSampled() {
		asks = append(asks, j.askOfAccessLog(r, w))
	}
	if _, ok := j.annotatedServicesOf(r, w).OnDemand(); ok {
		asks = append(asks, askOf(w, ns, fieldOutboundServices, mesh.FeatureOnDemand, w.OutboundServices != nil, true))
	}
	if len(w.ProxyProtocol) > 0 {
		asks = append(asks, ask{originOf(kindPod, w.Name, fieldProxyProtocol), mesh.FeatureProxyProtocol})
	}
	if in.Others.Audit {
		asks = append(asks, j.asksOfAudit(r, ns, accountOf(w))...)
	}
	for i := range in.Ports {
		asks = append(asks, j.asksOfInbound(r, &in.Ports[i])...)
	}
	return asks
}

// asksForProxy returns the ports of a workload that only a proxy could serve, those for TCP and
// HTTP/1.1.
func (j *join) asksForProxy(r *graph.Reader, w *fact.Workload) []ask {
	var asks []ask
	for _, t := range j.targets(r, w) {
		svc := j.service(r, t.service.Name)
		if spec, _ := portOf(svc, t.service.Port); spec.Protocol == mesh.HTTP || spec.Protocol == mesh.TCP {
			asks = append(asks, ask{originOfPort(svc, t.service.Port), featureProxy})
		}
	}
	return asks
}

// asksOfSettings returns what the MeshConfig asks for, without what pods and namespaces may
// set.
func (j *join) asksOfSettings(r *graph.Reader, plaintext bool) []ask {
	var asks []ask
	for _, feature := range j.mustSettings(r).Needs(plaintext) {
		if feature != mesh.FeatureAccessLogs && feature != mesh.FeatureAccessLogSampling {
			asks = append(asks, ask{originOfSettings(feature), feature})
		}
	}
	return asks
}

// askOfAccessLog attributes the sampling of a workload's access log.
func (j *join) askOfAccessLog(r *graph.Reader, w *fact.Workload) ask {
	ns, _ := j.namespaces.Get(r, mesh.Name{Name: w.Namespace})
	return askOf(w, ns, fieldAccessLog, mesh.FeatureAccessLogSampling, w.AccessLog != nil, ns.AccessLog != nil)
}

// askOf attributes a feature to what decides of the pod, its namespace and the MeshConfig.
func askOf(w *fact.Workload, ns *fact.Namespace, field string, feature mesh.Feature, pod, namespace bool) ask {
	switch {
	case pod:
		return ask{originOf(kindPod, w.Name, field), feature}
	case namespace:
		return ask{originOfNamespace(ns, field), feature}
	}
	return ask{originOfSettings(feature), feature}
}

// asksOfAudit returns what asks for the audit of an account's workloads.
func (j *join) asksOfAudit(r *graph.Reader, ns *fact.Namespace, account fact.ServiceAccount) []ask {
	var asks []ask
	if ns.Audit {
		asks = append(asks, ask{originOfNamespace(ns, fieldAccessMode), mesh.FeatureAudit})
	}
	if ns.DefaultAccess == fact.Audit {
		asks = append(asks, ask{originOfNamespace(ns, fieldDefaultAccess), mesh.FeatureAudit})
	}
	for _, a := range j.accessesOf.Get(r, account) {
		if rule, _ := j.accesses.Get(r, a.key); rule.Audit && j.member(r, rule.Namespace) {
			asks = append(asks, ask{originOf(kindTrafficTarget, rule.Name, fieldAccessMode), mesh.FeatureAudit})
		}
	}
	return asks
}

// asksOfInbound returns what the services, limits, rules and ingress of a port ask for.
func (j *join) asksOfInbound(r *graph.Reader, p *mesh.InboundPort) []ask {
	var asks []ask
	for _, at := range p.Services {
		if svc := j.service(r, at.Name); svc != nil {
			if spec, _ := portOf(svc, at.Port); spec.Protocol == p.Protocol {
				asks = append(asks, asksOf(originOfPort(svc, at.Port), p.Protocol.Needs())...)
			}
		}
	}
	for _, feature := range p.Limits.Needs() {
		for _, o := range p.Origins {
			o.Field = limitField(p.Limits, feature)
			asks = append(asks, ask{o, feature})
		}
	}
	for _, permission := range p.Access.Rules {
		rule, ok := j.accesses.Get(r, nameOf(permission.Origin))
		if !ok || permission.Origin.Object.Kind != kindTrafficTarget || !p.Protocol.IsHTTP() {
			continue
		}
		for i, routes := range rule.Rules {
			origin := originOf(kindTrafficTarget, rule.Name, fmt.Sprintf("spec.rules[%d]", i))
			asks = append(asks, asksOf(origin, needsOf(j.httpMatches(r, rule, routes)))...)
		}
	}
	for i := range p.Ingress {
		if origin := p.Ingress[i].Origin; origin.Object.Kind == kindAccessPolicy || origin.Object.Kind == kindClusterAccessPolicy {
			asks = append(asks, asksOf(origin, p.Ingress[i].Needs())...)
		} else if rule, ok := j.ingresses.Get(r, nameOf(origin)); ok {
			asks = append(asks, asksOfIngress(rule, p, &p.Ingress[i])...)
		}
	}
	return asks
}

// limitField is the field of an UpstreamTrafficSetting that asks for a feature of its limits.
func limitField(limits mesh.RateLimits, feature mesh.Feature) string {
	switch {
	case feature == mesh.FeatureConnectionRateLimits:
		return "spec.rateLimit.local.tcp"
	case limits.Requests == nil:
		return "spec.httpRoutes"
	}
	return "spec.rateLimit.local.http"
}

// asksOfIngress returns what an IngressRule asks for at a port.
func asksOfIngress(rule *fact.IngressRule, p *mesh.InboundPort, in *mesh.Ingress) []ask {
	var asks []ask
	for i, backend := range rule.Backends {
		isService := slices.ContainsFunc(p.Services, func(s mesh.ServicePort) bool {
			return s.Name == mesh.Name{Namespace: rule.Namespace, Name: backend.Service}
		})
		if !isService || backend.Port != p.Port || backend.TLS != in.TLS {
			continue
		}
		for _, feature := range in.Needs() {
			field := fmt.Sprintf("spec.backends[%d]", i)
			switch feature {
			case mesh.FeatureHeaderMatches, mesh.FeatureQueryMatches:
				field = "spec.matches"
			case mesh.FeatureIPv6:
				field = "spec.sources"
			}
			asks = append(asks, ask{originOf(kindIngressBackend, rule.Name, field), feature})
		}
	}
	return asks
}

// asksOfEgress returns what the EgressRules of an account, and the policies that they use, ask
// for.
func (j *join) asksOfEgress(r *graph.Reader, account fact.ServiceAccount) []ask {
	var asks []ask
	for _, p := range j.egress.Get(r, account).Ports {
		for _, rule := range j.egressRules(r, account) {
			i := slices.Index(rule.Ports, fact.EgressPort{Number: p.Port, Protocol: p.Protocol})
			if i < 0 {
				continue
			}
			lets := mesh.EgressRoutes{Protocol: p.Protocol}
			j.addEgress(r, &lets, rule)
			for _, feature := range lets.Needs() {
				origin := originOf(kindEgress, rule.Name, "")
				switch feature {
				case mesh.FeatureEgressHTTP, mesh.FeatureEgressTLS, mesh.FeatureEgressTCP:
					origin.Field = fmt.Sprintf("spec.ports[%d]", i)
				case mesh.FeatureHeaderMatches, mesh.FeatureQueryMatches:
					origin.Field = "spec.matches"
				case mesh.FeatureIPv6:
					origin.Field = "spec.ipAddresses"
				default:
					// The policies' objects ask for these.
					continue
				}
				asks = append(asks, ask{origin, feature})
			}
		}
		for _, host := range p.Hosts {
			asks = append(asks, asksOfPolicy(host.Origins, host.Policy)...)
		}
	}
	return asks
}

// needsOf returns the features that the matches require.
func needsOf(matches []mesh.HTTPMatch) []mesh.Feature {
	var features []mesh.Feature
	for _, m := range matches {
		features = append(features, m.Needs()...)
	}
	slices.Sort(features)
	return slices.Compact(features)
}
