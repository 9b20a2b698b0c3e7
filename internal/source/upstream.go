package source

import (
	"cmp"
	"math"
	"strings"
	"time"

	policy "github.com/outrigger-mesh/outrigger/apis/policy/v1alpha1"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	// The API's defaults of OutlierDetection.
	defaultEjectionErrors   = 5
	defaultEjectionInterval = 10 * time.Second
	defaultEjectionTime     = 30 * time.Second
	defaultEjectionPercent  = 10

	// unlimited replaces 0 where 0 would mean the proxy's default: 68 years, the maximum
	// of all proxies' timers.
	unlimited = math.MaxInt32 * time.Second
)

// upstreamSetting returns nil if the host is invalid. Other invalid values don't affect
// the rest: a setting can only limit traffic, never allow it.
func upstreamSetting(obj *policy.UpstreamTrafficSetting, n *notes) mesh.Digester {
	spec := &obj.Spec
	host, ok := n.upstreamHost("spec.host", strings.ToLower(spec.Host))
	setting := &fact.UpstreamSetting{
		Name:   nameOf(&obj.ObjectMeta),
		Age:    ageOf(&obj.ObjectMeta),
		Host:   host,
		Limits: n.rateLimits(spec),
	}
	n.connections(&setting.Policy, spec.ConnectionSettings)
	n.timeouts(&setting.Policy, spec.Timeouts)
	if spec.OutlierDetection != nil {
		setting.Policy.Ejection = n.ejection("spec.outlierDetection", spec.OutlierDetection)
	}
	if spec.LoadBalancing != nil {
		setting.Policy.LoadBalancing = n.loadBalancing("spec.loadBalancing", spec.LoadBalancing)
	}
	if !ok {
		return nil
	}
	return mesh.Seal(setting)
}

// upstreamHost parses the name of a service or of an egress host, in lower case. The
// catalog checks whether the object may configure it.
func (n *notes) upstreamHost(path, host string) (string, bool) {
	if !isDNSName(strings.TrimPrefix(host, "*.")) {
		n.add(ReasonInvalid, path, "%q is not a host, so the setting is ignored; write the name of a service, its DNS name in the cluster, or a host of an Egress", host)
		return "", false
	}
	return host, true
}

func (n *notes) connections(p *mesh.UpstreamPolicy, declared *policy.ConnectionSettings) {
	const path = "spec.connectionSettings"
	if declared == nil {
		return
	}
	if tcp := declared.TCP; tcp != nil {
		p.MaxConnections = n.limit(path+".tcp.maxConnections", tcp.MaxConnections)
		p.ConnectTimeout = n.duration(path+".tcp.connectTimeout", deref(tcp.ConnectTimeout, ""))
	}
	http := declared.HTTP
	if http == nil {
		return
	}
	p.MaxRequests = n.limit(path+".http.maxRequests", http.MaxRequests)
	p.MaxPendingRequests = n.limit(path+".http.maxPendingRequests", http.MaxPendingRequests)
	p.MaxRetries = n.limit(path+".http.maxRetries", http.MaxRetries)
	// As in Open Service Mesh, 0 means no limit here.
	if requests := http.MaxRequestsPerConnection; requests != nil && *requests != 0 {
		p.RequestsPerConnection = deref(n.limit(path+".http.maxRequestsPerConnection", requests), 0)
	}
	if p.Refuses(mesh.HTTP) {
		n.add(mesh.ReasonAdvice, path, "a limit of 0 blocks all requests with a 503; use 1 or more, or remove the field for no limit")
	}
	if http.CircuitBreaking != nil {
		n.add(ReasonNotSupported, path+".http.circuitBreaking", "Outrigger does not block requests by the rate of slow or failed ones; use outlierDetection, which ejects failing endpoints")
	}
}

// limit returns nil for no limit. As in Open Service Mesh, 0 is a limit.
func (n *notes) limit(path string, number *int64) *uint32 {
	switch {
	case number == nil:
		return nil
	case *number < 0 || *number > math.MaxUint32:
		n.add(ReasonInvalid, path, "%d is not a valid limit, so there is none; use 0 to %d, or remove the field", *number, uint32(math.MaxUint32))
		return nil
	}
	limit := uint32(*number)
	return &limit
}

