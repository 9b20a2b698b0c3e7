package fact

import (
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// RouteKind is a kind of Gateway API's routes.
type RouteKind string

// The kinds of routes. GRPCRoutes and HTTPRoutes are for ports with HTTP, TLSRoutes and
// TCPRoutes for all others.
const (
	GRPCRoute RouteKind = "GRPCRoute"
	HTTPRoute RouteKind = "HTTPRoute"
	TLSRoute  RouteKind = "TLSRoute"
	TCPRoute  RouteKind = "TCPRoute"
)

// RouteKinds returns the kinds of routes. At a service port the first kind takes precedence.
func RouteKinds() []RouteKind { return []RouteKind{GRPCRoute, HTTPRoute, TLSRoute, TCPRoute} }

// IsHTTP reports whether routes of the kind are for ports with HTTP.
func (k RouteKind) IsHTTP() bool { return k == GRPCRoute || k == HTTPRoute }

// Route is a route of Gateway API with services or gateways as parents.
type Route struct {
	mesh.Sealed
	mesh.Name
	Age
	Kind     RouteKind       `json:"kind"`
	Parents  []RouteParent   `json:"parents,omitempty"`
	Gateways []GatewayParent `json:"gateways,omitempty"`
	// Hosts are the server names of a TLSRoute and, for Gateways only, the hosts of requests, in
	// lower case: exact, or "*." and a suffix.
	Hosts []string    `json:"hosts,omitempty"`
	Rules []RouteRule `json:"rules"`
}

// ReferenceGrant allows routes and Gateways of other namespaces to refer to services and Secrets of its
// own.
type ReferenceGrant struct {
	mesh.Sealed
	mesh.Name
	From []Referrer `json:"from"`
	// Services and Secrets are names. AllNames among them means all.
	Services []string `json:"services,omitempty"`
	Secrets  []string `json:"secrets,omitempty"`
}

// Referrer is the kind and namespace of routes or Gateways.
type Referrer struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
}

// AllNames among names means all of them.
const AllNames = "*"

// RouteParent is a service whose traffic a Route governs.
type RouteParent struct {
	// Index is the parent's index in the object's list, which may have other kinds of
	// parents.
	Index   int       `json:"index"`
	Service mesh.Name `json:"service"`
	// Port is the service's port, and PortName its name: 0 and empty mean all ports for
	// which the kind of route is.
	Port     uint16 `json:"port,omitempty"`
	PortName string `json:"portName,omitempty"`
}

// RouteRule is a rule of a Route. A TLSRoute and a TCPRoute have one, with Backends only.
type RouteRule struct {
	// Index is the rule's index in the object's list.
	Index int    `json:"index"`
	Name  string `json:"name,omitempty"`
	// Matches are the requests that the rule is for: one is enough.
	Matches []RouteMatch `json:"matches"`
	// Unusable says that part of the rule is invalid or not supported. All its requests
	// are then answered with 500, and its connections closed.
	Unusable bool               `json:"unusable,omitempty"`
	Request  mesh.HeaderChanges `json:"request,omitzero"`
	Response mesh.HeaderChanges `json:"response,omitzero"`
	Rewrite  *mesh.Rewrite      `json:"rewrite,omitempty"`
	Redirect *mesh.Redirect     `json:"redirect,omitempty"`
	CORS     *mesh.CORS         `json:"cors,omitempty"`
	Mirrors  []RouteMirror      `json:"mirrors,omitempty"`
	// Backends may be empty, for a Redirect or by mistake: requests are then answered with
	// 500.
	Backends []RouteBackend `json:"backends,omitempty"`
	// Timeout is for a request, 0 for no limit. If it is nil, the UpstreamSetting of the
	// parent applies.
	Timeout *time.Duration `json:"timeout,omitempty"`
	// Retry applies instead of any RetryRule.
	Retry   *mesh.Retry   `json:"retry,omitempty"`
	Session *RouteSession `json:"session,omitempty"`
}

// RouteSession is the session persistence of a rule. Without a Name there is one for the rule.
type RouteSession struct {
	Name string `json:"name,omitempty"`
	// Header says that the Name is that of a header, in lower case, not of a cookie.
	Header bool `json:"header,omitempty"`
	// Path is that of the cookie. Without one it follows from the match.
	Path string `json:"path,omitempty"`
	// Lifetime and Permanent are as in mesh.Session.
	Lifetime  time.Duration `json:"lifetime,omitempty"`
	Permanent bool          `json:"permanent,omitempty"`
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

// RouteMirror is a service that gets copies of a share of the requests.
type RouteMirror struct {
	RouteBackend
	// Filter is the index of the filter in the rule's list.
	Filter      int    `json:"filter"`
	Numerator   uint32 `json:"numerator"`
	Denominator uint32 `json:"denominator"`
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
	// ReasonUnsupportedBackend: a backend has no cluster IP.
	ReasonUnsupportedBackend = "UnsupportedBackend"
	// ReasonUnsupportedProtocol: a backend's port has another protocol than the route.
	ReasonUnsupportedProtocol = "UnsupportedProtocol"
)
