package source

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	defaultZipkinPort = 9411
	defaultZipkinPath = "/api/v2/spans"
	// defaultOTLPPort is the port of OTLP over gRPC.
	defaultOTLPPort = 4317

	defaultAuthorizationTimeout = time.Second
	defaultAuthorizationPrefix  = "inboundExtAuthz"
	// unresolvable is a host name that never resolves (RFC 6761).
	unresolvable = "authorization.invalid"

	maxPort = math.MaxUint16
)

// settings returns the MeshConfig's part of the mesh model. The namespace is that of the
// MeshConfig. The feature flags have the defaults of Open Service Mesh 1.2's chart.
func (r *reader) settings(c *Config, namespace string) *mesh.Settings {
	traffic, flags := &r.spec.Traffic, &r.spec.FeatureFlags
	return &mesh.Settings{
		TrustDomain:      c.trustDomain,
		PermissivePolicy: isTrue(traffic.EnablePermissiveTrafficPolicyMode),
		InboundTLS:       cmp.Or(r.tlsMode("spec.traffic.inboundTLSMode", string(traffic.InboundTLSMode)), mesh.Strict),
		Egress:           traffic.EnableEgress,
		EgressPolicy:     !isFalse(flags.EnableEgressPolicy),
		IngressPolicy:    !isFalse(flags.EnableIngressBackendPolicy),
		RetryPolicy:      isTrue(flags.EnableRetryPolicy),
		ConnectTimeout:   r.connectTimeout(),
		PlaintextClasses: c.MTLSDisabledClasses(),
		ForwardedFor:     traffic.EnableForwardedFor,
		HealthChecks:     isTrue(flags.EnableEnvoyActiveHealthChecks) || isTrue(flags.EnableSidecarActiveHealthChecks),
		TLS:              r.tls(),
		AccessLog:        deref(r.accessLog("spec.observability.accessLog", r.spec.Observability.AccessLog), mesh.FullAccessLog()),
		Tracing:          r.tracing(namespace),
		Authorization:    r.authorization(),
	}
}

func (r *reader) connectTimeout() time.Duration {
	const path = "spec.traffic.connectTimeout"
	timeout := r.spec.Traffic.ConnectTimeout
	if isZero(timeout) {
		r.add(ReasonInvalid, path, "%q gives connections no time; the default is used", string(timeout))
	}
	return r.duration(path, timeout)
}

// tlsMode parses a mode: "" if it is not set, and Strict if it is invalid.
func (n *notes) tlsMode(path, mode string) mesh.TLSMode {
	switch mesh.TLSMode(mode) {
	case "", mesh.Strict, mesh.Permissive:
		return mesh.TLSMode(mode)
	}
	n.add(ReasonInvalid, path, "%q is not a mode, %s is used; use %s or %s", mode, mesh.Strict, mesh.Strict, mesh.Permissive)
	return mesh.Strict
}

func (r *reader) tls() mesh.TLS {
	sidecar := &r.spec.Sidecar
	tls := mesh.TLS{
		Min:     r.tlsVersion("spec.sidecar.tlsMinProtocolVersion", sidecar.TLSMinProtocolVersion, "1.2"),
		Max:     r.tlsVersion("spec.sidecar.tlsMaxProtocolVersion", sidecar.TLSMaxProtocolVersion, "1.3"),
		Ciphers: r.ciphers(),
		Curves:  r.curves(),
	}
	if tls.Min > tls.Max {
		r.add(ReasonInvalid, "spec.sidecar.tlsMinProtocolVersion",
			"the oldest version, TLS %s (1.3 if left out), is newer than tlsMaxProtocolVersion, TLS %s; TLS %s is used alone until tlsMinProtocolVersion is set to that or to an older one",
			tls.Min, tls.Max, tls.Min)
		tls.Max = tls.Min
	}
	return tls
}

