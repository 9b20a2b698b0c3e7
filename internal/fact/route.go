package fact

import (
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Route is a route of Gateway API with services as parents (HTTPRoute, GRPCRoute).
type Route struct {
	mesh.Sealed
	mesh.Name
	Age
	// GRPC says that it is a GRPCRoute, which takes precedence over HTTPRoutes of the same
	// service port.
	GRPC    bool          `json:"grpc,omitempty"`
	Parents []RouteParent `json:"parents"`
	Rules   []RouteRule   `json:"rules"`
}

// RouteParent is a service whose traffic a Route governs.
type RouteParent struct {
	// Index is the parent's index in the object's list, which may have other kinds of
	// parents.
	Index   int       `json:"index"`
	Service mesh.Name `json:"service"`
	// Port is the service's port, and PortName its name: 0 and empty mean all HTTP ports.
	Port     uint16 `json:"port,omitempty"`
	PortName string `json:"portName,omitempty"`
}

// RouteRule is a rule of a Route.
type RouteRule struct {
	// Index is the rule's index in the object's list.
	Index int    `json:"index"`
	Name  string `json:"name,omitempty"`
	// Matches are the requests that the rule is for: one is enough.
	Matches []RouteMatch `json:"matches"`
	// Unusable says that part of the rule is invalid or not supported. All its requests
	// are then answered with 500.
	Unusable bool               `json:"unusable,omitempty"`
	Request  mesh.HeaderChanges `json:"request,omitzero"`
	Response mesh.HeaderChanges `json:"response,omitzero"`
	Rewrite  *mesh.Rewrite      `json:"rewrite,omitempty"`
	Redirect *mesh.Redirect     `json:"redirect,omitempty"`
	// Backends may be empty, for a Redirect or by mistake: requests are then answered with
	// 500.
	Backends []RouteBackend `json:"backends,omitempty"`
	// Timeout is for a request, 0 for no limit. If it is nil, the UpstreamSetting of the
	// parent applies.
	Timeout *time.Duration `json:"timeout,omitempty"`
}

// RouteMatch is a match of a Route. The match with the higher Precedence is asked first.
type RouteMatch struct {
	mesh.HTTPMatch
	Precedence Precedence `json:"precedence"`
}

// Precedence is the rank of a match, as Gateway API defines it. The first number that
// differs decides, and the higher one is asked first.
type Precedence [5]int

// RouteBackend is the share of one service.
type RouteBackend struct {
	Service mesh.Name `json:"service"`
	Port    uint16    `json:"port"`
	Weight  uint32    `json:"weight"`
	// Unusable says that the reference or its filters are invalid. Its share is answered
	// with 500.
	Unusable bool               `json:"unusable,omitempty"`
	Request  mesh.HeaderChanges `json:"request,omitzero"`
	Response mesh.HeaderChanges `json:"response,omitzero"`
}

// The reasons of Problems of routes, as Gateway API defines them.
const (
	// ReasonNoMatchingParent: there is no such service or port.
	ReasonNoMatchingParent = "NoMatchingParent"
	// ReasonConflicted: another kind of route takes precedence at the parent's port.
	ReasonConflicted = "Conflicted"
	// ReasonUnsupportedValue: a value is invalid or not supported.
	ReasonUnsupportedValue = "UnsupportedValue"
	// ReasonIncompatibleFilters: filters contradict each other.
	ReasonIncompatibleFilters = "IncompatibleFilters"
	// ReasonInvalidKind: a backend is not a Service.
	ReasonInvalidKind = "InvalidKind"
	// ReasonBackendNotFound: a backend does not exist.
	ReasonBackendNotFound = "BackendNotFound"
	// ReasonRefNotPermitted: a backend is in a namespace that the route must not refer to.
	ReasonRefNotPermitted = "RefNotPermitted"
	// ReasonUnsupportedProtocol: a backend does not speak HTTP.
	ReasonUnsupportedProtocol = "UnsupportedProtocol"
)
