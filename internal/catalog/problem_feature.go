package catalog

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// The functions here report, for each kind of object, the features that it requires and
// some proxies lack. They cover everything that a View requires except access
// logs as such, which are on by default.

// reportLacking adds a Problem for each of the features that a class lacks.
func (j *join) reportLacking(f *fault, field string, of *classes, features ...mesh.Feature) {
	for _, feature := range features {
		without := cmp.Or(withoutFeature[feature], "they ignore it, and deny traffic that would be unsafe without it; use a class that has it (docs/drivers.md), or remove it here")
		for _, at := range of.List {
			if !j.supports(at.Class, feature) {
				f.once(ReasonNotSupportedByProxy, field, "proxies of class %s, such as those of service account %s, lack the feature %s: %s", at.Class, at.Account, feature, without)
			}
		}
	}
}

// reportProxyless adds a Problem for each class whose pods serve a port for HTTP/1.1 or TCP,
// and run no proxy.
func (j *join) reportProxyless(f *fault, field string, of *classes) {
	for _, at := range of.List {
		if j.proxyless != nil && j.proxyless(at.Class) {
			f.once(ReasonNotSupportedByProxy, field,
				"pods of class %s, such as those of service account %s, run no proxy and serve gRPC only: they refuse all other clients; set the port's appProtocol to grpc if it is for gRPC, or use a class with a proxy",
				at.Class, at.Account)
		}
	}
}

// limitedClasses returns all classes in the mesh that lack a feature. If there are none,
// the checks are skipped.
func (j *join) limitedClasses(r *graph.Reader) *classes { return j.limited.Get(r, allNamespaces) }

// encrypted filters out the classes without mesh TLS.
func (j *join) encrypted(r *graph.Reader, of *classes) *classes {
	plaintext := j.mustSettings(r).PlaintextClasses
	return &classes{List: slices.DeleteFunc(slices.Clone(of.List), func(at classAt) bool { return slices.Contains(plaintext, at.Class) })}
}

func (j *join) checkSettingsFeatures(r *graph.Reader, _ mesh.Name, f *fault) {
	settings, ok := j.settings.Get(r, single)
	all := j.limitedClasses(r)
	if !ok || len(all.List) == 0 {
		return
	}
	for _, feature := range settings.Needs(false) {
		switch feature {
		case mesh.FeatureHealthChecks:
			j.reportLacking(f, "spec.featureFlags.enableSidecarActiveHealthChecks", all, feature)
		case mesh.FeatureConnectTimeouts:
			j.reportLacking(f, "spec.traffic.connectTimeout", all, feature)
		case mesh.FeatureExternalAuthorization:
			j.reportLacking(f, "spec.traffic.inboundExternalAuthorization", all, feature)
		case mesh.FeatureForwardedFor:
			j.reportLacking(f, "spec.traffic.enableForwardedFor", all, feature)
		case mesh.FeatureZipkinTracing, mesh.FeatureOTLPTracing:
			j.reportLacking(f, "spec.observability.tracing", all, feature)
		case mesh.FeatureAccessLogSampling:
			j.reportLacking(f, "spec.observability.accessLog", all, feature)
		case mesh.FeatureTLSSettings, mesh.FeatureTLSCurves:
			j.reportLacking(f, "spec.sidecar", j.encrypted(r, all), feature)
		}
	}
	if settings.Egress {
		j.reportLacking(f, "spec.traffic.enableEgress", all, mesh.FeatureEgressTCP)
	}
	if settings.InboundTLS == mesh.Permissive {
		j.reportLacking(f, "spec.traffic.inboundTLSMode", j.encrypted(r, all), mesh.FeaturePermissiveTLS)
	}
	for _, at := range all.List {
		if slices.Contains(settings.PlaintextClasses, at.Class) {
			j.reportLacking(f, "spec.sidecar.sidecarDrivers", &classes{List: []classAt{at}}, mesh.FeaturePlaintextMesh)
		}
	}
}

