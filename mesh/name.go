package mesh

import (
	"cmp"
	"strconv"
)

// Name is the namespace and the name of an object.
type Name struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// String returns namespace/name.
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Compare orders by namespace, then by name.
func (n Name) Compare(other Name) int {
	return cmp.Or(cmp.Compare(n.Namespace, other.Namespace), cmp.Compare(n.Name, other.Name))
}

// ServicePort is one port of a service.
type ServicePort struct {
	Name
	Port uint16 `json:"port"`
}

// String returns namespace/name:port, the port's key in a Table.
func (p ServicePort) String() string {
	return p.Namespace + "/" + p.Name.Name + ":" + strconv.Itoa(int(p.Port))
}

// Compare orders by namespace, name and port.
func (p ServicePort) Compare(other ServicePort) int {
	return cmp.Or(p.Name.Compare(other.Name), cmp.Compare(p.Port, other.Port))
}

// Protocol is the protocol spoken on a port.
type Protocol string

const (
	// HTTP is HTTP/1.1, HTTP/2 with prior knowledge, and protocols on top of them.
	HTTP Protocol = "http"
	// HTTP1 is HTTP/1.1, also for requests that have come by HTTP/2. Only Backends of gateways
	// have it, whose clients choose a version for the gateway and not for the application.
	HTTP1 Protocol = "http1"
	// HTTP2 is HTTP/2 with prior knowledge only.
	HTTP2 Protocol = "http2"
	// GRPC is gRPC over HTTP/2.
	GRPC Protocol = "grpc"
	// TCP is any byte stream in which the client speaks first, including an application's
	// own TLS.
	TCP Protocol = "tcp"
	// TCPServerFirst is any byte stream in which the server speaks first.
	TCPServerFirst Protocol = "tcp-server-first"
)

// IsHTTP reports whether the proxy sees single requests.
func (p Protocol) IsHTTP() bool { return p == HTTP || p == HTTP1 || p == HTTP2 || p == GRPC }
