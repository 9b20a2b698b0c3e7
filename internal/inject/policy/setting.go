package policy

import (
	"fmt"
	"strings"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// on and off are the values that switch a setting.
var on, off = []string{"true", "yes", "enabled"}, []string{"false", "no", "disabled"}

// metricsKeys are the annotations by which Prometheus finds a pod: whether, the port and the path.
var metricsKeys = []string{"prometheus.io/scrape", "prometheus.io/port", "prometheus.io/path"}

// lookup is the expression of an annotation of the pod, or else of its namespace, or else another.
func lookup(key, otherwise string) string {
	return fmt.Sprintf("(%[1]s in variables.podAnnotations ? variables.podAnnotations[%[1]s] : %[1]s in variables.namespaceAnnotations ? variables.namespaceAnnotations[%[1]s] : %[2]s)", quote(key), otherwise)
}

// The annotations of a pod with lists of what is redirected.
var (
	portLists      = []string{metadata.InboundPortExclusion, metadata.OutboundPortExclusion, metadata.InboundPortInclusion, metadata.OutboundPortInclusion}
	rangeLists     = []string{metadata.OutboundRangeExclusion, metadata.OutboundRangeInclusion}
	interfaceLists = []string{metadata.InterfaceExclusion}
)

// maxList bounds the length of a list in an annotation, in bytes.
const maxList = 1024

// set is the condition that the pod has an annotation that is not blank.
func set(key string) string {
	return fmt.Sprintf("(%[1]s in variables.podAnnotations && string(variables.podAnnotations[%[1]s]).trim() != '')", quote(key))
}

// entries is the expression of the entries of a list in an annotation of the pod.
func entries(key string) string {
	return fmt.Sprintf("string(variables.podAnnotations[%s]).split(',')", quote(key))
}

// badSettings is the condition that a setting of the pod or its namespace cannot be used, or is
// written in a way that the expressions do not read.
func badSettings() string {
	var bad []string
	check := func(keys []string, good string) {
		for _, key := range keys {
			bad = append(bad, fmt.Sprintf("%s && !(size(variables.podAnnotations[%s]) <= %d && %s)", set(key), quote(key), maxList, strings.ReplaceAll(good, "ENTRIES", entries(key))))
		}
	}
	check(portLists, "ENTRIES.all(s, s.trim().matches('^[0-9]{1,5}$') && int(s.trim()) >= 1 && int(s.trim()) <= 65535)")
	check(rangeLists, "ENTRIES.all(s, isCIDR(s.trim()))")
	check(interfaceLists, `ENTRIES.all(s, s.trim().matches('^[!#-.0-~]{1,15}$'))`)
	bad = append(bad, fmt.Sprintf("!string(%s).matches('^[A-Za-z0-9._/:@-]{1,512}$')", lookup(metadata.Image, "'default'")))
	// An empty level is none, which the annotation cannot set.
	bad = append(bad, fmt.Sprintf("!(string(%s).lowerAscii() in %s)", lookup(metadata.LogLevel, "'off'"), list(logLevels)))
	for key, values := range map[string][]string{metadata.Metrics: append(append([]string{}, on...), off...), metadata.HoldApplication: append(append([]string{}, on...), off...), metadata.NativeSidecar: on} {
		bad = append(bad, fmt.Sprintf("!(string(%s).lowerAscii() in %s)", lookup(key, "'true'"), list(values)))
	}
	return strings.Join(sortedSet(bad), " || ")
}

// redirection is the expression of the JSON of an agentspec.Redirection: the base with the lists of
// the pod, each sorted and without duplicates.
func redirection(base *agentspec.Redirection) string {
	ports := func(field string, base []int, key string) string {
		own := strings.ReplaceAll(fmt.Sprint(base), " ", ", ")
		return fmt.Sprintf("[(%s + (%s ? %s.map(s, int(s.trim())) : [])).distinct().sort()].map(l, size(l) == 0 ? '' : %s + l.map(p, string(p)).join(',') + ']')[0]",
			own, set(key), entries(key), quote(`"`+field+`":[`))
	}
	texts := func(field string, base []string, key, entry string) string {
		return fmt.Sprintf("[(%s + (%s ? %s.map(s, %s) : [])).distinct().sort()].map(l, size(l) == 0 ? '' : %s + l.map(p, %s).join(',') + ']')[0]",
			list(base), set(key), entries(key), entry, quote(`"`+field+`":[`), jsonText("p"))
	}
	flag := func(field string, v bool) string {
		if !v {
			return "''"
		}
		return quote(`"` + field + `":true`)
	}
	each := "''"
	if n := base.InboundConnectionsEach; n != 0 {
		each = quote(fmt.Sprintf(`"inboundConnectionsEach":%d`, n))
	}
	const masked = "string(cidr(s.trim()).masked())"
	return "'{' + [" + strings.Join([]string{
		flag("disableInbound", base.DisableInbound), flag("disableOutbound", base.DisableOutbound),
		ports("excludeInboundPorts", base.ExcludeInboundPorts, metadata.InboundPortExclusion),
		ports("excludeOutboundPorts", base.ExcludeOutboundPorts, metadata.OutboundPortExclusion),
		ports("includeInboundPorts", base.IncludeInboundPorts, metadata.InboundPortInclusion),
		texts("includeOutboundRanges", base.IncludeOutboundRanges, metadata.OutboundRangeInclusion, masked),
		ports("includeOutboundPorts", base.IncludeOutboundPorts, metadata.OutboundPortInclusion),
		texts("excludeOutboundRanges", base.ExcludeOutboundRanges, metadata.OutboundRangeExclusion, masked),
		texts("excludeInterfaces", base.ExcludeInterfaces, metadata.InterfaceExclusion, "s.trim()"),
		each, flag("translateIPv6", base.TranslateIPv6),
	}, ", ") + "].filter(s, s != '').join(',') + '}'"
}
