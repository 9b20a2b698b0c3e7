package source

import (
	"net/netip"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// isDNSName reports whether a name, in lower case, can be looked up by clients and
// compared by proxies. Unlike Kubernetes names it may contain underscores.
func isDNSName(name string) bool {
	if name == "" || len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		if strings.ContainsFunc(label, func(c rune) bool {
			return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_'
		}) {
			return false
		}
	}
	return true
}

// isLocalName reports whether a DNS name, in lower case, leads to the caller's own host or
// link in some spelling: resolvers read 127.1 and 0x7f000001 as 127.0.0.1, for example.
func isLocalName(name string) bool {
	labels := strings.Split(name, ".")
	switch labels[len(labels)-1] {
	case "localhost", "localdomain", "ip6-localhost", "ip6-loopback":
		return true
	}
	address, isNumber := numericHost(labels)
	return isNumber && !isReachable(address)
}

// numericHost returns the address that resolvers read in a name whose last label is a number,
// and false for all other names. The address is zero if they would not agree.
func numericHost(labels []string) (netip.Addr, bool) {
	numbers := make([]uint64, len(labels))
	valid := len(labels) <= 4
	for i, label := range labels {
		number, err := strconv.ParseUint(label, 0, 32)
		isNumber := err == nil && !strings.ContainsAny(label, "_ob")
		if i == len(labels)-1 && !isNumber && strings.Trim(label, "0123456789") != "" && !strings.HasPrefix(label, "0x") {
			return netip.Addr{}, false
		}
		numbers[i], valid = number, valid && isNumber
	}
	if !valid {
		return netip.Addr{}, true
	}
	// The last number fills the remaining bytes.
	last := len(numbers) - 1
	value := numbers[last]
	if value >= 1<<(8*(4-last)) {
		return netip.Addr{}, true
	}
	for i, number := range numbers[:last] {
		if number > 255 {
			return netip.Addr{}, true
		}
		value |= number << (8 * (3 - i))
	}
	return netip.AddrFrom4([4]byte{byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)}), true
}

// isReachable reports whether an endpoint can have the address: it is not one of the caller's
// own host or link, such as that of a cloud's metadata service.
func isReachable(a netip.Addr) bool { return a.IsValid() && isUnicast(a) && !a.IsLinkLocalUnicast() }

// hosts parses host names, which are matched with the request's host or the TLS server
// name: exact, or with "*" as the first label. The result is in lower case, without
// duplicates and invalid names.
func (n *notes) hosts(path string, values []string) []string {
	var hosts []string
	for i, value := range values {
		host := strings.ToLower(value)
		if !isDNSName(strings.TrimPrefix(host, "*.")) {
			n.add(ReasonInvalid, index(path, i), "%q is not a host and is ignored; write a DNS name without a port, such as api.example.com or *.example.com", value)
			continue
		}
		hosts = append(hosts, host)
	}
	return unique(hosts)
}

// isToken reports whether a value is a token of HTTP (RFC 9110, 5.6.2) without special
// characters other than "-", "_" and ".".
func isToken(value string) bool {
	return value != "" && !strings.ContainsFunc(value, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.'
	})
}

// serviceOf parses the name of a service as written by a client in the namespace: name,
// name.namespace, name.namespace.svc, or the latter with the cluster domain.
func serviceOf(namespace, host string) (mesh.Name, bool) {
	labels := strings.Split(host, ".")
	name := mesh.Name{Namespace: namespace, Name: labels[0]}
	if len(labels) > 1 {
		name.Namespace = labels[1]
	}
	ok := isObjectLabel(name.Name) && isObjectLabel(name.Namespace) && (len(labels) < 3 || labels[2] == "svc") && isDNSName(host)
	return name, ok
}

// isObjectLabel reports whether a value can be the name of a service or a namespace.
func isObjectLabel(value string) bool { return len(validation.IsDNS1123Label(value)) == 0 }

// isObjectName reports whether a value can be the name of most other objects.
func isObjectName(value string) bool { return len(validation.IsDNS1123Subdomain(value)) == 0 }
