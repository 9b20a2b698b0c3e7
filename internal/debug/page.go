package debug

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// The paths of the pages that do not belong to drivers.
const (
	ProxyPath        = "/debug/proxy"
	TrafficPath      = "/debug/traffic"
	MeshPath         = "/debug/mesh"
	ExplainPath      = "/debug/explain"
	ConfigPath       = "/debug/config"
	CertsPath        = "/debug/certs"
	policiesPath     = "/debug/policies"
	ProblemsPath     = "/debug/problems"
	namespacesPath   = "/debug/namespaces"
	featureFlagsPath = "/debug/feature-flags"
	pprofPath        = "/debug/pprof/"
)

// Catalog is the mesh as it is now. It is safe for use by many goroutines.
type Catalog interface {
	// Snapshot returns the complete mesh. It is never nil.
	Snapshot() *fact.Snapshot
	// View returns what a proxy may see, or false if there is none.
	View(proxyUID string) (*mesh.View, bool)
	// Facts returns the facts of the objects of some kinds, in a stable order.
	Facts(kinds ...string) []fact.Fact
}

// Sources provide the contents of the pages. All fields are required.
type Sources struct {
	Catalog Catalog
	Config  driver.Configurator
	// Proxies returns the connected proxies, sorted.
	Proxies func() []registry.Proxy
	// Problems returns the problems that are not in the Snapshot.
	Problems func() []mesh.Problem
	// Certificates returns the public data of issuers and certificates.
	Certificates func() any
	// Traffic reads the proxies of some namespaces, or of all, twice with a period in
	// between.
	Traffic func(ctx context.Context, period time.Duration, namespaces []string) (*traffic.Report, error)
}

// Restricted returns the pages that authorized users may read even if the others are off.
func Restricted(s Sources) map[string]http.Handler {
	all := Pages(s)
	return map[string]http.Handler{
		ProxyPath: all[ProxyPath], TrafficPath: all[TrafficPath], MeshPath: all[MeshPath], ExplainPath: all[ExplainPath],
	}
}

// Pages returns the pages of core by their paths.
func Pages(s Sources) map[string]http.Handler {
	pages := map[string]http.Handler{
		ProxyPath:        page(s.proxy),
		TrafficPath:      http.HandlerFunc(s.traffic),
		MeshPath:         page(s.mesh),
		ExplainPath:      page(s.explanation),
		ConfigPath:       page(s.config),
		CertsPath:        page(func(*http.Request) (any, error) { return s.Certificates(), nil }),
		policiesPath:     page(s.policies),
		ProblemsPath:     page(s.problems),
		namespacesPath:   page(s.namespaces),
		featureFlagsPath: page(s.featureFlags),
		pprofPath:        http.HandlerFunc(pprof.Index),
	}
	pages[pprofPath+"cmdline"] = http.HandlerFunc(pprof.Cmdline)
	pages[pprofPath+"profile"] = http.HandlerFunc(pprof.Profile)
	pages[pprofPath+"symbol"] = http.HandlerFunc(pprof.Symbol)
	pages[pprofPath+"trace"] = http.HandlerFunc(pprof.Trace)
	return pages
}

// NothingHeader is a response header. It distinguishes a page that has nothing of the
// requested name from a page that does not exist.
const NothingHeader = "Outrigger-Nothing"

// notFound is the error of a page that has nothing of the requested name.
type notFound struct{ error }

// page answers with a value as JSON.
func page(get func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		value, err := get(r)
		if errors.As(err, &notFound{}) {
			w.Header().Set(NothingHeader, "true")
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		var text []byte
		if err == nil {
			text, err = json.MarshalIndent(value, "", "  ")
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(text, '\n'))
	})
}

// ProxyPage is the page of one proxy.
type ProxyPage struct {
	// Proxy is nil if it is not connected to this controller.
	Proxy *registry.Proxy `json:"proxy,omitempty"`
	// View is what the proxy may see. Configuration is its driver's translation of the
	// View: contents by file name.
	View          *mesh.View        `json:"view"`
	Configuration map[string]string `json:"configuration,omitempty"`
	// Note says why there is no Configuration.
	Note string `json:"note,omitempty"`
	// Policies are the traffic policies that decide about its requests.
	Policies []mesh.ObjectRef `json:"policies,omitempty"`
}

// proxy lists the connected proxies, or shows the one that ?pod=NAMESPACE/NAME names.
func (s Sources) proxy(r *http.Request) (any, error) {
	proxies := s.Proxies()
	if !r.URL.Query().Has("pod") {
		return proxies, nil
	}
	pod := r.URL.Query().Get("pod")
	var shown ProxyPage
	for i := range proxies {
		if proxies[i].Name.String() == pod {
			shown.Proxy = &proxies[i]
			shown.View, _ = s.Catalog.View(proxies[i].UID)
		}
	}
	if shown.View == nil {
		shown.View = s.viewOf(pod)
	}
	if shown.View == nil && shown.Proxy == nil {
		return nil, notFound{errors.New("no pod " + pod + " has a proxy in the mesh; name one as ?pod=NAMESPACE/NAME")}
	}
	if shown.View != nil {
		shown.Configuration, shown.Note = configuration(shown.View)
		shown.Policies = s.policiesOf(shown.View)
	}
	return shown, nil
}

