package drivertest

import (
	"net/netip"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// variant is one way to require a feature, as changes of a plain draft.
type variant struct {
	feature mesh.Feature
	// name distinguishes the variants of a feature.
	name string
	// base is applied to all drafts of the variant, if set.
	base func(*draft)
	// asks makes the draft require the feature, and no other that base does not require.
	asks func(*draft)
	// ignored makes the draft that is equivalent if the proxy ignores the feature, and
	// closed the one that is equivalent if it denies what requires the feature; nil means
	// base.
	ignored, closed func(*draft)
	// always is set if a proxy may have the feature even if it is not required: only its
	// behaviour shows whether it does.
	always bool
	// unsafe is set if ignoring the feature allows more, or other destinations, than was
	// configured.
	unsafe bool
	// alone is set if asks cannot be combined with those of other variants.
	alone bool
}

// variants returns the ways to require features. FeatureWebSocket and FeatureOpenConnections
// have none, since no View requires them, nor has FeatureHTTP2Resets, which is required
// together with FeatureHTTP2.
func variants() []variant {
	return slices.Concat(protocolVariants(), matchVariants(), filterVariants(), policyVariants(), limitVariants(), auditVariants(), accessVariants(), tokenVariants(), edgeVariants(), settingsVariants())
}

func protocolVariants() []variant {
	return []variant{
		{
			feature: mesh.FeatureHTTP2, name: "called",
			asks: func(d *draft) {
				d.cart().destination.Protocol, d.cart().backend.Protocol = mesh.GRPC, mesh.GRPC
			},
			closed: func(d *draft) { d.without(d.cart()) },
		},
		{
			feature: mesh.FeatureHTTP2, name: "served",
			asks:   func(d *draft) { d.web().Protocol = mesh.GRPC },
			closed: func(d *draft) { d.web().Access = mesh.Access{} },
		},
		{
			feature: mesh.FeatureServerFirst, name: "called", always: true,
			asks: func(d *draft) {
				d.db().destination.Protocol, d.db().backend.Protocol = mesh.TCPServerFirst, mesh.TCPServerFirst
			},
			closed: func(d *draft) { d.without(d.db()) },
		},
		{
			feature: mesh.FeatureServerFirst, name: "served", always: true,
			asks:   func(d *draft) { d.sql().Protocol = mesh.TCPServerFirst },
			closed: func(d *draft) { d.sql().Access = mesh.Access{} },
		},
		{
			feature: mesh.FeatureIPv6, name: "called",
			asks: func(d *draft) {
				to := d.cart().destination
				to.Addresses = append(to.Addresses, netip.MustParseAddr("fd00:96::2"))
			},
		},
		{
			feature: mesh.FeatureIPv6, name: "endpoint",
			asks: func(d *draft) {
				to := d.cart().backend
				to.Endpoints = append(to.Endpoints, endpoint("cart-3", "fd00:244::13", "zone-a"))
			},
		},
		{
			feature: mesh.FeatureIPv6, name: "own address",
			asks: func(d *draft) {
				d.proxy.Addresses = append(d.proxy.Addresses, netip.MustParseAddr("fd00:244::5"))
			},
		},
		{
			feature: mesh.FeatureExternalNames,
			asks:    func(d *draft) { splitCart(d, mesh.Backend{ExternalName: "www.example.com"}) },
			closed:  func(d *draft) { splitCart(d, mesh.Backend{}) },
		},
		{
			feature: mesh.FeaturePermissiveTLS, base: open, alone: true,
			asks: func(d *draft) { d.inbound.TLS = mesh.Permissive },
		},
		{
			feature: mesh.FeaturePlaintextMesh, alone: true,
			asks: func(d *draft) { d.proxy.Plaintext, d.inbound.TLS = true, mesh.Permissive },
		},
	}
}

// open allows all peers of the mesh.
func open(d *draft) {
	d.web().Access, d.sql().Access = mesh.Access{Anyone: true}, mesh.Access{Anyone: true}
}

// splitCart routes a share of the requests for shop/cart to a Backend shop/far.
func splitCart(d *draft, far mesh.Backend) {
	far.Service, far.Protocol = servicePort("far", 80), mesh.HTTP
	far.Name = far.Service.String()
	d.backends = append(d.backends, &far)
	last := len(d.cart().destination.Routes) - 1
	route := &d.cart().destination.Routes[last]
	route.Origin = Origin("HTTPRoute", "shop/far")
	route.Backends = append(slices.Clip(route.Backends), mesh.WeightedBackend{Backend: far.Name, Weight: 3})
}

func matchVariants() []variant {
	header := mesh.HTTPMatch{Headers: []mesh.KeyMatch{{Name: "x-version", StringMatch: mesh.StringMatch{Exact: "2"}}}}
	query := mesh.HTTPMatch{Query: []mesh.KeyMatch{{Name: "version", StringMatch: mesh.StringMatch{Exact: "2"}}}}
	var made []variant
	for feature, match := range map[mesh.Feature]mesh.HTTPMatch{mesh.FeatureHeaderMatches: header, mesh.FeatureQueryMatches: query} {
		rule := func(requests ...mesh.HTTPMatch) func(*draft) {
			return func(d *draft) {
				d.web().Access.Rules = append(d.web().Access.Rules, d.web().Access.Rules[0])
				last(d).Requests = requests
			}
		}
		route := func(match mesh.HTTPMatch) func(*draft) {
			return func(d *draft) {
				d.cart().destination.Routes = slices.Insert(d.cart().destination.Routes, 0, mesh.Route{
					Origin: Origin("HTTPRoute", "shop/other"), Match: match, Backends: []mesh.WeightedBackend{{Backend: servicePort("rare", 80).String(), Weight: 1}},
				})
			}
		}
		made = append(made,
			variant{feature: feature, name: "allowed", asks: rule(match), ignored: rule(mesh.HTTPMatch{}), closed: nil, unsafe: true},
			variant{feature: feature, name: "routed", asks: route(match), ignored: route(mesh.HTTPMatch{}), closed: nil, unsafe: true},
		)
	}
	slices.SortStableFunc(made, func(a, b variant) int {
		return slices.Index(mesh.Features(), a.feature) - slices.Index(mesh.Features(), b.feature)
	})
	return made
}

// last returns the last rule of the HTTP port.
func last(d *draft) *mesh.Permission {
	rules := d.web().Access.Rules
	return &rules[len(rules)-1]
}

func filterVariants() []variant {
	route := func(change func(*mesh.Route)) func(*draft) {
		return func(d *draft) {
			r := mesh.Route{
				Origin: Origin("HTTPRoute", "shop/filtered"), Match: mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: "/filtered"}},
				Backends: []mesh.WeightedBackend{{Backend: servicePort("rare", 80).String(), Weight: 1}},
			}
			change(&r)
			d.cart().destination.Routes = slices.Insert(d.cart().destination.Routes, 0, r)
		}
	}
	plain := route(func(*mesh.Route) {})
	// A route without backends answers 503.
	closed := route(func(r *mesh.Route) { r.Backends = nil })
	header := []mesh.Header{{Name: "x-filter", Value: "50% 'off'"}}
	return []variant{
		{
			feature: mesh.FeatureHeaderChanges, name: "of requests",
			asks: route(func(r *mesh.Route) {
				r.Backends[0].Request = mesh.HeaderChanges{Set: header, Remove: []string{"x-other"}}
			}),
			ignored: plain, closed: closed, unsafe: true,
		},
		{
			feature: mesh.FeatureHeaderChanges, name: "of responses",
			asks:    route(func(r *mesh.Route) { r.Backends[0].Response = mesh.HeaderChanges{Add: header} }),
			ignored: plain, closed: closed,
		},
		{
			feature: mesh.FeatureRewrites, name: "of hosts",
			asks:    route(func(r *mesh.Route) { r.Rewrite = &mesh.Rewrite{Host: "example.com"} }),
			ignored: plain, closed: closed, unsafe: true,
		},
		{
			feature: mesh.FeatureRewrites, name: "of paths",
			asks:    route(func(r *mesh.Route) { r.Rewrite = &mesh.Rewrite{Path: mesh.PathChange{Prefix: "/other"}} }),
			ignored: plain, closed: closed, unsafe: true,
		},
		{
			feature: mesh.FeatureRedirects, name: "to a host",
			asks: route(func(r *mesh.Route) {
				r.Backends, r.Redirect = nil, &mesh.Redirect{Host: "example.com", Status: 302}
			}),
			ignored: closed, closed: closed,
		},
		{
			feature: mesh.FeatureCORS,
			asks: route(func(r *mesh.Route) {
				r.CORS = &mesh.CORS{Origin: mesh.StringMatch{Exact: "https://example.com"}, Methods: "*", Headers: "x-a", Expose: "x-b", Credentials: true, MaxAge: 5}
			}),
			ignored: plain, closed: closed,
		},
		{
			feature: mesh.FeatureMirrors,
			asks: route(func(r *mesh.Route) {
				r.Mirrors = []mesh.Mirror{{Backend: servicePort("cart", 80).String(), Numerator: 1, Denominator: 3}}
			}),
			ignored: plain, closed: closed,
		},
		{
			feature: mesh.FeatureSessionPersistence, name: "by cookie",
			asks: route(func(r *mesh.Route) {
				r.Session = &mesh.Session{Rule: "HTTPRoute shop/filtered/0", Cookie: "session", Path: "/filtered", Lifetime: time.Hour, Permanent: true}
			}),
			ignored: plain, closed: closed,
		},
		{
			feature: mesh.FeatureSessionPersistence, name: "by header",
			asks: route(func(r *mesh.Route) {
				r.Backends = append(r.Backends, mesh.WeightedBackend{Backend: servicePort("cart", 80).String()})
				r.Session = &mesh.Session{Rule: "HTTPRoute shop/filtered/0", Header: "x-session"}
			}),
			ignored: plain, closed: closed,
		},
		{
			feature: mesh.FeatureServerNames,
			asks: func(d *draft) {
				db := d.db().destination
				db.Servers, db.Backends = []mesh.ServerRoute{{Origin: Origin("TLSRoute", "shop/db"), Host: "*.example.com", Backends: db.Backends}}, nil
			},
			closed: func(d *draft) { d.db().destination.Backends = nil },
			unsafe: true,
		},
		{
			feature: mesh.FeatureGateways, base: atGateway, alone: true,
			asks: atOpenGateway,
		},
		{
			feature: mesh.FeatureTermination, base: atOpenGateway, alone: true,
			asks: func(d *draft) {
				atOpenGateway(d)
				port := cartPort(8443)
				name := mesh.Name{Namespace: "edge", Name: "cart"}
				port.Certificates = []mesh.ServerCertificate{
					{Host: "cart.example.com", Listener: "cart.example.com", Name: name, Digest: mesh.DigestOf("cart")},
					{Host: mesh.AnyHost, Listener: mesh.AnyHost, Name: name, Digest: mesh.DigestOf("cart")},
				}
				d.destinations = append(d.destinations, port)
			},
			ignored: func(d *draft) {
				atOpenGateway(d)
				d.destinations = append(d.destinations, cartPort(8443))
			},
			unsafe: true,
		},
	}
}

