package source

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// httpsPort is the port of https.
const httpsPort = "443"

// HTTPSAddress parses an absolute URL with https, a host, and neither a user nor a fragment. The host must
// be a DNS name or an IP address without a zone.
func HTTPSAddress(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "https" || u.Opaque != "" || u.Host == "":
		return nil, fmt.Errorf("%q is no URL that begins with https:// and a host", text)
	case u.User != nil || strings.Contains(text, "#"):
		return nil, errors.New("a URL must have neither a user nor a fragment")
	case !isKeyHost(u.Hostname()):
		return nil, fmt.Errorf("%q is neither a DNS name nor an IP address", u.Hostname())
	case u.Port() == "" && strings.HasSuffix(u.Host, ":"), u.Port() != "" && !isPortText(u.Port()):
		return nil, fmt.Errorf("%q is no port", u.Port())
	}
	return u, nil
}

func isKeyHost(host string) bool {
	return isHost(strings.ToLower(host)) && !strings.Contains(host, "%")
}

func isPortText(text string) bool {
	number, err := strconv.ParseUint(text, 10, 16)
	return err == nil && number > 0 && strconv.FormatUint(number, 10) == text
}

// KeyHosts says from which hosts the keys of tokens may be fetched. The zero value allows none. It is
// immutable.
type KeyHosts struct {
	hosts, inside []keyHost
	// Roots are the CAs that vouch for the hosts; nil means those of the system.
	Roots *x509.CertPool
}

// keyHost is an entry: a host, or ".example.com" for all names below it, and a port.
type keyHost struct{ host, port string }

func (h keyHost) matches(host, port string) bool {
	if h.port != port {
		return false
	}
	if strings.HasPrefix(h.host, ".") {
		return strings.HasSuffix(host, h.host) && len(host) > len(h.host)
	}
	return host == h.host
}

// Allows reports whether keys may be fetched from the host of a URL that HTTPSAddress has returned, and
// whether that host may be at an address that is not public.
func (k *KeyHosts) Allows(u *url.URL) (allowed, inside bool) {
	host, port := hostName(u.Hostname()), u.Port()
	if port == "" {
		port = httpsPort
	}
	matches := func(h keyHost) bool { return h.matches(host, port) }
	inside = slices.ContainsFunc(k.inside, matches)
	return inside || slices.ContainsFunc(k.hosts, matches), inside
}

// Equal reports whether both allow the same.
func (k *KeyHosts) Equal(other *KeyHosts) bool {
	return slices.Equal(k.hosts, other.hosts) && slices.Equal(k.inside, other.inside) &&
		(k.Roots == nil) == (other.Roots == nil) && (k.Roots == nil || k.Roots.Equal(other.Roots))
}

// hostName returns the one spelling of a host.
func hostName(host string) string {
	if address, err := netip.ParseAddr(host); err == nil {
		return address.Unmap().String()
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// keyHosts leaves out entries that it cannot read, so that nothing is fetched from them.
func (r *reader) keyHosts() *KeyHosts {
	const path = "spec.traffic.tokenKeys"
	spec := &r.spec.Traffic.TokenKeys
	hosts := &KeyHosts{hosts: r.keyHostList(path+".hosts", spec.Hosts, true), inside: r.keyHostList(path+".insideHosts", spec.InsideHosts, false)}
	if spec.CABundle != "" {
		// Without a certificate no host is trusted.
		hosts.Roots = x509.NewCertPool()
		if !hosts.Roots.AppendCertsFromPEM([]byte(spec.CABundle)) {
			r.add(ReasonInvalid, path+".caBundle", "this contains no certificate in PEM, so no keys are fetched; correct it, or remove it to trust the CAs of the controller's system")
		}
	}
	return hosts
}

func (r *reader) keyHostList(path string, entries []string, wild bool) []keyHost {
	var list []keyHost
	for i, entry := range entries {
		host, port := entry, httpsPort
		if name, number, err := net.SplitHostPort(entry); err == nil {
			host, port = name, number
		}
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
		name := host
		if wild {
			name = strings.TrimPrefix(host, "*.")
		}
		if !isKeyHost(hostName(name)) || !isPortText(port) || name != host && strings.Count(hostName(name), ".") == 0 {
			r.add(ReasonInvalid, index(path, i), "%q is no host that keys can be fetched from, so it is ignored; write one such as login.example.com or login.example.com:8443", entry)
			continue
		}
		entry := keyHost{hostName(name), port}
		if name != host {
			entry.host = "." + entry.host
		}
		list = append(list, entry)
	}
	return list
}