// viewOf returns the View of the pod's proxy, or nil if it has none.
func (s Sources) viewOf(pod string) *mesh.View {
	for _, view := range s.Catalog.Snapshot().Views.All() {
		if view.Proxy.Name.String() == pod {
			return view
		}
	}
	return nil
}

func configuration(view *mesh.View) (files map[string]string, note string) {
	d, err := sidecar.Capabilities(view.Proxy.Class)
	if err != nil {
		return nil, err.Error()
	}
	if d.Translator == nil {
		return nil, "driver " + view.Proxy.Class + " cannot say what a proxy gets"
	}
	translated, err := d.Translator.Translate(view)
	if err != nil {
		return nil, err.Error()
	}
	files = make(map[string]string, len(translated))
	for _, file := range translated {
		files[file.Name] = string(file.Content)
	}
	return files, ""
}

// config shows the MeshConfig and the configuration resolved from it.
func (s Sources) config(*http.Request) (any, error) {
	object := s.Config.GetMeshConfig().DeepCopy()
	object.ManagedFields = nil
	delete(object.Annotations, lastApplied)
	if object.Spec.Observability.RemoteLogging.Authorization != "" {
		object.Spec.Observability.RemoteLogging.Authorization = "(hidden)"
	}
	type class struct {
		Image           string `json:"image,omitempty"`
		InitImage       string `json:"initImage,omitempty"`
		ProxyServerPort uint32 `json:"proxyServerPort,omitempty"`
		DisabledMTLS    bool   `json:"disabledMTLS,omitempty"`
	}
	classes := make(map[string]class)
	for _, name := range sidecar.Drivers() {
		classes[name] = class{
			Image: s.Config.GetSidecarImage(name), InitImage: s.Config.GetInitContainerImage(name),
			ProxyServerPort: s.Config.GetProxyServerPort(name), DisabledMTLS: s.Config.IsMTLSDisabled(name),
		}
	}
	return struct {
		MeshConfig   *v1alpha2.MeshConfig `json:"meshConfig"`
		DefaultClass string               `json:"defaultClass"`
		Classes      map[string]class     `json:"classes"`
		Settings     *mesh.Settings       `json:"settings"`
	}{object, s.Config.GetSidecarClass(), classes, s.Catalog.Snapshot().Settings}, nil
}

// lastApplied is kubectl's copy of the whole object.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// object is an object's content with its problems.
type object struct {
	mesh.ObjectRef
	Says     mesh.Digester  `json:"says,omitempty"`
	Problems []mesh.Problem `json:"problems,omitempty"`
}

func (s Sources) objects(kinds ...string) []object {
	problems := s.Catalog.Snapshot().Problems
	list := []object{}
	for _, f := range s.Catalog.Facts(kinds...) {
		o := object{ObjectRef: f.Object, Says: f.Content}
		if found, ok := problems.Get(f.Object.String()); ok {
			o.Problems = found.List
		}
		list = append(list, o)
	}
	return list
}

// policies shows all traffic policies.
func (s Sources) policies(*http.Request) (any, error) {
	return s.objects(source.Policies()...), nil
}

// namespaces shows the namespaces of the mesh.
func (s Sources) namespaces(*http.Request) (any, error) {
	list := []object{}
	for _, o := range s.objects("Namespace") {
		if ns, ok := o.Says.(*fact.Namespace); ok && ns.Member {
			list = append(list, o)
		}
	}
	return list, nil
}

// problems shows the problems of all objects.
func (s Sources) problems(*http.Request) (any, error) { return s.allProblems(), nil }

func (s Sources) allProblems() []mesh.Problem {
	list := append([]mesh.Problem{}, s.Problems()...)
	for _, found := range s.Catalog.Snapshot().Problems.All() {
		list = append(list, found.List...)
	}
	slices.SortFunc(list, func(a, b mesh.Problem) int {
		return cmp.Or(strings.Compare(a.Object.Namespace, b.Object.Namespace), strings.Compare(a.String(), b.String()))
	})
	return list
}

// featureFlags shows the flags of the MeshConfig, including unset ones.
func (s Sources) featureFlags(*http.Request) (any, error) {
	flags := make(map[string]any)
	text, err := json.Marshal(s.Config.GetMeshConfig().Spec.FeatureFlags)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &flags); err != nil {
		return nil, err
	}
	settings := s.Catalog.Snapshot().Settings
	return map[string]any{
		"set": flags,
		"inForce": map[string]bool{
			"enableEgressPolicy": settings.EgressPolicy, "enableIngressBackendPolicy": settings.IngressPolicy,
			"enableRetryPolicy": settings.RetryPolicy, "enableSidecarActiveHealthChecks": settings.HealthChecks,
		},
	}, nil
}