func (n *notes) timeouts(p *mesh.UpstreamPolicy, declared *policy.Timeouts) {
	if declared == nil {
		return
	}
	p.RequestTimeout = n.duration("spec.timeouts.request", declared.Request)
	p.IdleTimeout = n.duration("spec.timeouts.idle", declared.Idle)
	if isZero(declared.Idle) {
		p.IdleTimeout = unlimited
	}
}

func (n *notes) ejection(path string, declared *policy.OutlierDetection) *mesh.Ejection {
	e := &mesh.Ejection{
		ConsecutiveErrors: defaultEjectionErrors,
		Interval:          cmp.Or(n.duration(path+".interval", declared.Interval), defaultEjectionInterval),
		BaseTime:          cmp.Or(n.duration(path+".baseEjectionTime", declared.BaseEjectionTime), defaultEjectionTime),
		MaxPercent:        defaultEjectionPercent,
	}
	if errors := declared.ConsecutiveErrors; errors < 0 {
		n.add(ReasonInvalid, path+".consecutiveErrors", "%d is not a number of errors, %d is used; use 1 or more", errors, defaultEjectionErrors)
	} else if errors > 0 {
		e.ConsecutiveErrors = uint32(errors)
	}
	if percent := declared.MaxEjectionPercent; percent < 0 || percent > 100 {
		n.add(ReasonInvalid, path+".maxEjectionPercent", "%d is not a percentage, %d is used; use 1 to 100", percent, defaultEjectionPercent)
	} else if percent > 0 {
		e.MaxPercent = uint32(percent)
	}
	return e
}

func (n *notes) loadBalancing(path string, declared *policy.LoadBalancing) mesh.LoadBalancing {
	lb := mesh.LoadBalancing{PreferZone: declared.ZoneAware, HashOn: n.hashOn(path+".hashOn", declared.HashOn)}
	switch declared.Policy {
	case "":
		if len(lb.HashOn) > 0 {
			lb.Policy = mesh.RingHash
		}
	case policy.LoadBalancingRoundRobin, policy.LoadBalancingLeastRequest, policy.LoadBalancingRandom:
		lb.Policy = mesh.LoadBalancingPolicy(declared.Policy)
		if len(declared.HashOn) > 0 {
			n.add(ReasonInvalid, path+".hashOn", "%s does not hash, so hashOn is ignored; use the policy %s or %s, or remove hashOn",
				declared.Policy, policy.LoadBalancingRingHash, policy.LoadBalancingMaglev)
			lb.HashOn = nil
		}
	case policy.LoadBalancingRingHash, policy.LoadBalancingMaglev:
		if len(lb.HashOn) == 0 {
			n.add(ReasonMissing, path+".hashOn", "%s has nothing to hash, so RoundRobin is used; set what requests to the same endpoint have in common", declared.Policy)
			break
		}
		lb.Policy = mesh.LoadBalancingPolicy(declared.Policy)
	default:
		n.add(ReasonInvalid, path+".policy", "%q is not a load balancing policy, so RoundRobin is used; use RoundRobin, LeastRequest, Random, RingHash or Maglev", string(declared.Policy))
		lb.HashOn = nil
	}
	return lb
}

func (n *notes) hashOn(path string, declared []policy.HashOn) []mesh.HashOn {
	var list []mesh.HashOn
	for i, d := range declared {
		path := index(path, i)
		given := 0
		for _, set := range []bool{d.Header != "", d.Cookie != nil, d.SourceIP} {
			if set {
				given++
			}
		}
		if given != 1 {
			n.add(ReasonInvalid, path, "%d of header, cookie and sourceIP are set, so the entry is ignored; set exactly one", given)
			continue
		}
		on := mesh.HashOn{Header: strings.ToLower(d.Header), SourceIP: d.SourceIP}
		if d.Header != "" && !isHeaderName(d.Header) {
			n.add(ReasonInvalid, path+".header", "%q is not the name of a header, so the entry is ignored", d.Header)
			continue
		}
		if d.Cookie != nil {
			if !isHeaderName(d.Cookie.Name) {
				n.add(ReasonInvalid, path+".cookie.name", "%q is not the name of a cookie, so the entry is ignored", d.Cookie.Name)
				continue
			}
			on.Cookie, on.CookieTTL = d.Cookie.Name, n.duration(path+".cookie.ttl", d.Cookie.TTL)
		}
		list = append(list, on)
	}
	return list
}
