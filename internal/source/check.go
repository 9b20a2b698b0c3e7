package source

import (
	"cmp"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
)

// The API server rejects most of these errors by schema, but a MeshConfig read from a
// file has not been validated.

func (r *reader) sidecarLogLevel() string {
	levels := []string{"trace", "debug", "info", "warning", "error", "critical", "off"}
	level := cmp.Or(r.spec.Sidecar.LogLevel, defaultLogLevel)
	if level == "warn" {
		level = "warning"
	}
	if !slices.Contains(levels, level) {
		r.add(ReasonInvalid, "spec.sidecar.logLevel", "%q is not a log level, %s is used; use one of: %s",
			level, defaultLogLevel, strings.Join(levels, ", "))
		return defaultLogLevel
	}
	return level
}

func (r *reader) ownLogLevel() slog.Level {
	switch level := r.spec.Observability.OSMLogLevel; strings.ToLower(level) {
	case "trace":
		return slog.LevelDebug - 4
	case "debug":
		return slog.LevelDebug
	case "", "info":
		return slog.LevelInfo
	case "warn", "warning":
		return slog.LevelWarn
	case "error":
		return slog.LevelError
	case "fatal", "panic":
		return slog.LevelError + 4
	case "disabled":
		return slog.Level(math.MaxInt)
	default:
		r.add(ReasonInvalid, "spec.observability.osmLogLevel",
			"%q is not a log level, info is used; use one of: trace, debug, info, warn, error, fatal, panic, disabled", level)
		return slog.LevelInfo
	}
}

func (r *reader) connections() int {
	limit := r.spec.Sidecar.MaxDataPlaneConnections
	if limit < 0 {
		r.add(ReasonInvalid, "spec.sidecar.maxDataPlaneConnections", "%d is below 0; use 0 for any number", limit)
	}
	return int(max(limit, 0))
}

// maxTrustDomain leaves space for the rest of an identity's DNS name.
const maxTrustDomain = 145

func (r *reader) trustDomain() string {
	domain := cmp.Or(r.spec.Certificate.TrustDomain, defaultTrustDomain)
	bad := len(domain) > maxTrustDomain || slices.ContainsFunc(strings.Split(domain, "."), func(label string) bool {
		return len(validation.IsDNS1123Label(label)) > 0
	})
	if bad {
		r.add(ReasonInvalid, "spec.certificate.trustDomain",
			"%q is not a DNS name in lower case of at most %d bytes, %s is used", domain, maxTrustDomain, defaultTrustDomain)
		return defaultTrustDomain
	}
	return domain
}

// duration parses a duration, 0 if empty.
func (n *notes) duration(path string, d interface{ Parse() (time.Duration, error) }) time.Duration {
	length, err := d.Parse()
	if err != nil {
		n.add(ReasonInvalid, path, "%v; the default is used", err)
	}
	return length
}

// isZero reports whether a duration is set to 0, as opposed to not set.
func isZero(d v1alpha2.Duration) bool {
	length, err := d.Parse()
	return d != "" && err == nil && length == 0
}

// checkDurations checks the durations that no other code reads.
func (r *reader) checkDurations() {
	certificate := &r.spec.Certificate
	if certificate.IngressGateway != nil {
		r.duration("spec.certificate.ingressGateway.validityDuration", certificate.IngressGateway.ValidityDuration)
	}
}

func (r *reader) checkTraffic() {
	traffic := &r.spec.Traffic
	ports := func(path string, ports []int32) {
		for _, port := range ports {
			if !validPort(port) {
				r.add(ReasonInvalid, path, "%d is not a port; use 1 to 65535", port)
			}
		}
	}
	ranges := func(path string, ranges []string) {
		for _, cidr := range ranges {
			if _, err := netip.ParsePrefix(cidr); err != nil {
				r.add(ReasonInvalid, path, "%q is not a range in CIDR notation, for example 10.0.0.0/8 or 2001:db8::/32", cidr)
			}
		}
	}
	ports("spec.traffic.inboundPortExclusionList", traffic.InboundPortExclusionList)
	ports("spec.traffic.outboundPortExclusionList", traffic.OutboundPortExclusionList)
	ranges("spec.traffic.outboundIPRangeExclusionList", traffic.OutboundIPRangeExclusionList)
	ranges("spec.traffic.outboundIPRangeInclusionList", traffic.OutboundIPRangeInclusionList)
}

// checkResources finds resources for which the API server would reject every injected
// pod.
func (r *reader) checkResources() {
	resources := &r.spec.Sidecar.Resources
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		request, asked := resources.Requests[name]
		limit, limited := resources.Limits[name]
		if asked && limited && request.Cmp(limit) > 0 {
			r.add(ReasonInvalid, "spec.sidecar.resources.requests."+string(name),
				"the request %s is above the limit %s, so the API server rejects pods with this sidecar; lower the request or raise the limit",
				request.String(), limit.String())
		}
	}
}