// atGateway makes the proxy that of a gateway without ports.
func atGateway(d *draft) {
	d.proxy.Gateway, d.inbound.Ports, d.destinations = true, nil, nil
}

// atOpenGateway makes the proxy that of a gateway with a port.
func atOpenGateway(d *draft) {
	atGateway(d)
	d.destinations = []*mesh.Destination{cartPort(8080)}
}

// cartPort returns a port of a gateway with a route to the cart.
func cartPort(number uint16) *mesh.Destination {
	port := gatewayPort(number, "cart.example.com", mesh.AnyHost)
	to := []mesh.WeightedBackend{{Backend: servicePort("cart", 80).String(), Weight: 1}}
	port.Routes = []mesh.Route{{Origin: Origin("HTTPRoute", "shop/cart"), Host: "cart.example.com", Backends: to}}
	return port
}

func policyVariants() []variant {
	policy := func(feature mesh.Feature, name string, change func(*mesh.UpstreamPolicy)) variant {
		return variant{feature: feature, name: name, asks: func(d *draft) { change(&d.cart().backend.Policy) }}
	}
	hashed := func(name mesh.LoadBalancingPolicy) variant {
		return variant{feature: mesh.FeatureConsistentHash, name: string(name), alone: true, asks: func(d *draft) {
			on := []mesh.HashOn{{Header: "x-user"}, {SourceIP: true}}
			d.cart().backend.Policy.LoadBalancing = mesh.LoadBalancing{Policy: name, HashOn: on}
			d.cart().destination.HashOn = on
		}}
	}
	retried := func(feature mesh.Feature, change func(*mesh.Retry)) variant {
		with := func(change func(*mesh.Retry)) func(*draft) {
			return func(d *draft) {
				retry := mesh.Retry{On: []string{"5xx", "connect-failure"}, Attempts: 3}
				if former := d.cart().destination.Routes[0].Retry; former != nil {
					retry = *former
				}
				change(&retry)
				d.cart().destination.Routes[0].Retry = &retry
			}
		}
		return variant{feature: feature, base: with(func(*mesh.Retry) {}), asks: with(change)}
	}
	balanced := func(feature mesh.Feature, name mesh.LoadBalancingPolicy) variant {
		v := policy(feature, "", func(p *mesh.UpstreamPolicy) { p.LoadBalancing.Policy = name })
		v.alone = feature != mesh.FeatureLeastRequest
		return v
	}
	return []variant{
		{feature: mesh.FeatureRetries, asks: func(d *draft) {
			d.cart().destination.Routes[0].Retry = &mesh.Retry{On: []string{"5xx", "connect-failure"}, Attempts: 3}
		}},
		retried(mesh.FeatureRetryCodes, func(r *mesh.Retry) { r.Codes = []uint16{429, 503} }),
		retried(mesh.FeatureRetryBackoff, func(r *mesh.Retry) { r.Backoff = 25 * time.Millisecond }),
		{feature: mesh.FeatureTimeouts, asks: func(d *draft) {
			d.cart().destination.Routes[0].Timeout, d.cart().backend.Policy.RequestTimeout = 7*time.Second, 7*time.Second
		}},
		policy(mesh.FeatureConnectTimeouts, "", func(p *mesh.UpstreamPolicy) { p.ConnectTimeout = 3 * time.Second }),
		policy(mesh.FeatureIdleTimeouts, "", func(p *mesh.UpstreamPolicy) { p.IdleTimeout = 90 * time.Second }),
		policy(mesh.FeatureConnectionLimits, "", func(p *mesh.UpstreamPolicy) { p.MaxConnections = new(uint32(17)) }),
		policy(mesh.FeatureRequestLimits, "", func(p *mesh.UpstreamPolicy) {
			p.MaxRequests, p.MaxPendingRequests, p.MaxRetries = new(uint32(19)), new(uint32(23)), new(uint32(2))
		}),
		policy(mesh.FeatureRequestsPerConnection, "", func(p *mesh.UpstreamPolicy) { p.RequestsPerConnection = 29 }),
		policy(mesh.FeatureOutlierEjection, "", func(p *mesh.UpstreamPolicy) {
			p.Ejection = &mesh.Ejection{ConsecutiveErrors: 4, Interval: 5 * time.Second, BaseTime: 20 * time.Second, MaxPercent: 50}
		}),
		{feature: mesh.FeatureHealthChecks, asks: func(d *draft) {
			d.settings.HealthChecks = true
			for _, b := range d.backends {
				b.HealthChecks = true
			}
		}},
		balanced(mesh.FeatureLeastRequest, mesh.LeastRequest),
		balanced(mesh.FeatureRandomEndpoint, mesh.Random),
		hashed(mesh.RingHash),
		hashed(mesh.Maglev),
		policy(mesh.FeatureZonePreference, "", func(p *mesh.UpstreamPolicy) { p.LoadBalancing.PreferZone = true }),
	}
}

