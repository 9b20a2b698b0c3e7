package source

import (
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
