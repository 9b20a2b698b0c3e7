package source

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// protocol returns the protocol of a service port: that of appProtocol, otherwise that of
// the prefix of the name, otherwise HTTP, as in Open Service Mesh. An unknown appProtocol
// is treated as TCP, which works for any protocol, while HTTP would break it. The second result says that the
// user has told nothing.
func (n *notes) protocol(path string, port *corev1.ServicePort) (protocol mesh.Protocol, isAssumed bool) {
	if port.AppProtocol != nil && *port.AppProtocol != "" {
		if p, known := appProtocol(strings.ToLower(*port.AppProtocol)); known {
			return p, false
		}
		n.add(ReasonUnknownProtocol, path+".appProtocol",
			"%q is not a protocol that the mesh knows, so the port is treated as TCP, without HTTP routes and rules; use http, http2, grpc, https, tcp or tcp-server-first",
			*port.AppProtocol)
		return mesh.TCP, false
	}
	// Longer prefixes go before those that they start with.
	for _, prefix := range []string{"tcp-server-first", "tcp", "grpc-web", "grpc", "https", "http2", "http"} {
		if name := strings.ToLower(port.Name); name == prefix || strings.HasPrefix(name, prefix+"-") {
			p, _ := appProtocol(prefix)
			return p, false
		}
	}
	if likely := likelyProtocol(port.Name); likely != "" {
		n.add(mesh.ReasonAdvice, path+".name", "%q is treated as HTTP, since its name does not begin with a protocol that the mesh knows; if it is not HTTP, set appProtocol: %s", port.Name, likely)
	} else if number, usual := usualProtocol(port); usual != nil {
		n.add(mesh.ReasonAdvice, path, "port %d is treated as HTTP, since neither its appProtocol nor the beginning of its name says otherwise, but %s uses port %d; if it is not HTTP, set appProtocol: %s", port.Port, usual.user, number, usual.protocol)
	}
	return mesh.HTTP, true
}

// usual is what often listens on a port.
type usual struct{ user, protocol string }

// usualPorts are the ports of well-known programs that do not speak HTTP there.
var usualPorts = map[int32]usual{
	21: {"FTP", "ftp"}, 22: {"SSH", "ssh"}, 25: {"SMTP", "smtp"}, 110: {"POP3", "pop3"}, 143: {"IMAP", "imap"},
	389: {"LDAP", "ldap"}, 443: {"HTTPS", "https"}, 465: {"SMTP with TLS", "tls"}, 587: {"SMTP", "smtp"}, 636: {"LDAP with TLS", "tls"}, 993: {"IMAP with TLS", "tls"},
	1433: {"SQL Server", "tcp"}, 1521: {"Oracle", "tcp"}, 1883: {"MQTT", "tcp"}, 2181: {"ZooKeeper", "tcp"}, 3306: {"MySQL", "mysql"}, 4222: {"NATS", "tcp-server-first"},
	5432: {"PostgreSQL", "postgresql"}, 5671: {"AMQP with TLS", "tls"}, 5672: {"AMQP", "amqp"}, 6379: {"Redis", "redis"}, 8883: {"MQTT with TLS", "tls"},
	9042: {"Cassandra", "tcp"}, 9092: {"Kafka", "tcp"}, 11211: {"memcached", "tcp"}, 26379: {"Redis Sentinel", "redis"},
	27017: {"MongoDB", "mongodb"}, 27018: {"MongoDB", "mongodb"}, 27019: {"MongoDB", "mongodb"},
}

// usualProtocol returns what often listens on the port's number or on that of its target, and that
// number.
func usualProtocol(port *corev1.ServicePort) (int32, *usual) {
	for _, number := range []int32{port.Port, port.TargetPort.IntVal} {
		if u, ok := usualPorts[number]; ok {
			return number, &u
		}
	}
	return 0, nil
}

// likelyProtocol guesses the intended appProtocol from a port's name, or returns "".
func likelyProtocol(name string) string {
	known := map[string]string{
		"amqp": "amqp", "cassandra": "tcp", "cql": "tcp", "etcd": "tcp", "ftp": "ftp", "imap": "imap", "kafka": "tcp", "ldap": "ldap",
		"mariadb": "mysql", "memcache": "tcp", "memcached": "tcp", "mongo": "mongodb", "mongodb": "mongodb", "mqtt": "tcp", "mssql": "tcp",
		"mysql": "mysql", "nats": "tcp-server-first", "pg": "postgresql", "pgsql": "postgresql", "pop3": "pop3", "postgres": "postgresql", "postgresql": "postgresql",
		"rabbitmq": "amqp", "redis": "redis", "sftp": "ssh", "smtp": "smtp", "sql": "tcp", "ssh": "ssh", "tls": "tls", "zookeeper": "tcp",
	}
	word, _, _ := strings.Cut(strings.ToLower(name), "-")
	return known[word]
}

// appProtocol parses the names of Open Service Mesh, of Kubernetes (KEP-3726), and some
// IANA names of TCP protocols.
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