// tlsVersion parses a version. Widest is the result for TLS_AUTO.
func (r *reader) tlsVersion(path string, version v1alpha2.TLSVersion, widest string) string {
	switch version {
	case "", v1alpha2.TLSv1_3:
		return "1.3"
	case v1alpha2.TLSv1_2:
		return "1.2"
	case v1alpha2.TLSAuto:
		return widest
	case v1alpha2.TLSv1_0, v1alpha2.TLSv1_1:
		r.add(ReasonInvalid, path, "sidecars don't support %s; TLSv1_2 is used; use TLSv1_2 or TLSv1_3", version)
		return "1.2"
	default:
		r.add(ReasonInvalid, path, "%q is not a TLS version, TLSv1_3 is used; use TLSv1_2, TLSv1_3 or TLS_AUTO", string(version))
		return "1.3"
	}
}

func (r *reader) ciphers() []string {
	known := []string{
		"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256",
		"ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384",
		"ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-RSA-CHACHA20-POLY1305",
		"ECDHE-ECDSA-AES128-SHA", "ECDHE-RSA-AES128-SHA", "ECDHE-ECDSA-AES256-SHA", "ECDHE-RSA-AES256-SHA",
		"AES128-GCM-SHA256", "AES256-GCM-SHA384", "AES128-SHA", "AES256-SHA",
	}
	// Envoy's own notation for ciphers of equal rank is [A|B].
	equals := func(c rune) bool { return c == '[' || c == '|' || c == ']' }
	var names []string
	for i, entry := range r.spec.Sidecar.CipherSuites {
		for _, name := range strings.FieldsFunc(entry, equals) {
			switch {
			case slices.Contains(names, name):
				r.add(ReasonDuplicate, fmt.Sprintf("spec.sidecar.cipherSuites[%d]", i), "%q stands there already; remove it", name)
			case slices.Contains(known, name):
				names = append(names, name)
			case strings.HasPrefix(name, "TLS_"):
				r.add(ReasonInvalid, fmt.Sprintf("spec.sidecar.cipherSuites[%d]", i), "%q is a cipher of TLS 1.3, whose ciphers can't be configured; remove it", name)
			default:
				r.add(ReasonInvalid, fmt.Sprintf("spec.sidecar.cipherSuites[%d]", i),
					"%q is not the OpenSSL name of a supported TLS 1.2 cipher, so it is ignored; use one of: %s", name, strings.Join(known, ", "))
			}
		}
	}
	return names
}

func (r *reader) curves() []string {
	known := []string{"X25519", "X25519MLKEM768", "P-256", "P-384", "P-521"}
	var names []string
	for i, name := range r.spec.Sidecar.ECDHCurves {
		path := fmt.Sprintf("spec.sidecar.ecdhCurves[%d]", i)
		switch {
		case slices.Contains(names, name):
			r.add(ReasonDuplicate, path, "%q stands there already; remove it", name)
		case slices.Contains(known, name):
			names = append(names, name)
		default:
			r.add(ReasonInvalid, path, "%q is not a supported curve, so it is ignored; use one of: %s", name, strings.Join(known, ", "))
		}
	}
	return names
}

// tracing returns nil if tracing is off or has no valid destination.
func (r *reader) tracing(namespace string) *mesh.Tracing {
	const path = "spec.observability.tracing"
	spec := &r.spec.Observability.Tracing
	if !spec.Enable {
		return nil
	}
	tracing := &mesh.Tracing{
		Protocol: "zipkin",
		Host:     cmp.Or(strings.ToLower(spec.Address), "jaeger."+cmp.Or(namespace, defaultNamespace)+".svc.cluster.local"),
		Port:     defaultZipkinPort,
		Path:     cmp.Or(spec.Endpoint, defaultZipkinPath),
		Sampled:  r.sampled(path+".sampledFraction", spec.SampledFraction),
	}
	switch spec.Protocol {
	case "", v1alpha2.TracingZipkin:
	case v1alpha2.TracingOTLP:
		tracing.Protocol, tracing.Port, tracing.Path = "otlp", defaultOTLPPort, ""
		if spec.Endpoint != "" {
			r.add(ReasonNoEffect, path+".endpoint", "%s", inertMessage("OTLP over gRPC has a fixed path; remove it"))
		}
	default:
		r.add(ReasonInvalid, path+".protocol", "%q is not a protocol for spans, %s is used; use %s or %s",
			string(spec.Protocol), v1alpha2.TracingZipkin, v1alpha2.TracingZipkin, v1alpha2.TracingOTLP)
	}
	if tracing.Path != "" && !isURLPath(tracing.Path) {
		r.add(ReasonInvalid, path+".endpoint", "%q is not the path of a URL, %s is used", tracing.Path, defaultZipkinPath)
		tracing.Path = defaultZipkinPath
	}
	if validPort(spec.Port) {
		tracing.Port = uint16(spec.Port)
	} else if spec.Port != 0 {
		r.add(ReasonInvalid, path+".port", "%d is not a port, %d is used; use 1 to %d", spec.Port, tracing.Port, maxPort)
	}
	if !isHost(tracing.Host) {
		r.add(ReasonInvalid, path+".address", "%q is neither a host name nor an IP address, so no spans are sent", spec.Address)
		return nil
	}
	return tracing
}

