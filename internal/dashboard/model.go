package dashboard

import (
	"encoding/json"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Mesh is the answer to GET api/mesh: the mesh at one moment. Lists are sorted and never
// null.
type Mesh struct {
	Time      time.Time         `json:"time"`
	Workloads []Workload        `json:"workloads"`
	Services  []Service         `json:"services"`
	Splits    []debug.MeshSplit `json:"splits"`
	Edges     []Edge            `json:"edges"`
	Problems  []mesh.Problem    `json:"problems"`
	// Measured says that Edges are measured; otherwise nothing can be said about traffic.
	Measured bool `json:"measured"`
	// Warnings say what could not be read.
	Warnings []string `json:"warnings"`
}

// Workload is a group of pods with the same owner, such as a Deployment.
type Workload struct {
	// ID is namespace/name, to which edges refer.
	ID        string `json:"id"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Kind is the kind of the owner in lower case, or "pod" for a pod without one.
	Kind           string `json:"kind"`
	ServiceAccount string `json:"serviceAccount"`
	// Classes are the classes of the sidecars. Pods without one add none.
	Classes []string `json:"classes"`
	Pods    []Pod    `json:"pods"`
}

// Pod is a pod of a Workload.
type Pod struct {
	Name  string `json:"name"`
	Class string `json:"class,omitempty"`
	Ready bool   `json:"ready"`
	// State is that of its proxy, or empty if the proxy is not connected.
	State registry.State `json:"state,omitempty"`
}

// Service is a service of the mesh.
type Service struct {
	// ID is namespace/name, to which edges and splits refer.
	ID        string        `json:"id"`
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"`
	Ports     []ServicePort `json:"ports"`
	// Workloads are the IDs of the workloads behind it.
	Workloads []string `json:"workloads"`
}

// ServicePort is a port of a Service.
type ServicePort struct {
	Name     string `json:"name,omitempty"`
	Port     uint16 `json:"port"`
	Protocol string `json:"protocol"`
}

// Edge is the traffic from one workload to a service or a workload. Its ends are IDs.
type Edge struct {
	// Client is the calling workload, empty if it is not known.
	Client string `json:"client,omitempty"`
	// Service is the service that was called, and Server the workload that was called. A
	// client's proxy knows the former, a server's the latter.
	Service  string `json:"service,omitempty"`
	Server   string `json:"server,omitempty"`
	Protocol string `json:"protocol"`
	// Rate is requests per second, or connections of a protocol that is not HTTP.
	Rate float64 `json:"rate"`
	// Success is the share of requests that were not answered with a server error, 0 to 1.
	Success float64 `json:"success"`
	// P50, P95 and P99 are latencies in milliseconds. They are 0 if there were no answers.
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
	// TLS is "mutual", "tls", "none", or empty if unknown.
	TLS string `json:"tls,omitempty"`
	// Refused is the rate of refused requests and connections, and Reason why they were
	// refused: a word of the metric outrigger_denied_total.
	Refused float64 `json:"refused,omitempty"`
	Reason  string  `json:"reason,omitempty"`
	// Rule says which rule refused, in the words of 'outrigger explain'. It is empty if
	// nothing was refused.
	Rule []string `json:"rule,omitempty"`
}

// PodPage is the answer to GET api/pod: a pod's proxy.
type PodPage struct {
	Controller string `json:"controller"`
	// Proxy is nil if the proxy is not connected.
	Proxy *registry.Proxy `json:"proxy,omitempty"`
	// View is the part of the mesh that the proxy may see, and Configuration what its driver
	// makes of it: contents by file name. Note says why there is none.
	View          json.RawMessage   `json:"view"`
	Configuration map[string]string `json:"configuration,omitempty"`
	Note          string            `json:"note,omitempty"`
	// Policies are the traffic policies that decide about its requests, and Problems those
	// of the pod, of these policies and of the services.
	Policies []mesh.ObjectRef `json:"policies"`
	Problems []mesh.Problem   `json:"problems"`
}
