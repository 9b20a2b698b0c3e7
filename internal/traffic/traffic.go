// Package traffic turns the metrics of proxies into what people ask about a mesh: how many
// requests a workload receives, how many of them fail, how long they take, and who sends
// them with which identity. Package telemetry has the metrics.
//
// It reads texts and computes, without I/O. The flow is: Parse makes a Sample of a proxy's
// metrics, Flows are the difference of two Samples of a proxy, a Report has the Flows of all
// proxies, and Rows and Edges are answers from a Report.
package traffic

import (
	"cmp"
	"maps"
	"slices"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Report is the traffic of a mesh during a period, as its proxies have counted it.
type Report struct {
	// Pods are the pods of the mesh that have a sidecar, sorted by name.
	Pods []Pod `json:"pods"`
	// Services are the services of the mesh, sorted by name.
	Services []mesh.Name `json:"services"`
}

// Pod is a pod with a sidecar, and what its proxy has counted.
type Pod struct {
	mesh.Name
	UID string `json:"uid,omitempty"`
	// Owner is the workload that the pod belongs to. Its Kind is empty if it is not known,
	// and the Owner if there is none.
	Owner          fact.Owner `json:"owner,omitzero"`
	ServiceAccount string     `json:"serviceAccount,omitempty"`
	Class          string     `json:"class,omitempty"`
	// Proxyless reports whether pods of the class run no proxy.
	Proxyless bool `json:"proxyless,omitempty"`
	// Audited reports whether policies for the pod are evaluated without being enforced.
	// CountsAudits reports whether its proxy was read and counts what they would refuse, which
	// also needs a class with the feature Audit.
	Audited      bool `json:"audited,omitempty"`
	CountsAudits bool `json:"countsAudits,omitempty"`
	// InboundTLS is Strict, Permissive, or TLSDisabled if its class has no mesh TLS. It is
	// empty if it is not known.
	InboundTLS string `json:"inboundTLS,omitempty"`
	// KeepsInboundTLS reports whether an annotation of the pod or its namespace sets the mode,
	// so that it does not follow the mesh-wide one.
	KeepsInboundTLS bool `json:"keepsInboundTLS,omitempty"`
	// Seconds is the length of the period. It is 0 if the proxy was not read or the period
	// has no beginning.
	Seconds float64 `json:"seconds,omitempty"`
	// Read reports whether the proxy was read, and Problem says why it could not be.
	Read    bool   `json:"read,omitempty"`
	Problem string `json:"problem,omitempty"`
	Flows   []Flow `json:"flows,omitempty"`
}

// TLSDisabled is the InboundTLS of pods whose class has no mesh TLS.
const TLSDisabled = "Disabled"

// Flow is the traffic between two ends, as the proxy at one of them has counted it.
type Flow struct {
	// Reporter is telemetry.ReporterSource or telemetry.ReporterDestination.
	Reporter    string `json:"reporter"`
	Source      End    `json:"source,omitzero"`
	Destination End    `json:"destination,omitzero"`
	// Service is the name of the service that was called, in the destination's namespace.
	// Proxies of servers do not know it.
	Service  string `json:"service,omitempty"`
	Protocol string `json:"protocol,omitempty"`
	Counts
}

// End is one end of a Flow. All fields of the end that does not report can be empty.
type End struct {
	Namespace      string `json:"namespace,omitempty"`
	Workload       string `json:"workload,omitempty"`
	ServiceAccount string `json:"serviceAccount,omitempty"`
}

// Counts are what happened between two ends. In a Row they are rates by second.
type Counts struct {
	// Requests are HTTP requests, and Failed those that failed through the fault of the
	// server or the network; see failed.
	Requests float64 `json:"requests,omitempty"`
	Failed   float64 `json:"failed,omitempty"`
	// Codes divides Requests by the status code or, for gRPC, by "grpc " and the status.
	Codes map[string]float64 `json:"codes,omitempty"`
	// TLS divides Requests and Connections by telemetry's kinds of TLS.
	TLS map[string]float64 `json:"tls,omitempty"`
	// Durations are those of the requests that were answered.
	Durations Histogram `json:"durations,omitzero"`
	// Connections are those of TCP.
	Connections float64 `json:"connections,omitempty"`
	// Received and Sent are bytes from the client and to the client.
	Received float64 `json:"received,omitempty"`
	Sent     float64 `json:"sent,omitempty"`
	Retries  float64 `json:"retries,omitempty"`
	// Denied counts requests and connections that a sidecar has refused, by reason.
	Denied map[string]float64 `json:"denied,omitempty"`
	// AuditDenied counts those that pass the access rules of permissive mode and would not
	// pass the audited ones, by reason.
	AuditDenied map[string]float64 `json:"auditDenied,omitempty"`
}

// add adds other counts, multiplied by a factor.
func (c *Counts) add(other *Counts, factor float64) {
	c.Requests += factor * other.Requests
	c.Failed += factor * other.Failed
	c.Connections += factor * other.Connections
	c.Received += factor * other.Received
	c.Sent += factor * other.Sent
	c.Retries += factor * other.Retries
	addTo(&c.Codes, other.Codes, factor)
	addTo(&c.TLS, other.TLS, factor)
	addTo(&c.Denied, other.Denied, factor)
	addTo(&c.AuditDenied, other.AuditDenied, factor)
	c.Durations.Add(other.Durations, factor)
}

func addTo(sums *map[string]float64, added map[string]float64, factor float64) {
	for key, n := range added {
		increase(sums, key, factor*n)
	}
}

func increase(sums *map[string]float64, key string, amount float64) {
	if *sums == nil {
		*sums = make(map[string]float64)
	}
	(*sums)[key] += amount
}

func total(values map[string]float64) float64 {
	sum := 0.0
	// In order, so that equal counts have equal sums.
	for _, key := range slices.Sorted(maps.Keys(values)) {
		sum += values[key]
	}
	return sum
}

// isZero reports whether nothing was counted.
func (c *Counts) isZero() bool {
	return c.Requests == 0 && c.Connections == 0 && c.Received == 0 && c.Sent == 0 && c.Retries == 0 &&
		len(c.Denied)+len(c.AuditDenied) == 0 && c.Durations.total() == 0
}

func compareEnds(a, b End) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.ServiceAccount, b.ServiceAccount))
}
