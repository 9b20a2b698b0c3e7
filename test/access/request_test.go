package access

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"math/big"
	"net/netip"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// request is a request as it is written to the wire.
type request struct {
	// Port is the port of the application, and Caller the name of the caller.
	Port   uint16
	Caller string
	// Six is set if the caller connects by IPv6.
	Six bool
	// Version is "1.0", "1.1" or "2".
	Version string
	Method  string
	Target  string
	// Protocol is that of an extended CONNECT of HTTP/2.
	Protocol string
	// Fields are names and values, with the host.
	Fields [][2]string
	Body   string
}

func (r *request) String() string {
	fields := make([]string, len(r.Fields))
	for i, f := range r.Fields {
		if fields[i] = fmt.Sprintf("%q: %q", f[0], f[1]); len(fields[i]) > 200 {
			fields[i] = fmt.Sprintf("%.100s... (%d bytes)", fields[i], len(fields[i]))
		}
	}
	text := fmt.Sprintf("%s sends to port %d over HTTP/%s: %q %q {%s}", r.Caller, r.Port, r.Version, r.Method, r.Target, strings.Join(fields[:min(len(fields), 20)], ", "))
	if r.Six {
		text += ", by IPv6"
	}
	if r.Protocol != "" {
		text += ", protocol " + r.Protocol
	}
	if r.Body != "" {
		text += fmt.Sprintf(", with the body %q", r.Body)
	}
	return text
}

const trustDomain = "cluster.local"

// server is the identity of the application's pod.
var server = mesh.Identity{TrustDomain: trustDomain, Namespace: "shop", ServiceAccount: "cart"}

// caller is how a client presents itself.
type caller struct {
	name string
	// peer is the identity by which the model knows the client.
	peer       mesh.Identity
	security   mesh.Security
	serverName string
	// uris are those of its certificate; none means no certificate. root is the CA.
	uris []string
	root int
	// refused is set if the handshake fails.
	refused bool
}

func member(namespace, account string) caller {
	id := mesh.Identity{TrustDomain: trustDomain, Namespace: namespace, ServiceAccount: account}
	return caller{name: namespace + "/" + account, peer: id, security: mesh.MeshTLS, serverName: server.DNSName(), uris: []string{id.String()}}
}

// impostor is a caller in mesh TLS whose certificate has the URIs, which identify nobody.
func impostor(name string, uris ...string) caller {
	return caller{name: name, security: mesh.MeshTLS, serverName: server.DNSName(), uris: uris}
}

// callers are all clients.
var callers = []caller{
	{name: "plaintext", security: mesh.Plaintext},
	{name: "own TLS", security: mesh.OtherTLS, serverName: "app.example.com"},
	{name: "own TLS without a name", security: mesh.OtherTLS},
	{name: "gateway", security: mesh.OtherTLS, serverName: "in.example.com", peer: member("edge", "gateway").peer, uris: member("edge", "gateway").uris},
	member("shop", "web"), member("shop", "web-2"), member("ops", "tool.x"), member("ops", "toolyx"), member("edge", "gateway"), member("shop-2", "web"),
	impostor("another trust domain", "spiffe://other.test/ns/shop/sa/web"),
	impostor("a longer trust domain", "spiffe://cluster.local.test/ns/shop/sa/web"),
	impostor("several URIs", "spiffe://cluster.local/ns/shop/sa/web", "spiffe://cluster.local/ns/ops/sa/tool.x"),
	impostor("a NUL", "spiffe://cluster.local/ns/shop/sa/web\x00.test"),
	impostor("a longer path", "spiffe://cluster.local/ns/shop/sa/web/more"),
	impostor("a delimiter", "spiffe://cluster.local/ns/shop/sa/web;URI=spiffe://cluster.local/ns/ops/sa/tool.x"),
	impostor("no URI", ""),
	{name: "another root", security: mesh.MeshTLS, serverName: server.DNSName(), uris: member("shop", "web").uris, root: 1, refused: true},
	{name: "no certificate", security: mesh.MeshTLS, serverName: server.DNSName(), refused: true},
}

// identities are those of policies.
func identity(namespace, account string) mesh.Identity {
	return mesh.Identity{TrustDomain: trustDomain, Namespace: namespace, ServiceAccount: account}
}

// callerNamed returns the caller with the name.
func callerNamed(name string) *caller {
	for i := range callers {
		if callers[i].name == name {
			return &callers[i]
		}
	}
	panic("there is no caller " + name)
}

// config returns the TLS configuration of the caller, nil for plaintext.
func (c *caller) config(roots []*drivertest.Authority) (*tls.Config, error) {
	if c.security == mesh.Plaintext {
		return nil, nil
	}
	config := &tls.Config{ServerName: c.serverName, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}
	if c.uris == nil {
		return config, nil
	}
	names, err := alternativeNames(c.uris)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	// The certificates of some impostors are such that Go does not read them.
	root := roots[c.root]
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		Subject:      pkix.Name{CommonName: "web.shop", OrganizationalUnit: []string{"uid"}},
		SerialNumber: big.NewInt(int64(len(c.name)) + 1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		ExtraExtensions: []pkix.Extension{names},
	}, root.Leaf, key.Public(), root.PrivateKey)
	pair := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	// A server name is no reason to offer nothing: the client does not ask who accepts its root.
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	return config, err
}

// alternativeNames returns the extension with a DNS name and the URIs, which may have any bytes.
func alternativeNames(uris []string) (pkix.Extension, error) {
	const dns, uri = 2, 6
	names := []asn1.RawValue{{Tag: dns, Class: asn1.ClassContextSpecific, Bytes: []byte("web.shop.sa." + trustDomain)}}
	for _, text := range uris {
		if text != "" {
			names = append(names, asn1.RawValue{Tag: uri, Class: asn1.ClassContextSpecific, Bytes: []byte(text)})
		}
	}
	value, err := asn1.Marshal(names)
	return pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: value}, err
}

// The addresses of the client.
var (
	clientFour = netip.MustParseAddr("198.18.0.1")
	clientSix  = netip.MustParseAddr("2001:db8::1")
)

func (r *request) source() netip.Addr {
	if r.Six {
		return clientSix
	}
	return clientFour
}