func limitVariants() []variant {
	bucket := mesh.TokenBucket{Tokens: 31, Burst: 5, Interval: time.Second}
	return []variant{
		{feature: mesh.FeatureConnectionRateLimits, asks: func(d *draft) { d.sql().Limits.Connections = &bucket }},
		{feature: mesh.FeatureProxyProtocol, name: "TCP", asks: func(d *draft) { d.sql().ProxyProtocol = true }},
		{feature: mesh.FeatureProxyProtocol, name: "HTTP", asks: func(d *draft) { d.web().ProxyProtocol = true }},
		{feature: mesh.FeatureRequestRateLimits, name: "all requests", asks: func(d *draft) {
			d.web().Limits.Requests = &mesh.RequestLimit{TokenBucket: bucket, Status: 503, AddHeaders: []mesh.Header{{Name: "retry-after", Value: "1"}}}
		}},
		{feature: mesh.FeatureRequestRateLimits, name: "by path", asks: func(d *draft) {
			d.web().Limits.Routes = []mesh.RouteLimit{{Path: "/books/rare/.*", Limit: mesh.RequestLimit{TokenBucket: bucket}}}
		}},
	}
}

func auditVariants() []variant {
	rules := plain().web().Access.Rules
	return []variant{{
		feature: mesh.FeatureAudit, base: open,
		asks: func(d *draft) { d.web().Access.Audit, d.web().Access.Rules = true, rules },
	}}
}

