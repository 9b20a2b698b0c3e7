package mesh

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// Identity is who a workload is: a service account of a namespace in a trust
// domain. Two workloads with equal identities are the same peer to everyone.
type Identity struct {
	// TrustDomain is the SPIFFE trust domain, for example "cluster.local".
	TrustDomain string `json:"trustDomain"`
	// Namespace and ServiceAccount are the Kubernetes names.
	Namespace      string `json:"namespace"`
	ServiceAccount string `json:"serviceAccount"`
}

// String returns the SPIFFE ID, spiffe://<trust domain>/ns/<ns>/sa/<sa>.
func (id Identity) String() string {
	return "spiffe://" + id.TrustDomain + "/ns/" + id.Namespace + "/sa/" + id.ServiceAccount
}

// ParseIdentity reads a SPIFFE ID of the form that String writes. Service
// account names may hold dots; a trust domain, namespace or service account
// that is empty or holds a slash is an error.
func ParseIdentity(spiffeID string) (Identity, error) {
	rest, ok := strings.CutPrefix(spiffeID, "spiffe://")
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 5 || parts[1] != "ns" || parts[3] != "sa" ||
		parts[0] == "" || parts[2] == "" || parts[4] == "" {
		return Identity{}, fmt.Errorf("identity %q is not of the form spiffe://<trust domain>/ns/<namespace>/sa/<service account>", spiffeID)
	}
	return Identity{TrustDomain: parts[0], Namespace: parts[2], ServiceAccount: parts[4]}, nil
}

const (
	maxDNSLabel = 63
	maxDNSName  = 253
	// maxCommonName is the limit of X.520 for a common name, in bytes.
	maxCommonName = 64
)

// DNSName returns the DNS SAN, <sa>.<ns>.sa.<trust domain>. It is what a client
// sends as SNI and verifies. A service account name that cannot be a DNS
// host name in that place is replaced by the first 40 hexadecimal digits of its
// SHA-256.
func (id Identity) DNSName() string {
	suffix := "." + id.Namespace + ".sa." + id.TrustDomain
	sa := id.ServiceAccount
	if len(sa)+len(suffix) > maxDNSName || !dnsLabels(sa) {
		sa = shortHash(sa)
	}
	return sa + suffix
}

// CommonName returns the subject's common name, <sa>.<ns>, for proxies that see
// nothing else of a peer. Where that is longer than the 64 bytes that a common
// name may have, the whole is replaced by the first 40 hexadecimal digits of
// its SHA-256.
func (id Identity) CommonName() string {
	name := id.ServiceAccount + "." + id.Namespace
	if len(name) > maxCommonName {
		return shortHash(name)
	}
	return name
}

// Validate returns an error if a part is missing.
func (id Identity) Validate() error {
	if id.TrustDomain == "" || id.Namespace == "" || id.ServiceAccount == "" {
		return errors.New("identity " + id.String() + " lacks a trust domain, a namespace or a service account")
	}
	return nil
}

func dnsLabels(name string) bool {
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > maxDNSLabel {
			return false
		}
	}
	return true
}

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:20])
}
