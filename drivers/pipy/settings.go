package pipy

import (
	"cmp"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

func settings(p *mesh.Proxy, s *mesh.Settings) settingsDocument {
	out := settingsDocument{
		header:         header{schema},
		Pod:            p.Name.String(),
		Namespace:      p.Namespace,
		Name:           p.Name.Name,
		ServiceAccount: p.Identity.ServiceAccount,
		UID:            p.UID,
		Zone:           p.Zone,
		ServerName:     p.Identity.DNSName(),
		TrustDomain:    s.TrustDomain,
		Gateway:        p.Gateway,
		Plaintext:      p.Plaintext,
		TLS:            tlsDocument{Min: tlsVersion(s.TLS.Min), Max: tlsVersion(s.TLS.Max), Ciphers: strings.Join(s.TLS.Ciphers, ":")},
		AccessLog:      s.AccessLog.Enabled,
		ForwardedFor:   s.ForwardedFor,
	}
	if s.AccessLog.IsSampled() {
		out.Logged = new(float64(s.AccessLog.Sampled) / float64(mesh.EverythingSampled))
	}
	for _, address := range p.Addresses {
		out.Addresses = append(out.Addresses, address.String())
	}
	if t := s.Tracing; t != nil {
		out.Tracing = &tracingDocument{
			OTLP:    t.Protocol == "otlp",
			Address: net.JoinHostPort(t.Host, strconv.Itoa(int(t.Port))),
			Sampled: min(float64(t.Sampled)/1_000_000, 1),
		}
		if !out.Tracing.OTLP {
			out.Tracing.Path = cmp.Or(t.Path, "/api/v2/spans")
		}
	}
	if a := s.Authorization; a != nil {
		out.Authorization = &authorizationDocument{
			Address:        net.JoinHostPort(a.Host, strconv.Itoa(int(a.Port))),
			Timeout:        cmp.Or(a.Timeout, authorizationTimeout).Seconds(),
			AllowOnFailure: a.AllowOnFailure,
			Metrics:        authorizationMetrics(a.StatPrefix),
		}
	}
	return out
}

// authorizationTimeout is how long Envoy waits for an authorization service by default.
const authorizationTimeout = 200 * time.Millisecond

// authorizationMetrics returns the beginning of Envoy's names for the metrics of an
// authorization service with the prefix.
func authorizationMetrics(prefix string) string {
	name := "envoy_http_ext_authz_"
	if prefix != "" {
		name += prefix + "_"
	}
	return strings.Map(func(r rune) rune {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') {
			return '_'
		}
		return r
	}, name)
}

// tlsVersion returns Pipy's name of a TLS version; unknown ones become the newest.
func tlsVersion(version string) string {
	if version == "1.2" {
		return "TLS1.2"
	}
	return "TLS1.3"
}