// accessVariants deny and except somebody, for requests and for connections.
func accessVariants() []variant {
	shop := mesh.Identity{TrustDomain: trustDomain, Namespace: "shop"}
	denials := []mesh.Denial{{Origin: Origin("AccessPolicy", "shop/none"), Sources: []mesh.Identity{shop}, Requests: []mesh.HTTPMatch{{}}}}
	except := func(rules []mesh.Permission) []mesh.Permission {
		excepted := slices.Clone(rules)
		excepted[0].Except = []mesh.Identity{shop}
		return excepted
	}
	return []variant{
		{
			feature: mesh.FeatureAccessPolicies, name: "deny requests", unsafe: true,
			asks: func(d *draft) { d.web().Access.Denials = denials }, ignored: func(*draft) {},
		},
		{
			feature: mesh.FeatureAccessPolicies, name: "deny connections", unsafe: true,
			asks: func(d *draft) { d.sql().Access.Denials = denials }, ignored: func(*draft) {},
		},
		{
			feature: mesh.FeatureAccessPolicies, name: "except from requests", unsafe: true,
			asks: func(d *draft) { d.web().Access.Rules = except(d.web().Access.Rules) }, ignored: func(*draft) {},
		},
		{
			feature: mesh.FeatureAccessPolicies, name: "except from connections", unsafe: true,
			asks: func(d *draft) { d.sql().Access.Rules = except(d.sql().Access.Rules) }, ignored: func(*draft) {},
		},
	}
}

