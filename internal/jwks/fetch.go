package jwks

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

const (
	// fetchTime limits one try, with all its requests.
	fetchTime = 10 * time.Second
	// maxConfiguration limits an OpenID configuration, in bytes.
	maxConfiguration = 64 << 10
	maxHeader        = 32 << 10
	maxRedirects     = 3
	maxURL           = 1024
)

// problem is an error for the users of a namespace. Of answers its text has only a jwks_uri, since they
// can be of a server that the users cannot reach.
type problem struct{ fact.Flaw }

func (p *problem) Error() string { return p.Message }

func failed(format string, args ...any) error {
	return &problem{fact.Flaw{Reason: ReasonNotFetched, Message: fmt.Sprintf(format, args...)}}
}

// flawOf returns a copy of the flaw of an error.
func flawOf(err error) *fact.Flaw {
	var p *problem
	if errors.As(err, &p) {
		return &fact.Flaw{Reason: p.Reason, Message: p.Message}
	}
	return &fact.Flaw{Reason: ReasonNotFetched, Message: "the keys cannot be fetched"}
}

// errInside reports an address that is not public.
var errInside = errors.New("the host has an address that is not public")

// connector makes connections.
type connector struct {
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// public reports whether an address is one of the Internet.
	public func(netip.Addr) bool
	time   time.Duration
}

func newConnector() *connector {
	return &connector{
		lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		},
		public: isPublic, time: fetchTime,
	}
}

// allowed returns an error unless the MeshConfig allows the host of an address.
func allowed(hosts *source.KeyHosts, address fact.KeyAddress) error {
	u, err := source.HTTPSAddress(address.URL)
	if err != nil {
		return failed("%v", err)
	}
	return allows(hosts, u)
}

func allows(hosts *source.KeyHosts, u *url.URL) error {
	if ok, _ := hosts.Allows(u); !ok {
		return &problem{fact.Flaw{Reason: ReasonDisabled, Message: fmt.Sprintf("the MeshConfig does not allow to fetch keys from %q, so none of the issuer's tokens is verified; who runs the mesh can add it to spec.traffic.tokenKeys.hosts", u.Host)}}
	}
	return nil
}

// fetch fetches the keys of one address.
func (c *connector) fetch(ctx context.Context, hosts *source.KeyHosts, address fact.KeyAddress) (fact.KeySet, error) {
	ctx, cancel := context.WithTimeout(ctx, c.time)
	defer cancel()
	at := address.URL
	if address.Issuer != "" {
		text, err := c.get(ctx, hosts, at, maxConfiguration)
		if err != nil {
			return fact.KeySet{}, err
		}
		var configuration struct {
			Issuer string `json:"issuer"`
			Keys   string `json:"jwks_uri"`
		}
		if json.Unmarshal(text, &configuration) != nil {
			return fact.KeySet{}, failed("%s is no OpenID configuration", at)
		}
		if configuration.Issuer != address.Issuer {
			return fact.KeySet{}, failed("%s is the OpenID configuration of another issuer", at)
		}
		if at = configuration.Keys; at == "" || len(at) > maxURL {
			return fact.KeySet{}, failed("%s has no jwks_uri of at most %d bytes", address.URL, maxURL)
		}
	}
	text, err := c.get(ctx, hosts, at, source.MaxKeySet)
	if err != nil {
		return fact.KeySet{}, err
	}
	set, ok := source.ReadKeySet(string(text))
	if !ok {
		return fact.KeySet{}, failed("%s answers with something that is no JSON Web Key Set", at)
	}
	return set, nil
}

