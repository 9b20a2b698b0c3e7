package debug

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/explain"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// MeshPage describes the mesh for the dashboard. All lists are sorted.
type MeshPage struct {
	Pods     []MeshPod     `json:"pods"`
	Services []MeshService `json:"services"`
	Splits   []MeshSplit   `json:"splits"`
	// Policies are all traffic policies.
	Policies []mesh.ObjectRef `json:"policies"`
	Problems []mesh.Problem   `json:"problems"`
	// Proxies are those that are connected to this controller.
	Proxies []registry.Proxy `json:"proxies"`
}

// MeshPod is a pod of the mesh.
type MeshPod struct {
	mesh.Name
	// Owner is empty for a pod without a controller.
	Owner          fact.Owner `json:"owner,omitzero"`
	ServiceAccount string     `json:"serviceAccount"`
	// Class is the class of its sidecar, empty if it has none.
	Class string `json:"class,omitempty"`
	Ready bool   `json:"ready"`
}

// MeshService is a service of the mesh.
type MeshService struct {
	mesh.Name
	Ports []fact.PortSpec `json:"ports"`
	// Pods are the names of the pods behind it, in its namespace.
	Pods []string `json:"pods"`
}

// MeshSplit is a route that divides its requests or connections between several services.
type MeshSplit struct {
	// Service is the service port that clients call, and Route the object that divides its
	// traffic, as namespace/name.
	Service mesh.ServicePort `json:"service"`
	Route   string           `json:"route"`
	Shares  []MeshShare      `json:"shares"`
}

// MeshShare is the share of one service of a split.
type MeshShare struct {
	Service mesh.Name `json:"service"`
	Weight  uint32    `json:"weight"`
}

// mesh shows the whole mesh.
func (s Sources) mesh(*http.Request) (any, error) {
	snapshot := s.Catalog.Snapshot()
	shown := MeshPage{
		Pods: []MeshPod{}, Services: []MeshService{}, Policies: []mesh.ObjectRef{},
		Splits: splits(snapshot), Proxies: s.Proxies(), Problems: s.allProblems(),
	}
	for _, w := range snapshot.Workloads.All() {
		if !w.Ended {
			shown.Pods = append(shown.Pods, MeshPod{w.Name, w.Owner, w.ServiceAccount, w.Class, w.Ready})
		}
	}
	slices.SortFunc(shown.Pods, func(a, b MeshPod) int { return a.Name.Compare(b.Name) })
	behind := podsBehind(s.Catalog.Facts("EndpointSlice"))
	for _, service := range snapshot.Services.All() {
		shown.Services = append(shown.Services, MeshService{service.Name, service.Ports, behind[service.Name]})
	}
	slices.SortFunc(shown.Services, func(a, b MeshService) int { return a.Name.Compare(b.Name) })
	for _, policy := range s.Catalog.Facts(source.Policies()...) {
		shown.Policies = append(shown.Policies, policy.Object)
	}
	return shown, nil
}

// podsBehind returns the names of the pods behind each service, sorted.
func podsBehind(slicesOfServices []fact.Fact) map[mesh.Name][]string {
	behind := make(map[mesh.Name][]string)
	for _, f := range slicesOfServices {
		slice, ok := f.Content.(*fact.EndpointSlice)
		if !ok {
			continue
		}
		service := mesh.Name{Namespace: slice.Namespace, Name: slice.Service}
		for _, endpoint := range slice.Endpoints {
			if endpoint.Workload != "" {
				behind[service] = append(behind[service], endpoint.Workload)
			}
		}
	}
	for service, pods := range behind {
		slices.Sort(pods)
		behind[service] = slices.Compact(pods)
	}
	return behind
}