// tokenVariants allow and deny by tokens, and have keys of each kind.
func tokenVariants() []variant {
	caller := []mesh.Identity{{TrustDomain: trustDomain, Namespace: "shop", ServiceAccount: "front.end"}}
	staff := mesh.HTTPMatch{Token: &mesh.TokenMatch{Audiences: []string{"shop"}, Claims: []mesh.ClaimMatch{{Path: []string{"groups"}, Values: []string{"staff"}}}}}
	with := func(algorithms ...mesh.TokenAlgorithm) func(*draft) {
		issuer := mesh.TokenIssuer{Origin: Origin("TokenPolicy", "shop/login"), Issuer: "https://login.example.com"}
		for _, algorithm := range algorithms {
			issuer.Keys = append(issuer.Keys, mesh.TokenKey{ID: "1", Algorithm: algorithm, Public: fixedKey(algorithm)})
		}
		return func(d *draft) { d.inbound.Issuers = []mesh.TokenIssuer{issuer} }
	}
	allowed := func(match mesh.HTTPMatch) func(*draft) {
		return func(d *draft) {
			d.web().Access.Rules = append(d.web().Access.Rules, mesh.Permission{Origin: Origin("AccessPolicy", "shop/staff"), Sources: caller, Requests: []mesh.HTTPMatch{match}})
			if match.Token != nil {
				with(mesh.TokenES256)(d)
			}
		}
	}
	denied := func(match mesh.HTTPMatch) func(*draft) {
		return func(d *draft) {
			d.web().Access.Denials = append(d.web().Access.Denials, mesh.Denial{Origin: Origin("AccessPolicy", "shop/none"), Everyone: true, Requests: []mesh.HTTPMatch{match}})
			if match.Token != nil {
				with(mesh.TokenES256)(d)
			}
		}
	}
	return []variant{
		{feature: mesh.FeatureTokens, name: "allowed", asks: allowed(staff), ignored: allowed(mesh.HTTPMatch{}), unsafe: true},
		{
			feature: mesh.FeatureTokens, name: "denied", base: denied(mesh.HTTPMatch{Methods: []string{"PUT"}}),
			asks: denied(staff), closed: denied(mesh.HTTPMatch{}), unsafe: true,
		},
		{feature: mesh.FeatureTokensPSS, base: allowed(staff), asks: with(mesh.TokenES256, mesh.TokenPS256)},
		{feature: mesh.FeatureTokensEdDSA, base: allowed(staff), asks: with(mesh.TokenES256, mesh.TokenEdDSA), alone: true},
	}
}