func (j *join) checkNamespaceFeatures(r *graph.Reader, ns *fact.Namespace, f *fault) {
	if len(j.limitedClasses(r).List) == 0 {
		return
	}
	if ns.InboundTLS == mesh.Permissive {
		j.reportLacking(f, fieldInboundTLS, j.encrypted(r, j.limited.Get(r, ns.Name)), mesh.FeaturePermissiveTLS)
	}
	if ns.AccessLog != nil && ns.AccessLog.IsSampled() {
		j.reportLacking(f, fieldAccessLog, j.limited.Get(r, ns.Name), mesh.FeatureAccessLogSampling)
	}
	if ns.Audit && j.mustSettings(r).PermissivePolicy {
		j.reportLacking(f, fieldAccessMode, j.limited.Get(r, ns.Name), mesh.FeatureAudit)
	}
	if _, ok := ns.OutboundServices.OnDemand(); ok {
		j.reportLacking(f, fieldOutboundServices, j.limited.Get(r, ns.Name), mesh.FeatureOnDemand)
	}
}

func (j *join) checkWorkloadFeatures(r *graph.Reader, w *fact.Workload, f *fault) {
	if w.Class == "" || w.Ended || len(j.limitedClasses(r).List) == 0 {
		return
	}
	own := &classes{List: []classAt{{w.Class, accountOf(w)}}}
	if w.InboundTLS == mesh.Permissive {
		j.reportLacking(f, fieldInboundTLS, j.encrypted(r, own), mesh.FeaturePermissiveTLS)
	}
	j.checkProxyProtocol(w, own, f)
	if w.AccessLog != nil && w.AccessLog.IsSampled() {
		j.reportLacking(f, fieldAccessLog, own, mesh.FeatureAccessLogSampling)
	}
	if _, ok := w.OutboundServices.OnDemand(); ok {
		j.reportLacking(f, fieldOutboundServices, own, mesh.FeatureOnDemand)
	}
}

func (j *join) checkServiceFeatures(r *graph.Reader, svc *fact.Service, f *fault) {
	if len(j.limitedClasses(r).List) == 0 {
		return
	}
	ports := portsOf(svc)
	for i, spec := range svc.Ports {
		callers := j.callers.Get(r, ports[i])
		needs := spec.Protocol.Needs()
		if len(needs) > 0 {
			servers := j.servers(r, svc.Name, func(p mesh.InboundPort) bool {
				return p.Protocol == spec.Protocol && slices.Contains(p.Services, ports[i])
			})
			j.reportLacking(f, fmt.Sprintf("spec.ports[%d]", i), classesOf(slices.Concat(callers.List, servers.List, j.directCallers(r, svc, spec).List)), needs...)
		}
		if spec.Protocol == mesh.HTTP || spec.Protocol == mesh.TCP {
			j.reportProxyless(f, fmt.Sprintf("spec.ports[%d]", i), j.servers(r, svc.Name, func(p mesh.InboundPort) bool { return slices.Contains(p.Services, ports[i]) }))
		}
		ipv6 := slices.ContainsFunc(j.destinations.Get(r, audience{port: ports[i]}).list, func(d *mesh.Destination) bool { return slices.Contains(d.Needs(), mesh.FeatureIPv6) })
		if ipv6 || slices.ContainsFunc(j.backends.Get(r, ports[i]).list, func(b *mesh.Backend) bool { return slices.Contains(b.Needs(), mesh.FeatureIPv6) }) {
			j.reportLacking(f, "spec.ipFamilies", callers, mesh.FeatureIPv6)
		}
		if svc.StickyClients && j.balancingOf(r, svc).Policy == "" {
			j.reportLacking(f, fieldSessionAffinity, callers, mesh.FeatureConsistentHash)
		}
		if svc.PreferZone {
			j.reportLacking(f, fieldTrafficDistribution, callers, mesh.FeatureZonePreference)
		}
	}
}

// balancingOf returns what the UpstreamSetting of a service says of load balancing.
func (j *join) balancingOf(r *graph.Reader, svc *fact.Service) mesh.LoadBalancing {
	if settings := j.upstreamsOf.Get(r, svc.Name); len(settings) > 0 {
		setting, _ := j.upstreams.Get(r, settings[0].key)
		return setting.Policy.LoadBalancing
	}
	return mesh.LoadBalancing{}
}

func portsOf(svc *fact.Service) []mesh.ServicePort {
	ports := make([]mesh.ServicePort, len(svc.Ports))
	for i, spec := range svc.Ports {
		ports[i] = mesh.ServicePort{Name: svc.Name, Port: spec.Port}
	}
	return ports
}

