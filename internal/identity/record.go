package identity

import (
	"crypto/x509"
	"slices"
	"sync"
	"time"
)

// defaultMaxRecords is the default number of remembered certificates, about 4 MiB.
const defaultMaxRecords = 10_000

// Issued is a certificate that was issued.
type Issued struct {
	// Identity is the URI of a workload; empty for the controller's own certificate.
	Identity string `json:"identity,omitempty"`
	// Pod is the pod's namespace and name, PodUID its UID.
	Pod    string `json:"pod,omitempty"`
	PodUID string `json:"podUID,omitempty"`
	// DNSNames are the certificate's.
	DNSNames []string `json:"dnsNames,omitempty"`
	// Serial is the serial number in hexadecimal digits.
	Serial    string    `json:"serial"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
	// Issuer is the subject of the CA that signed it.
	Issuer string `json:"issuer"`
}

func describe(leaf *x509.Certificate) Issued {
	return Issued{
		DNSNames: leaf.DNSNames, Serial: leaf.SerialNumber.Text(16), Issuer: leaf.Issuer.String(),
		NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter,
	}
}

// record remembers issued certificates until they expire or there are too many.
type record struct {
	max int

	mu     sync.Mutex
	issued []Issued
}

func (r *record) add(issued Issued) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.issued) >= r.max {
		r.expire()
	}
	if len(r.issued) >= r.max {
		// Drop several at once, so that not every call moves all records.
		r.issued = slices.Delete(r.issued, 0, max(1, r.max/8))
	}
	r.issued = append(r.issued, issued)
}

// expire drops expired certificates. The caller holds the lock.
func (r *record) expire() {
	now := time.Now()
	r.issued = slices.DeleteFunc(r.issued, func(i Issued) bool { return !i.NotAfter.After(now) })
}

// list returns the unexpired certificates, oldest first.
func (r *record) list() []Issued {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire()
	return slices.Clone(r.issued)
}
