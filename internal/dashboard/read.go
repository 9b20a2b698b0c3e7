package dashboard

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
	"time"

	"github.com/outrigger-mesh/outrigger/internal/debug"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// errUnknown is the error of a request for something that no controller knows.
var errUnknown = errors.New("no controller knows it")

// mesh answers with the mesh and its traffic. If only some controllers answer, it shows what
// they say.
func (d *dashboard) mesh(r *http.Request) (any, error) {
	page, proxies, err := d.read(r.Context())
	if page == nil {
		return nil, err
	}
	shown := assemble(page, proxies)
	shown.Time = time.Now().UTC()
	shown.warn(err)
	edges, done, err := d.meter.last()
	shown.warn(err)
	shown.Measured = done && (err == nil || len(edges) > 0)
	shown.Edges = d.rules.explain(r.Context(), append(shown.Edges, edges...), shown)
	return shown, nil
}

func (m *Mesh) warn(err error) {
	if err != nil {
		m.Warnings = append(m.Warnings, strings.Split(err.Error(), "\n")...)
	}
}

// read returns the mesh as one controller describes it, and the proxies of all controllers by
// pod. The page is nil only with an error.
func (d *dashboard) read(ctx context.Context) (*debug.MeshPage, map[mesh.Name]registry.Proxy, error) {
	var page *debug.MeshPage
	proxies := make(map[mesh.Name]registry.Proxy)
	err := d.options.Ask(ctx, debug.MeshPath, func(controller string, text []byte) error {
		var answer debug.MeshPage
		if err := json.Unmarshal(text, &answer); err != nil {
			return fmt.Errorf("controller %s: %w; are its version and that of this program the same?", controller, err)
		}
		page = &answer
		for _, p := range answer.Proxies {
			// While a proxy changes its controller, both list it.
			if known, ok := proxies[p.Name]; !ok || known.Connected.Before(p.Connected) {
				proxies[p.Name] = p
			}
		}
		return nil
	})
	if page == nil && err == nil {
		err = errors.New("no controller has answered")
	}
	return page, proxies, err
}

// assemble groups pods to workloads.
func assemble(page *debug.MeshPage, proxies map[mesh.Name]registry.Proxy) *Mesh {
	shown := &Mesh{
		Workloads: []Workload{}, Services: []Service{}, Edges: []Edge{}, Warnings: []string{},
		Splits: append([]debug.MeshSplit{}, page.Splits...), Problems: append([]mesh.Problem{}, page.Problems...),
	}
	at := make(map[string]int)
	of := make(map[mesh.Name]string)
	for _, pod := range page.Pods {
		kind, name := cmp.Or(pod.Owner.Kind, "pod"), cmp.Or(pod.Owner.Name, pod.Name.Name)
		id := pod.Namespace + "/" + name
		of[pod.Name] = id
		i, ok := at[id]
		if !ok {
			i = len(shown.Workloads)
			at[id] = i
			shown.Workloads = append(shown.Workloads, Workload{
				ID: id, Namespace: pod.Namespace, Name: name, Kind: kind, ServiceAccount: pod.ServiceAccount, Classes: []string{},
			})
		}
		w := &shown.Workloads[i]
		w.Pods = append(w.Pods, Pod{Name: pod.Name.Name, Class: pod.Class, Ready: pod.Ready, State: proxies[pod.Name].State})
		if pod.Class != "" && !slices.Contains(w.Classes, pod.Class) {
			w.Classes = append(w.Classes, pod.Class)
			slices.Sort(w.Classes)
		}
	}
	slices.SortFunc(shown.Workloads, func(a, b Workload) int { return cmp.Compare(a.ID, b.ID) })
	for _, service := range page.Services {
		shown.Services = append(shown.Services, serviceOf(service, of))
	}
	return shown
}

func serviceOf(service debug.MeshService, workloads map[mesh.Name]string) Service {
	s := Service{
		ID: service.String(), Namespace: service.Namespace, Name: service.Name.Name,
		Ports: []ServicePort{}, Workloads: []string{},
	}
	for _, port := range service.Ports {
		s.Ports = append(s.Ports, ServicePort{port.Name, port.Port, string(port.Protocol)})
	}
	for _, pod := range service.Pods {
		if id, ok := workloads[mesh.Name{Namespace: service.Namespace, Name: pod}]; ok {
			s.Workloads = append(s.Workloads, id)
		}
	}
	slices.Sort(s.Workloads)
	s.Workloads = slices.Compact(s.Workloads)
	return s
}

// pod answers with the proxy of the pod that ?pod=NAMESPACE/NAME names, as the controller
// describes it that it is connected to.
func (d *dashboard) pod(r *http.Request) (any, error) {
	pod := r.URL.Query().Get("pod")
	var shown *PodPage
	err := d.options.Ask(r.Context(), debug.ProxyPath+"?pod="+url.QueryEscape(pod), func(controller string, text []byte) error {
		if text == nil {
			return nil
		}
		answer := &PodPage{Policies: []mesh.ObjectRef{}}
		if err := json.Unmarshal(text, answer); err != nil {
			return fmt.Errorf("controller %s: %w", controller, err)
		}
		answer.Controller = controller
		if shown == nil || answer.Proxy != nil {
			shown = answer
		}
		return nil
	})
	if shown == nil {
		return nil, cmp.Or(err, fmt.Errorf("pod %q has no proxy in the mesh: %w", pod, errUnknown))
	}
	page, _, err := d.read(r.Context())
	if page == nil {
		return nil, err
	}
	shown.Problems = problemsOf(pod, shown.Policies, page.Problems)
	return shown, nil
}

// problemsOf returns the problems of a pod and of the policies.
func problemsOf(pod string, policies []mesh.ObjectRef, all []mesh.Problem) []mesh.Problem {
	found := []mesh.Problem{}
	for _, problem := range all {
		o := problem.Object
		if o.Kind == "Pod" && o.Namespace+"/"+o.Name == pod || slices.Contains(policies, o) {
			found = append(found, problem)
		}
	}
	return found
}

// explain answers the question of ?from=&to=&method=&path= as 'outrigger explain' does.
func (d *dashboard) explain(r *http.Request) (any, error) {
	asked := r.URL.Query()
	return explained(r.Context(), d.options.Ask, asked.Get("from"), asked.Get("to"), asked.Get("method"), asked.Get("path"))
}

// explained returns the explanation of the first controller that has one.
func explained(ctx context.Context, ask Ask, from, to, method, path string) (json.RawMessage, error) {
	var found json.RawMessage
	err := ask(ctx, debug.ExplainQuery(from, to, method, path), func(_ string, text []byte) error {
		if found == nil && text != nil {
			found = text
		}
		return nil
	})
	if found == nil {
		return nil, cmp.Or(err, fmt.Errorf("a request from %q to %q can't be explained: %w", from, to, errUnknown))
	}
	return found, nil
}
