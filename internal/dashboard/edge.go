package dashboard

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// edgeKey identifies an Edge.
type edgeKey struct{ client, service, server, protocol string }

// measured are the counts of an Edge, by second.
type measured struct {
	requests, failed, connections float64
	durations                     traffic.Histogram
	tls, denied                   map[string]float64
}

// edgesOf returns the edges of a report, sorted.
func edgesOf(report *traffic.Report) []Edge {
	accounts := accountsOf(report)
	found := make(map[edgeKey]*measured)
	for i := range report.Pods {
		pod := &report.Pods[i]
		if pod.Seconds == 0 {
			continue
		}
		for j := range pod.Flows {
			flow := &pod.Flows[j]
			key := keyOf(flow, accounts)
			if found[key] == nil {
				found[key] = &measured{tls: make(map[string]float64), denied: make(map[string]float64)}
			}
			found[key].add(&flow.Counts, pod.Seconds)
		}
	}
	edges := make([]Edge, 0, len(found))
	for key, m := range found {
		if e := m.edge(key); e.Rate > 0 || e.Refused > 0 {
			edges = append(edges, e)
		}
	}
	slices.SortFunc(edges, func(a, b Edge) int {
		return cmp.Or(cmp.Compare(a.Client, b.Client), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Server, b.Server), cmp.Compare(a.Protocol, b.Protocol))
	})
	return edges
}

// accountsOf returns the workload of each service account, or "" if there are several.
func accountsOf(report *traffic.Report) map[mesh.Name]string {
	of := make(map[mesh.Name]string)
	for i := range report.Pods {
		pod := &report.Pods[i]
		account := mesh.Name{Namespace: pod.Namespace, Name: pod.ServiceAccount}
		id := pod.Namespace + "/" + cmp.Or(pod.Owner.Name, pod.Name.Name)
		if known, ok := of[account]; ok && known != id {
			id = ""
		}
		of[account] = id
	}
	return of
}

// keyOf returns the edge that a flow belongs to. What both ends report stays two edges: the
// client knows the service, and the server who it is.
func keyOf(f *traffic.Flow, accounts map[mesh.Name]string) edgeKey {
	key := edgeKey{protocol: f.Protocol}
	if f.Reporter == telemetry.ReporterSource {
		key.client = id(f.Source.Namespace, f.Source.Workload)
		key.service = id(f.Destination.Namespace, f.Service)
		return key
	}
	key.client = cmp.Or(
		id(f.Source.Namespace, f.Source.Workload),
		accounts[mesh.Name{Namespace: f.Source.Namespace, Name: f.Source.ServiceAccount}],
	)
	key.server = id(f.Destination.Namespace, f.Destination.Workload)
	return key
}

// id returns the ID of a workload or service, or "" if a part is unknown.
func id(namespace, name string) string {
	if namespace == "" || name == "" {
		return ""
	}
	return namespace + "/" + name
}

func (m *measured) add(c *traffic.Counts, seconds float64) {
	m.requests += c.Requests / seconds
	m.failed += c.Failed / seconds
	m.connections += c.Connections / seconds
	m.durations.Add(c.Durations, 1)
	for kind, n := range c.TLS {
		m.tls[kind] += n / seconds
	}
	for reason, n := range c.Denied {
		m.denied[reason] += n / seconds
	}
}

func (m *measured) edge(key edgeKey) Edge {
	e := Edge{
		Client: key.client, Service: key.service, Server: key.server, Protocol: key.protocol,
		Rate: m.requests + m.connections, Success: 1, TLS: m.weakest(),
		P50: m.latency(0.5), P95: m.latency(0.95), P99: m.latency(0.99),
	}
	if m.requests > 0 {
		e.Success = 1 - m.failed/m.requests
	}
	reasons := slices.SortedFunc(maps.Keys(m.denied), func(a, b string) int {
		return cmp.Or(cmp.Compare(m.denied[b], m.denied[a]), strings.Compare(a, b))
	})
	for _, reason := range reasons {
		e.Refused += m.denied[reason]
	}
	if e.Refused > 0 {
		e.Reason = reasons[0]
	}
	return e
}

// weakest returns the weakest kind of TLS that was used, or "" if there was no traffic.
func (m *measured) weakest() string {
	for _, kind := range []string{telemetry.NoTLS, telemetry.ServerTLS, telemetry.MutualTLS} {
		if m.tls[kind] > 0 {
			return kind
		}
	}
	return ""
}

// latency returns a quantile in milliseconds, or 0 without answers.
func (m *measured) latency(share float64) float64 {
	if seconds := m.durations.Quantile(share); seconds != nil {
		return *seconds * 1000
	}
	return 0
}