func edgeVariants() []variant {
	ranges := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	anywhere := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	in := func(in mesh.Ingress) func(*draft) {
		in.Origin, in.Ranges, in.Requests = Origin("IngressBackend", "shop/gate"), ranges, []mesh.HTTPMatch{{}}
		return func(d *draft) { d.web().Ingress = append(d.web().Ingress, in) }
	}
	out := func(routes ...mesh.EgressRoutes) func(*draft) {
		return func(d *draft) { d.egress.Ports = append(d.egress.Ports, routes...) }
	}
	hosts := []mesh.EgressHost{{Host: "*.example.com", Matches: []mesh.HTTPMatch{{}}}, {Host: "example.com", Matches: []mesh.HTTPMatch{{}}}}
	anyone := mesh.Ingress{TLS: true, SkipClientCert: true}
	return []variant{
		{feature: mesh.FeatureIngress, asks: in(mesh.Ingress{})},
		{feature: mesh.FeatureIngressTLS, name: "with a certificate", alone: true, asks: in(mesh.Ingress{TLS: true, SNIHosts: []string{"shop.example.com"}, AnyPrincipal: true}), ignored: in(mesh.Ingress{}), unsafe: true},
		{feature: mesh.FeatureIngressTLS, name: "without a certificate", alone: true, asks: in(anyone), ignored: in(mesh.Ingress{}), unsafe: true},
		{feature: mesh.FeatureEgressHTTP, asks: out(mesh.EgressRoutes{Port: 80, Protocol: mesh.EgressHTTP, Hosts: hosts}),
			ignored: out(mesh.EgressRoutes{Port: 80, Protocol: mesh.EgressTCP, Ranges: anywhere}), unsafe: true},
		{feature: mesh.FeatureEgressTLS, asks: out(mesh.EgressRoutes{Port: 443, Protocol: mesh.EgressTLS, Hosts: hosts}),
			ignored: out(mesh.EgressRoutes{Port: 443, Protocol: mesh.EgressTCP, Ranges: anywhere}), unsafe: true},
		{feature: mesh.FeatureEgressTCP, name: "to addresses", asks: out(mesh.EgressRoutes{Port: 3306, Protocol: mesh.EgressTCP, Ranges: ranges})},
		// Without it, calls of unknown destinations are calls out of the mesh.
		{feature: mesh.FeatureOnDemand, asks: func(d *draft) { d.unknown = ranges }},
		{feature: mesh.FeatureEgressTCP, name: "to all", alone: true, asks: func(d *draft) { d.egress.AllowAll = true }},
	}
}

func settingsVariants() []variant {
	tracing := func(feature mesh.Feature, t mesh.Tracing) variant {
		t.Host, t.Sampled = "collector.example.com", 500_000
		return variant{feature: feature, alone: feature == mesh.FeatureOTLPTracing, asks: func(d *draft) { d.settings.Tracing = &t }}
	}
	return []variant{
		{feature: mesh.FeatureTLSSettings, asks: func(d *draft) {
			d.settings.TLS = mesh.TLS{Min: "1.2", Max: "1.3", Ciphers: []string{"ECDHE-ECDSA-AES256-GCM-SHA384"}}
		}},
		{feature: mesh.FeatureTLSCurves, asks: func(d *draft) { d.settings.TLS.Curves = []string{"P-256"} }},
		{
			feature: mesh.FeatureExternalAuthorization, unsafe: true,
			asks: func(d *draft) {
				d.settings.Authorization = &mesh.Authorization{Host: "authorization.example.com", Port: 9191, Timeout: time.Second, StatPrefix: "authorization"}
			},
			closed: func(d *draft) { d.web().Access = mesh.Access{} },
		},
		{feature: mesh.FeatureForwardedFor, asks: func(d *draft) { d.settings.ForwardedFor = true }},
		{feature: mesh.FeatureAccessLogs, asks: func(d *draft) { d.settings.AccessLog = mesh.FullAccessLog() }},
		{feature: mesh.FeatureAccessLogSampling, base: func(d *draft) { d.settings.AccessLog = mesh.FullAccessLog() }, asks: func(d *draft) { d.settings.AccessLog = mesh.AccessLog{Enabled: true, Sampled: 250_000} }},
		tracing(mesh.FeatureZipkinTracing, mesh.Tracing{Protocol: "zipkin", Port: 9411, Path: "/api/v2/spans"}),
		tracing(mesh.FeatureOTLPTracing, mesh.Tracing{Protocol: "otlp", Port: 4317}),
	}
}
