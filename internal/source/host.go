package source

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// isDNSName reports whether a name in lower case is one that a client can look up
// and a proxy can compare. Unlike names of Kubernetes it may hold underscores.
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

// hosts reads names that are matched with the host or the server name that a client
// asks for: exact, or with "*" as their first label. They are in lower case and each
// once. What is not one is left out.
func (n *notes) hosts(path string, values []string) []string {
	var hosts []string
	for i, value := range values {
		host := strings.ToLower(value)
		if !isDNSName(strings.TrimPrefix(host, "*.")) {
			n.add(ReasonInvalid, index(path, i), "%q is not a host and is left out; write a DNS name without a port, such as api.example.com or *.example.com", value)
			continue
		}
		hosts = append(hosts, host)
	}
	return unique(hosts)
}

// isToken reports whether a value is a name of HTTP (RFC 9110, 5.6.2), but without
// those of its signs that mean something elsewhere.
func isToken(value string) bool {
	return value != "" && !strings.ContainsFunc(value, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.'
	})
}

// serviceOf reads the name of a service as a client in a namespace would write it:
// name, name.namespace, name.namespace.svc, and that with the cluster's domain.
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