// splits returns the splits of all proxies' destinations. Proxies share destinations, so
// their number hardly matters.
func splits(snapshot *fact.Snapshot) []MeshSplit {
	outbounds := make(map[*mesh.Outbound]bool)
	destinations := make(map[*mesh.Destination]bool)
	found := make(map[string]MeshSplit)
	for _, view := range snapshot.Views.All() {
		if outbounds[view.Outbound] {
			continue
		}
		outbounds[view.Outbound] = true
		for _, d := range view.Outbound.Destinations.All() {
			if destinations[d] {
				continue
			}
			destinations[d] = true
			for _, split := range splitsOf(d, view.Outbound.Backends) {
				found[split.Service.String()+" "+split.Route] = split
			}
		}
	}
	list := make([]MeshSplit, 0, len(found))
	for _, split := range found {
		list = append(list, split)
	}
	slices.SortFunc(list, func(a, b MeshSplit) int {
		return cmp.Or(a.Service.Compare(b.Service), strings.Compare(a.Route, b.Route))
	})
	return list
}

// splitsOf returns the splits of one destination, also those that give everything to one
// other service. A route with several rules is shown by the first that divides the traffic.
func splitsOf(d *mesh.Destination, backends mesh.Table[*mesh.Backend]) []MeshSplit {
	var list []MeshSplit
	add := func(route string, shares []mesh.WeightedBackend) {
		split := MeshSplit{Service: d.Service, Route: route}
		for _, share := range shares {
			if backend, ok := backends.Get(share.Backend); ok {
				split.Shares = append(split.Shares, MeshShare{backend.Service.Name, share.Weight})
			}
		}
		known := slices.ContainsFunc(list, func(other MeshSplit) bool { return other.Route == route })
		divides := len(split.Shares) > 1 || len(split.Shares) == 1 && split.Shares[0].Service != d.Service.Name
		if divides && !known {
			list = append(list, split)
		}
	}
	for _, route := range d.Routes {
		add(route.Name(), route.Backends)
	}
	for _, server := range d.Servers {
		add(server.Origin.Name(), server.Backends)
	}
	add("", d.Backends)
	return list
}

// policiesOf returns the policies that a View was made of.
func (s Sources) policiesOf(view *mesh.View) []mesh.ObjectRef {
	used := make(map[string]bool)
	for _, object := range mesh.ObjectsOf(view.AllOrigins()) {
		used[object.String()] = true
	}
	list := []mesh.ObjectRef{}
	for _, policy := range s.Catalog.Facts(source.Policies()...) {
		if used[policy.Object.String()] {
			list = append(list, policy.Object)
		}
	}
	return list
}

// Answer returns the answer of a page to a path with a query, for callers in the same process.
// It is nil if the page has nothing of the requested name.
func (s Sources) Answer(ctx context.Context, path string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, path, http.NoBody)
	if err != nil {
		return nil, err
	}
	get, ok := map[string]func(*http.Request) (any, error){
		ProxyPath: s.proxy, MeshPath: s.mesh, ExplainPath: s.explanation, TrafficPath: s.report,
	}[r.URL.Path]
	if !ok {
		return nil, fmt.Errorf("there is no page %s", r.URL.Path)
	}
	value, err := get(r)
	if errors.As(err, &notFound{}) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(value)
}

// explanation answers the question of ?from=&to=&method=&path=, in the syntax of
// 'outrigger explain'.
func (s Sources) explanation(r *http.Request) (any, error) {
	asked := r.URL.Query()
	question, err := explain.NewQuestion(asked.Get("from"), asked.Get("to"), asked.Get("method"), asked.Get("path"), nil)
	if err != nil {
		return nil, notFound{err}
	}
	answer, err := explain.Explain(s.Catalog.Snapshot(), s.Catalog.Facts(append(source.Policies(), "Namespace", "Service", "EndpointSlice", "Pod")...), source.Policies(), question)
	if err != nil {
		return nil, notFound{err}
	}
	return answer, nil
}

// ExplainQuery returns the path of the page that explains a request, or a connection if the
// method is empty.
func ExplainQuery(from, to, method, path string) string {
	return ExplainPath + "?" + url.Values{"from": {from}, "to": {to}, "method": {method}, "path": {path}}.Encode()
}