func (j *join) checkUpstreamFeatures(r *graph.Reader, setting *fact.UpstreamSetting, f *fault) {
	if len(j.limitedClasses(r).List) == 0 {
		return
	}
	if svc := j.service(r, setting.Service()); svc != nil {
		if oldest, _ := j.upstreams.Get(r, j.upstreamsOf.Get(r, svc.Name)[0].key); oldest == setting {
			for _, port := range portsOf(svc) {
				j.askPolicy(f, setting.Policy, j.callers.Get(r, port))
			}
			j.askLimits(r, setting, svc, f)
		}
	}
	var sources []fact.ServiceAccount
	for _, key := range j.egressesUsing.Get(r, setting.Name) {
		rule, _ := j.egresses.Get(r, key)
		if !j.member(r, rule.Namespace) || !slices.ContainsFunc(rule.Hosts, func(h string) bool { return strings.EqualFold(h, setting.Host) }) {
			continue
		}
		for _, port := range rule.Ports {
			if port.Protocol == mesh.EgressTCP {
				continue
			}
			for _, source := range j.egressSources(r, rule, port) {
				if j.egressAsks(r, source, port.Number, setting) {
					sources = append(sources, source)
				}
			}
		}
	}
	if len(sources) > 0 {
		j.askPolicy(f, setting.Policy, j.limitedOf(r, sources))
	}
}

// egressAsks reports whether a source's egress asks for what the setting does. The host may
// have the policy of another setting, or no match at all.
func (j *join) egressAsks(r *graph.Reader, source fact.ServiceAccount, port uint16, setting *fact.UpstreamSetting) bool {
	for _, p := range j.egress.Get(r, source).Ports {
		for _, host := range p.Hosts {
			if p.Port == port && strings.EqualFold(host.Host, setting.Host) {
				return slices.Equal(host.Policy.Needs(), setting.Policy.Needs())
			}
		}
	}
	return false
}

// askLimits asks the servers of a service. The limits of a port are those of the first
// service that has any.
func (j *join) askLimits(r *graph.Reader, setting *fact.UpstreamSetting, svc *fact.Service, f *fault) {
	needs := setting.Limits.Needs()
	if len(needs) == 0 {
		return
	}
	servers := j.servers(r, svc.Name, func(p mesh.InboundPort) bool {
		i := slices.IndexFunc(p.Services, func(s mesh.ServicePort) bool { return !isZeroLimits(j.policies.Get(r, s.Name).Limits) })
		return i >= 0 && p.Services[i].Name == svc.Name
	})
	for _, feature := range needs {
		field := "spec.rateLimit.local.tcp"
		if feature == mesh.FeatureRequestRateLimits {
			if field = "spec.rateLimit.local.http"; setting.Limits.Requests == nil {
				field = "spec.httpRoutes"
			}
		}
		j.reportLacking(f, field, servers, feature)
	}
}

// policyFields are what asks for the features of an UpstreamPolicy.
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

func (j *join) askPolicy(f *fault, policy mesh.UpstreamPolicy, of *classes) {
	for _, feature := range policy.Needs() {
		j.reportLacking(f, policyFields[feature], of, feature)
	}
}

// retryFields are what asks for the features of a Retry.
var retryFields = map[mesh.Feature]string{
	mesh.FeatureRetries:      "spec.retryPolicy",
	mesh.FeatureTimeouts:     "spec.retryPolicy.perTryTimeout",
	mesh.FeatureRetryBackoff: "spec.retryPolicy.retryBackoffBaseInterval",
}

func (j *join) checkRetryFeatures(r *graph.Reader, rule *fact.RetryRule, f *fault) {
	if len(j.limitedClasses(r).List) == 0 || !j.mustSettings(r).RetryPolicy {
		return
	}
	of := j.limitedOf(r, []fact.ServiceAccount{rule.Source})
	for _, name := range rule.Destinations {
		svc := j.service(r, name)
		if svc == nil || j.retryFor(r, rule.Source, name) != rule || !j.mayCallHTTP(r, rule.Source, svc) {
			continue
		}
		for _, feature := range rule.Retry.Needs() {
			j.reportLacking(f, retryFields[feature], of, feature)
		}
		return
	}
}

