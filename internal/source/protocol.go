package source

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// protocol returns what a service's port speaks: what appProtocol says, else what
// the name begins with, else HTTP, as in Open Service Mesh. An appProtocol that the
// mesh does not know is TCP, which any is; to take it for HTTP would break it.
func (n *notes) protocol(path string, port *corev1.ServicePort) mesh.Protocol {
	if port.AppProtocol != nil && *port.AppProtocol != "" {
		if p, known := appProtocol(strings.ToLower(*port.AppProtocol)); known {
			return p
		}
		n.add(ReasonUnknownProtocol, path+".appProtocol",
			"%q is not a protocol that the mesh knows, so the port carries TCP, without HTTP's routes and rules; use http, http2, grpc, https, tcp or tcp-server-first",
			*port.AppProtocol)
		return mesh.TCP
	}
	// The longer ones come first, of which the shorter are the beginning.
	for _, prefix := range []string{"tcp-server-first", "tcp", "grpc-web", "grpc", "https", "http2", "http"} {
		if name := strings.ToLower(port.Name); name == prefix || strings.HasPrefix(name, prefix+"-") {
			p, _ := appProtocol(prefix)
			return p
		}
	}
	if likely := likelyProtocol(port.Name); likely != "" {
		n.add(mesh.ReasonAdvice, path+".name", "%q is taken for HTTP, as every port whose name does not begin with a protocol of the mesh; if it is not, write appProtocol: %s", port.Name, likely)
	}
	return mesh.HTTP
}

// likelyProtocol returns the appProtocol that is probably meant by the name of a port
// that is taken for HTTP, or "".
func likelyProtocol(name string) string {
	known := map[string]string{
		"amqp": "amqp", "cassandra": "tcp", "cql": "tcp", "etcd": "tcp", "ftp": "ftp", "imap": "imap", "kafka": "tcp", "ldap": "ldap",
		"mariadb": "mysql", "memcache": "tcp", "memcached": "tcp", "mongo": "mongodb", "mongodb": "mongodb", "mqtt": "tcp", "mssql": "tcp",
		"mysql": "mysql", "nats": "tcp", "pg": "postgresql", "pgsql": "postgresql", "pop3": "pop3", "postgres": "postgresql", "postgresql": "postgresql",
		"rabbitmq": "amqp", "redis": "redis", "sftp": "ssh", "smtp": "smtp", "sql": "tcp", "ssh": "ssh", "tls": "tls", "zookeeper": "tcp",
	}
	word, _, _ := strings.Cut(strings.ToLower(name), "-")
	return known[word]
}

// appProtocol reads the names of Open Service Mesh, of Kubernetes (KEP-3726), and
// some of IANA's that are plain TCP.
func appProtocol(name string) (mesh.Protocol, bool) {
	switch name {
	case "http", "grpc-web", "kubernetes.io/ws":
		return mesh.HTTP, true
	case "http2", "h2c", "kubernetes.io/h2c":
		return mesh.HTTP2, true
	case "grpc":
		return mesh.GRPC, true
	case "tcp", "https", "tls", "kubernetes.io/wss", "amqp", "ldap", "mongodb", "postgresql", "redis":
		return mesh.TCP, true
	case "tcp-server-first", "ftp", "imap", "mysql", "pop3", "smtp", "ssh":
		return mesh.TCPServerFirst, true
	}
	return "", false
}
