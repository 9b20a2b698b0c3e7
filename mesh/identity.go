package mesh

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Identity is the identity of a workload: a service account of a namespace in a trust
// domain. Workloads with equal identities are indistinguishable to their peers.
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

// Covers reports whether id stands for the peer, which must be complete: it is equal, or it has no
// ServiceAccount and stands for all of its namespace, or has no Namespace either and stands for
// all of its trust domain. An Identity without a TrustDomain, or with a ServiceAccount and no
// Namespace, stands for nobody.
func (id Identity) Covers(peer Identity) bool {
	switch {
	case id.TrustDomain == "" || id.TrustDomain != peer.TrustDomain || peer.Validate() != nil:
		return false
	case id.Namespace == "":
		return id.ServiceAccount == ""
	}
	return id.Namespace == peer.Namespace && (id.ServiceAccount == "" || id.ServiceAccount == peer.ServiceAccount)
}

// GroupPrefix returns the beginning of the SPIFFE IDs for which id stands if it has no
// ServiceAccount, see Covers. It returns false for an Identity with a ServiceAccount, or without a
// TrustDomain.
func (id Identity) GroupPrefix() (string, bool) {
	switch {
	case id.TrustDomain == "" || id.ServiceAccount != "":
		return "", false
	case id.Namespace == "":
		return "spiffe://" + id.TrustDomain + "/ns/", true
	}
	return "spiffe://" + id.TrustDomain + "/ns/" + id.Namespace + "/sa/", true
}

// ParseIdentity parses a SPIFFE ID in the form written by String. Service account names
// may contain dots. A trust domain, namespace or service account that is empty or
// contains a slash is an error.
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
	// maxCommonName is X.520's limit for a common name, in bytes.
	maxCommonName = 64
)

// DNSName returns the DNS SAN, <sa>.<ns>.sa.<trust domain>, which clients send as SNI and
// verify. If that is not a host name in lower case or exceeds 253 bytes, the DNSName is
// <hash>.sa.<trust domain>. The hash is one label of 52 bytes, the SHA-256 of namespace
// and service account in base32. All other names have at least two labels in this place,
// so two identities of a trust domain never share a name.
func (id Identity) DNSName() string {
	suffix := ".sa." + id.TrustDomain
	if name := id.account(); name != "" && len(name)+len(suffix) <= maxDNSName {
		return name + suffix
	}
	return id.hash() + suffix
}

// CommonName returns the subject's common name, <sa>.<ns>, for proxies that see no other
// part of a peer's certificate. If that is not a host name in lower case or exceeds 64
// bytes, the CommonName is the hash described at DNSName, which contains no dot.
func (id Identity) CommonName() string {
	if name := id.account(); name != "" && len(name) <= maxCommonName {
		return name
	}
	return id.hash()
}

// account returns <sa>.<ns>, or "" if that is not a host name or would be ambiguous. A
// namespace has no dots, so the last dot separates the two parts.
func (id Identity) account() string {
	if !isDNSLabel(id.Namespace) {
		return ""
	}
	for label := range strings.SplitSeq(id.ServiceAccount, ".") {
		if !isDNSLabel(label) {
			return ""
		}
	}
	return id.ServiceAccount + "." + id.Namespace
}

// hash replaces the name of an account that has no valid one. The length prefix makes the
// hashed text unique to the account.
func (id Identity) hash() string {
	sum := sha256.Sum256([]byte(strconv.Itoa(len(id.Namespace)) + "/" + id.Namespace + "/" + id.ServiceAccount))
	return lowerBase32.EncodeToString(sum[:])
}

var lowerBase32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Validate returns an error if a part is missing.
func (id Identity) Validate() error {
	if id.TrustDomain == "" || id.Namespace == "" || id.ServiceAccount == "" {
		return errors.New("identity " + id.String() + " lacks a trust domain, a namespace or a service account")
	}
	return nil
}

// isDNSLabel reports whether a text is an RFC 1123 host name label in lower case.
func isDNSLabel(text string) bool {
	if text == "" || len(text) > maxDNSLabel || text[0] == '-' || text[len(text)-1] == '-' {
		return false
	}
	for i := range len(text) {
		if c := text[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