// get returns an answer of at most limit bytes. Each connection is new, so that its address is checked.
func (c *connector) get(ctx context.Context, hosts *source.KeyHosts, at string, limit int64) ([]byte, error) {
	u, err := source.HTTPSAddress(at)
	if err != nil {
		return nil, failed("the address of the keys cannot be used: %v", err)
	}
	if err := allows(hosts, u); err != nil {
		return nil, err
	}
	_, inside := hosts.Allows(u)
	// There is no proxy, since it would make the connection to an address that was not checked.
	transport := &http.Transport{
		DialContext:     func(ctx context.Context, _, address string) (net.Conn, error) { return c.dial(ctx, address, inside) },
		TLSClientConfig: &tls.Config{RootCAs: hosts.Roots, MinVersion: tls.VersionTLS12}, TLSHandshakeTimeout: c.time,
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		switch {
		case r.URL.Scheme != "https" || r.URL.Host != u.Host || r.URL.User != nil:
			return failed("%s redirects to another host, which is not followed", at)
		case len(via) > maxRedirects:
			return failed("%s redirects more than %d times", at, maxRedirects)
		}
		return nil
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, failed("the address of the keys cannot be used")
	}
	request.Header.Set("Accept", "application/json, application/jwk-set+json")
	request.Header.Set("User-Agent", "outrigger-controller")
	response, err := client.Do(request)
	if err != nil {
		return nil, connectionProblem(ctx, at, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, failed("%s answers with status %d", at, response.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, failed("%s did not answer in time", at)
	case err != nil:
		return nil, failed("the answer of %s ended too early", at)
	case int64(len(text)) > limit:
		return nil, failed("the answer of %s is longer than %d KiB", at, limit>>10)
	}
	return text, nil
}

// connectionProblem says what went wrong, without details that differ from try to try or tell about
// networks.
func connectionProblem(ctx context.Context, at string, err error) error {
	var ours *problem
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var dns *net.DNSError
	switch {
	case errors.As(err, &ours):
		return ours
	case errors.Is(err, errInside):
		return failed("%s is at an address that is not public, where nothing is fetched; who runs the mesh can allow it with spec.traffic.tokenKeys.insideHosts of the MeshConfig", at)
	case errors.As(err, &unknown):
		return failed("no trusted CA vouches for the certificate of %s; who runs the mesh can set its CA with spec.traffic.tokenKeys.caBundle of the MeshConfig", at)
	case errors.As(err, &name), errors.As(err, &invalid):
		return failed("%s has a certificate that is not valid for it", at)
	case ctx.Err() != nil:
		return failed("%s did not answer in time", at)
	case errors.As(err, &dns):
		return failed("the host of %s cannot be found", at)
	}
	return failed("%s cannot be reached by https", at)
}

// dial connects to an address that was checked: the name is resolved once, and not again for the
// connection.
func (c *connector) dial(ctx context.Context, address string, inside bool) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	var addresses []netip.Addr
	if literal, err := netip.ParseAddr(host); err == nil {
		addresses = []netip.Addr{literal}
	} else {
		if !inside {
			// Nothing of the cluster's DNS is meant.
			host = strings.TrimSuffix(host, ".") + "."
		}
		if addresses, err = c.lookup(ctx, host); err != nil {
			return nil, err
		}
	}
	refused := func(a netip.Addr) bool { return !inside && !c.public(a) }
	if slices.ContainsFunc(addresses, refused) {
		return nil, errInside
	}
	dialer := &net.Dialer{Timeout: c.time / 2, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil || refused(at.Addr()) {
			return errInside
		}
		return nil
	}}
	err = errors.New("the host has no address")
	for _, to := range addresses {
		var conn net.Conn
		if conn, err = dialer.DialContext(ctx, "tcp", net.JoinHostPort(to.String(), port)); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// special are ranges that look public and are not, or that lead elsewhere.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.88.99.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("240.0.0.0/4"),
	// A service of Azure for its virtual machines.
	netip.MustParsePrefix("168.63.129.16/32"),
}

// global6 is what has been assigned of IPv6, and special6 are parts of it.
var (
	global6  = netip.MustParsePrefix("2000::/3")
	special6 = []netip.Prefix{
		// Teredo and other protocols, documentation, and 6to4, which contains IPv4 addresses.
		netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("3fff::/20"),
	}
)

// isPublic reports whether an address is one of the Internet, by IANA's registries of special addresses.
func isPublic(address netip.Addr) bool {
	address = address.Unmap()
	if !address.IsGlobalUnicast() || address.IsPrivate() || address.Zone() != "" {
		return false
	}
	ranges := special
	if address.Is6() {
		if !global6.Contains(address) {
			return false
		}
		ranges = special6
	}
	for _, one := range ranges {
		if one.Contains(address) {
			return false
		}
	}
	return true
}