// mayCallHTTP reports whether an account may call an HTTP port of a service.
func (j *join) mayCallHTTP(r *graph.Reader, source fact.ServiceAccount, svc *fact.Service) bool {
	return slices.ContainsFunc(svc.Ports, func(spec fact.PortSpec) bool {
		if !spec.Protocol.IsHTTP() {
			return false
		}
		of := j.audienceIn(r, mesh.ServicePort{Name: svc.Name, Port: spec.Port}, source.Namespace)
		routed := slices.ContainsFunc(j.destinations.Get(r, of).list, func(d *mesh.Destination) bool { return len(d.Routes) > 0 })
		return routed && (j.mustSettings(r).PermissivePolicy || slices.Contains(j.sourcesOf(r, of), source))
	})
}

func (j *join) checkAccessFeatures(r *graph.Reader, rule *fact.AccessRule, f *fault) {
	if len(j.limitedClasses(r).List) == 0 || !j.usesRules(r, rule.Destination) {
		return
	}
	of := j.limitedOf(r, []fact.ServiceAccount{rule.Destination})
	if rule.Audit && j.mustSettings(r).PermissivePolicy {
		j.reportLacking(f, fieldAccessMode, of, mesh.FeatureAudit)
	}
	if len(rule.Sources) == 0 {
		return
	}
	// Requests reach a proxy's configuration only if a port allows them.
	g, accepted := j.grant(r, rule), j.accepted.Of(rule.Destination).Get(r)
	allowed := slices.DeleteFunc(slices.Clone(of.List), func(at classAt) bool {
		for name, in := range accepted.All() {
			if name == acceptedName(at.Class, in) && slices.ContainsFunc(in.Ports, func(p mesh.InboundPort) bool { return p.Protocol.IsHTTP() && g.requests(p.Port, p.Protocol) != nil }) {
				return false
			}
		}
		return true
	})
	for i, routes := range rule.Rules {
		j.reportLacking(f, fmt.Sprintf("spec.rules[%d]", i), classesOf(allowed), needsOf(j.httpMatches(r, rule, routes))...)
	}
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

func (j *join) checkSplitFeatures(r *graph.Reader, split *fact.Split, f *fault) {
	if len(j.limitedClasses(r).List) == 0 {
		return
	}
	root := j.service(r, mesh.Name{Namespace: split.Namespace, Name: split.Root})
	if root == nil {
		return
	}
	for _, spec := range root.Ports {
		port := mesh.ServicePort{Name: root.Name, Port: spec.Port}
		if len(j.destinations.Get(r, audience{port: port}).list) == 0 || root.Headless || !slices.Contains(j.splitsInForce(r, root, spec.Protocol), split) {
			continue
		}
		var callers []classAt
		for _, of := range j.audiences(r, port) {
			if len(j.routesInForce(r, root, spec, of.namespace)) == 0 {
				callers = append(callers, j.limitedIn(r, of).List...)
			}
		}
		of := classesOf(callers)
		for i, group := range split.Matches {
			j.reportLacking(f, fmt.Sprintf("spec.matches[%d]", i), of, needsOf(j.matchesOf(r, split.Namespace, []string{group}))...)
		}
		for i, backend := range split.Backends {
			to, ok := j.splitPort(r, split, backend, port)
			if !ok || backend.Weight == 0 {
				continue
			}
			if list := j.backends.Get(r, to).list; len(list) > 0 && list[0].ExternalName != "" {
				j.reportLacking(f, fmt.Sprintf("spec.backends[%d].service", i), of, mesh.FeatureExternalNames)
			}
		}
	}
}

func (j *join) checkRouteFeatures(r *graph.Reader, route *fact.Route, f *fault) {
	if len(j.limitedClasses(r).List) == 0 {
		return
	}
	for _, parent := range route.Parents {
		svc := j.service(r, parent.Service)
		if svc == nil {
			continue
		}
		for _, port := range portsOf(svc) {
			if route.Kind == fact.TLSRoute {
				j.checkServerNames(r, route, port, f)
			}
			if !route.Kind.IsHTTP() {
				continue
			}
			of := j.routed(r, route, svc, port)
			for i := range route.Rules {
				made := j.routeOf(r, svc, route, &route.Rules[i], &destinations{})
				d := mesh.Destination{Protocol: mesh.HTTP}
				for _, match := range route.Rules[i].Matches {
					made.Match = match.HTTPMatch
					d.Routes = append(d.Routes, made)
				}
				j.reportLacking(f, fmt.Sprintf("spec.rules[%d]", i), of, d.Needs()...)
			}
		}
	}
}

// routed returns the classes, among the clients of a service port whose requests the route
// governs, that lack any feature.
func (j *join) routed(r *graph.Reader, route *fact.Route, svc *fact.Service, port mesh.ServicePort) *classes {
	var found []classAt
	spec, _ := portOf(svc, port.Port)
	for _, of := range j.audiences(r, port) {
		if len(j.destinations.Get(r, of).list) > 0 && slices.Contains(j.routesInForce(r, svc, spec, of.namespace), route) {
			found = append(found, j.limitedIn(r, of).List...)
		}
	}
	return classesOf(found)
}

// checkServerNames reports the callers of a service port whose proxies lack ServerNames, if
// the TLSRoute routes their connections.
func (j *join) checkServerNames(r *graph.Reader, route *fact.Route, port mesh.ServicePort, f *fault) {
	for _, of := range j.audiences(r, port) {
		for _, d := range j.destinations.Get(r, of).list {
			if slices.ContainsFunc(d.Servers, func(s mesh.ServerRoute) bool { return s.Origin.Name() == route.String() }) {
				j.reportLacking(f, "spec.hostnames", j.limitedIn(r, of), mesh.FeatureServerNames)
			}
		}
	}
}

// egressSources returns the sources of a rule for which the rule determines the port.
func (j *join) egressSources(r *graph.Reader, rule *fact.EgressRule, port fact.EgressPort) []fact.ServiceAccount {
	if !j.mustSettings(r).EgressPolicy {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(rule.Sources), func(source fact.ServiceAccount) bool {
		return !slices.ContainsFunc(j.egress.Get(r, source).Ports, func(p mesh.EgressRoutes) bool {
			return p.Port == port.Number && p.Protocol == port.Protocol
		})
	})
}

func (j *join) checkEgressFeatures(r *graph.Reader, rule *fact.EgressRule, f *fault) {
	if len(j.limitedClasses(r).List) == 0 {
		return
	}
	for i, port := range rule.Ports {
		of := j.limitedOf(r, j.egressSources(r, rule, port))
		if len(of.List) == 0 {
			continue
		}
		var lets mesh.EgressRoutes
		lets.Protocol = port.Protocol
		j.addEgress(r, &lets, rule)
		for _, feature := range lets.Needs() {
			switch feature {
			case mesh.FeatureEgressHTTP, mesh.FeatureEgressTLS, mesh.FeatureEgressTCP:
				j.reportLacking(f, fmt.Sprintf("spec.ports[%d]", i), of, feature)
			case mesh.FeatureHeaderMatches, mesh.FeatureQueryMatches:
				j.reportLacking(f, "spec.matches", of, feature)
			case mesh.FeatureIPv6:
				j.reportLacking(f, "spec.ipAddresses", of, feature)
			}
		}
	}
}

func (j *join) checkIngressFeatures(r *graph.Reader, rule *fact.IngressRule, f *fault) {
	if len(j.limitedClasses(r).List) == 0 {
		return
	}
	for i, backend := range rule.Backends {
		name := mesh.Name{Namespace: rule.Namespace, Name: backend.Service}
		// The rule has the same effect at all of the service's pods, except those whose
		// port it does not target.
		var made mesh.Ingress
		of := j.servers(r, name, func(p mesh.InboundPort) bool {
			k := slices.IndexFunc(p.Ingress, func(in mesh.Ingress) bool { return in.Origin.Name() == rule.String() && in.TLS == backend.TLS })
			if k >= 0 && p.Port == backend.Port {
				made = p.Ingress[k]
				return true
			}
			return false
		})
		if len(of.List) == 0 {
			continue
		}
		for _, feature := range made.Needs() {
			switch feature {
			case mesh.FeatureIngress, mesh.FeatureIngressTLS:
				j.reportLacking(f, fmt.Sprintf("spec.backends[%d]", i), of, feature)
			case mesh.FeatureHeaderMatches, mesh.FeatureQueryMatches:
				j.reportLacking(f, "spec.matches", of, feature)
			case mesh.FeatureIPv6:
				j.reportLacking(f, "spec.sources", of, feature)
			}
		}
	}
}