// sampled parses a share and returns millionths.
func (r *reader) sampled(path string, fraction *string) uint32 {
	const all = 1_000_000
	if fraction == nil || *fraction == "" {
		return all
	}
	share, err := strconv.ParseFloat(*fraction, 64)
	if err != nil || !(share >= 0 && share <= 1) {
		r.add(ReasonInvalid, path, `%q is not a number from 0 to 1, every request is traced; write a number such as "0.1"`, *fraction)
		return all
	}
	return uint32(math.Round(share * all))
}

// authorization returns nil if it is off. If the service's address is invalid, it is
// replaced by an unresolvable one, so that requests are denied unless failureModeAllow is
// set.
func (r *reader) authorization() *mesh.Authorization {
	const path = "spec.traffic.inboundExternalAuthorization"
	spec := &r.spec.Traffic.InboundExternalAuthorization
	timeout := r.duration(path+".timeout", spec.Timeout)
	if !spec.Enable {
		return nil
	}
	if isZero(spec.Timeout) {
		r.add(ReasonInvalid, path+".timeout", "%q gives the service no time to answer; %s is used", string(spec.Timeout), defaultAuthorizationTimeout)
	}
	authorization := &mesh.Authorization{
		Host:           strings.ToLower(spec.Address),
		Timeout:        cmp.Or(timeout, defaultAuthorizationTimeout),
		StatPrefix:     cmp.Or(spec.StatPrefix, defaultAuthorizationPrefix),
		AllowOnFailure: spec.FailureModeAllow,
	}
	if !isToken(authorization.StatPrefix) {
		r.add(ReasonInvalid, path+".statPrefix", "%q does not fit into the name of a metric, %s is used; use letters, digits and -._", spec.StatPrefix, defaultAuthorizationPrefix)
		authorization.StatPrefix = defaultAuthorizationPrefix
	}
	outcome := "every inbound request is denied"
	if spec.FailureModeAllow {
		outcome = "every inbound request passes because of failureModeAllow"
	}
	findable := isHost(authorization.Host)
	if !findable {
		r.add(ReasonInvalid, path+".address", "%q is neither a host name nor an IP address, so the service can't be called and %s; correct it, or turn enable off", spec.Address, outcome)
	}
	if !validPort(spec.Port) {
		findable = false
		r.add(ReasonInvalid, path+".port", "%d is not a port, so the service can't be called and %s; use 1 to %d, or turn enable off", spec.Port, outcome, maxPort)
	}
	if findable {
		authorization.Port = uint16(spec.Port)
	} else {
		authorization.Host, authorization.Port = unresolvable, 1
	}
	return authorization
}

// isHost reports whether a value is a DNS name or an IP address.
func isHost(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil || isDNSName(host)
}

func isURLPath(path string) bool {
	return strings.HasPrefix(path, "/") && !strings.ContainsFunc(path, func(c rune) bool { return c <= ' ' || c > '~' || c == '?' || c == '#' })
}
