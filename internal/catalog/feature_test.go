package catalog

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// features are those of a mesh in which Envoy can do everything, and others nothing.
func features(class string) []mesh.Feature {
	if class == "envoy" {
		return mesh.Features()
	}
	return nil
}

// missing is a feature and a class that lacks it.
type missing struct {
	class   string
	feature mesh.Feature
}

var lackText = regexp.MustCompile(`proxies of class (\S+), .* lack the feature (\w+):`)

// needsAreTold holds that what the Views of s ask for and a class lacks is a Problem of an object of
// s, and that each such Problem is of a View of asking.
func needsAreTold(t *testing.T, asking, s *fact.Snapshot) {
	t.Helper()
	needs := func(s *fact.Snapshot) map[missing]string {
		needed := map[missing]string{}
		for _, view := range s.Views.All() {
			has := features(view.Proxy.Class)
			for _, feature := range view.Needs() {
				// No object asks for the access log.
				if !slices.Contains(has, feature) && feature != mesh.FeatureAccessLogs {
					needed[missing{view.Proxy.Class, feature}] = view.Proxy.Name.String()
				}
			}
		}
		return needed
	}
	reported := map[missing]string{}
	for _, problems := range s.Problems.All() {
		for _, p := range problems.List {
			if p.Reason != ReasonNotSupportedByProxy {
				continue
			}
			found := lackText.FindStringSubmatch(p.Message)
			if found == nil {
				t.Fatalf("a Problem names no class and feature: %s", p)
			}
			reported[missing{found[1], mesh.Feature(found[2])}] = p.String()
		}
	}
	for l, view := range needs(s) {
		if reported[l] == "" {
			t.Fatalf("%s asks class %s for %s, and no object has a Problem", view, l.class, l.feature)
		}
	}
	asked := needs(asking)
	for l, problem := range reported {
		if asked[l] == "" {
			t.Fatalf("no View asks class %s for %s, and there is the Problem %s", l.class, l.feature, problem)
		}
	}
}

// lacksText has a line for each Problem of what proxies can't do: the object, the field,
// the class and the feature.
func lacksText(s *fact.Snapshot) []string {
	var lines []string
	for _, name := range s.Problems.Names() {
		problems, _ := s.Problems.Get(name)
		for _, p := range problems.List {
			if found := lackText.FindStringSubmatch(p.Message); found != nil {
				lines = append(lines, strings.Join([]string{name, p.Field, found[1], found[2]}, " "))
			}
		}
	}
	return lines
}

// old has a class without features run in a pod of shop that serves as the service old.
func old() []fact.Fact {
	facts := server("shop/old", "10.96.0.9", "10.1.0.9", port(80, 8080, mesh.HTTP))
	facts[0] = pod("shop/old-1", "old", "10.1.0.9", ofClass("old"))
	return facts
}

func ofClass(class string) func(*fact.Workload) {
	return func(w *fact.Workload) { w.Class = class }
}

// TestLackedFeatures uses objects that require features which the proxy of shop/old lacks.
func TestLackedFeatures(t *testing.T) {
	web := port(80, 8080, mesh.HTTP)
	cart := server("shop/cart", "10.96.0.2", "10.1.0.2", web)
	rules := settings()
	edited := func(f fact.Fact, edit func(*fact.Service)) fact.Fact {
		s := *f.Content.(*fact.Service)
		edit(&s)
		f.Content = mesh.Seal(&s)
		return f
	}
	withHeaders := factOf("HTTPRouteGroup", "shop/h", &fact.RouteGroup{Name: parseName("shop/h"), HTTP: []fact.NamedMatch{
		{Name: "m", HTTPMatch: mesh.HTTPMatch{Headers: []mesh.KeyMatch{{Name: "x"}}}},
	}}, nil)
	for _, tt := range []struct {
		name  string
		facts []fact.Fact
		want  []string
	}{
		{"nothing", nil, nil},
		{"a protocol, of a caller", server("shop/db", "10.96.0.3", "10.1.0.3", port(3306, 3306, mesh.TCPServerFirst)), []string{"Service shop/db spec.ports[0] old ServerFirst"}},
		{
			"a protocol, of the server, which may call nobody",
			append(list(rules), service("shop/old", "10.96.0.9", port(80, 8080, mesh.GRPC))),
			[]string{"Service shop/old spec.ports[0] old HTTP2", "Service shop/old spec.ports[0] old HTTP2Resets"},
		},
		{"a protocol of a service that it may not call", append(list(rules), service("shop/cart", "10.96.0.2", port(80, 8080, mesh.GRPC))), nil},
		{
			"a protocol of a service that a rule lets it call",
			append(server("shop/cart", "10.96.0.2", "10.1.0.2", port(80, 8080, mesh.GRPC)), rules, routes("shop/g", "/"), allow("shop/t", "shop/cart", []string{"shop/old"}, "HTTPRouteGroup/g")),
			[]string{"Service shop/cart spec.ports[0] old HTTP2", "Service shop/cart spec.ports[0] old HTTP2Resets"},
		},
		{"client addresses that stick", list(edited(cart[1], func(s *fact.Service) { s.StickyClients = true })), []string{"Service shop/cart spec.sessionAffinity old ConsistentHash"}},
		{"the nearest", list(edited(cart[1], func(s *fact.Service) { s.PreferZone = true })), []string{"Service shop/cart spec.trafficDistribution old ZonePreference"}},
		{"an address of IPv6", list(edited(cart[1], func(s *fact.Service) { s.Addresses = addresses("10.96.0.2", "fd00::2") })), []string{"Service shop/cart spec.ipFamilies old IPv6"}},
		{
			"another name that a split sends to",
			list(settings(permissive, open), external("shop/far", "example.com", web), split("shop/s", "cart", "cart=1 far=1")),
			[]string{"MeshConfig osm/config spec.traffic.enableEgress old EgressTCP", "TrafficSplit shop/s spec.backends[1].service old ExternalNames"},
		},
		{"a split by headers", list(withHeaders, split("shop/s", "cart", "cart=1", func(s *fact.Split) { s.Matches = []string{"h"} })), []string{"TrafficSplit shop/s spec.matches[0] old HeaderMatches"}},
		{"a rule by headers", list(rules, withHeaders, allow("shop/t", "shop/old", []string{"shop/web"}, "HTTPRouteGroup/h")), []string{"TrafficTarget shop/t spec.rules[0] old HeaderMatches"}},
		{"a rule by headers for others", list(rules, withHeaders, allow("shop/t", "shop/cart", []string{"shop/old"}, "HTTPRouteGroup/h")), nil},
		{"how a service is called", list(upstream("shop/u", "cart", 1, most(3))), []string{"UpstreamTrafficSetting shop/u spec.connectionSettings.tcp.maxConnections old ConnectionLimits"}},
		{"how a service is called that a newer object has no say in", list(upstream("shop/a", "cart", 1), upstream("shop/u", "cart", 2, most(3))), nil},
		{"limits of others", list(upstream("shop/u", "cart", 1, limit(3))), nil},
		{"limits of its own", list(upstream("shop/u", "old", 1, limit(3))), []string{"UpstreamTrafficSetting shop/u spec.rateLimit.local.tcp old ConnectionRateLimits"}},
		{"retries", list(retry("shop/r", "shop/old", 3, 1, "shop/cart")), []string{"Retry shop/r spec.retryPolicy old Retries"}},
		{"retries that an older object has", list(retry("shop/r", "shop/old", 3, 1, "shop/cart"), retry("shop/s", "shop/old", 3, 2, "shop/cart")), []string{"Retry shop/r spec.retryPolicy old Retries"}},
		{"retries of others", list(retry("shop/r", "shop/web", 3, 1, "shop/old")), nil},
		{"the mesh's own probes", list(settings(permissive, func(s *mesh.Settings) { s.HealthChecks = true })), []string{"MeshConfig osm/config spec.featureFlags.enableSidecarActiveHealthChecks old HealthChecks"}},
		{"a timeout of all connections", list(settings(permissive, func(s *mesh.Settings) { s.ConnectTimeout = time.Second })), []string{"MeshConfig osm/config spec.traffic.connectTimeout old ConnectTimeouts"}},
		{"moving in, of a namespace", list(namespace("shop", func(n *fact.Namespace) { n.InboundTLS = mesh.Permissive })), []string{"Namespace shop metadata.annotations[openservicemesh.io/inbound-tls-mode] old PermissiveTLS"}},
		{"moving in, of another namespace", list(namespace("bank", func(n *fact.Namespace) { n.InboundTLS = mesh.Permissive })), nil},
		{"the PROXY protocol", list(pod("shop/old-1", "old", "10.1.0.9", ofClass("old"), func(w *fact.Workload) {
			w.ProxyProtocol, w.Ports = []uint16{3306}, []fact.WorkloadPort{{Number: 3306}}
		})), []string{"Pod shop/old-1 metadata.annotations[openservicemesh.io/proxy-protocol-port-list] old ProxyProtocol"}},
		{"moving in, of its pod", list(pod("shop/old-1", "old", "10.1.0.9", ofClass("old"), func(w *fact.Workload) { w.InboundTLS = mesh.Permissive })), []string{"Pod shop/old-1 metadata.annotations[openservicemesh.io/inbound-tls-mode] old PermissiveTLS"}},
		{"access logs of errors", list(settings(permissive, func(s *mesh.Settings) { s.AccessLog = mesh.AccessLog{Enabled: true} })), []string{"MeshConfig osm/config spec.observability.accessLog old AccessLogSampling"}},
		{"access logs of errors, of a namespace", list(namespace("shop", func(n *fact.Namespace) { n.AccessLog = &mesh.AccessLog{Enabled: true} })), []string{"Namespace shop metadata.annotations[openservicemesh.io/access-log] old AccessLogSampling"}},
		{"access logs of errors, of its pod", list(pod("shop/old-1", "old", "10.1.0.9", ofClass("old"), func(w *fact.Workload) { w.AccessLog = &mesh.AccessLog{Enabled: true} })), []string{"Pod shop/old-1 metadata.annotations[openservicemesh.io/access-log] old AccessLogSampling"}},
		{"no access logs, of its pod", list(pod("shop/old-1", "old", "10.1.0.9", ofClass("old"), func(w *fact.Workload) { w.AccessLog = &mesh.AccessLog{} })), nil},
		{"an audit by default", list(namespace("shop", func(n *fact.Namespace) { n.DefaultAccess = fact.Audit })), []string{"Namespace shop metadata.annotations[openservicemesh.io/default-access] old Audit"}},
		{"an audit, of a namespace", list(namespace("shop", func(n *fact.Namespace) { n.Audit = true })), []string{"Namespace shop metadata.annotations[openservicemesh.io/access-mode] old Audit"}},
		{"an audit, of another namespace", list(namespace("bank", func(n *fact.Namespace) { n.Audit = true })), nil},
		{"an audit that has no effect", list(rules, namespace("shop", func(n *fact.Namespace) { n.Audit = true })), nil},
		{
			"an audit of rules by headers",
			list(withHeaders, factOf("TrafficTarget", "shop/t", &fact.AccessRule{
				Name: parseName("shop/t"), Destination: parseName("shop/old"), Sources: []fact.ServiceAccount{parseName("shop/web")},
				Rules: []fact.AccessRoutes{{Kind: kindHTTPRouteGroup, Group: "h"}}, Audit: true,
			}, nil)),
			[]string{"TrafficTarget shop/t metadata.annotations[openservicemesh.io/access-mode] old Audit", "TrafficTarget shop/t spec.rules[0] old HeaderMatches"},
		},
		{"no mesh TLS", list(settings(permissive, func(s *mesh.Settings) { s.PlaintextClasses = []string{"old"} })), []string{"MeshConfig osm/config spec.sidecar.sidecarDrivers old PlaintextMesh"}},
		{
			"moving in, of a class that speaks no mesh TLS",
			list(settings(permissive, func(s *mesh.Settings) { s.PlaintextClasses, s.InboundTLS = []string{"old"}, mesh.Permissive })),
			[]string{"MeshConfig osm/config spec.sidecar.sidecarDrivers old PlaintextMesh"},
		},
		{
			"limits that give way to those of another service",
			list(upstream("shop/a", "old", 1, limit(3)), upstream("shop/z", "zoo", 1, limit(3)), service("shop/zoo", "10.96.0.8", web), another("zoo-1", slice("shop/zoo", []fact.PortSpec{web}, ready("old-1", "10.1.0.9")))),
			[]string{"UpstreamTrafficSetting shop/a spec.rateLimit.local.tcp old ConnectionRateLimits"},
		},
		{
			"a rule by headers, without a port for requests",
			list(rules, withHeaders, service("shop/old", "10.96.0.9", port(80, 8080, mesh.TCP)), allow("shop/t", "shop/old", []string{"shop/web"}, "HTTPRouteGroup/h")),
			nil,
		},
		{"its namespace is not in the mesh", list(upstream("shop/u", "cart", 1, most(3)), namespace("shop", func(n *fact.Namespace) { n.Member = false })), nil},
		{"its pod has ended", list(upstream("shop/u", "cart", 1, most(3)), pod("shop/old-1", "old", "10.1.0.9", ofClass("old"), func(w *fact.Workload) { w.Ended = true })), nil},
		{"its pod has another class", list(upstream("shop/u", "cart", 1, most(3)), pod("shop/old-1", "old", "10.1.0.9")), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			base := slices.Concat(town(), cart, old())
			s := BuildFor(slices.Concat(base, tt.facts), Options{Features: features})
			if diff := gocmp.Diff(tt.want, lacksText(s)); diff != "" {
				t.Errorf("what proxies can't do (-want +got):\n%s", diff)
			}
			needsAreTold(t, s, s)
		})
	}
}

// TestPortsWithoutAProxy reports the ports of pods without a proxy that are not for gRPC.
func TestPortsWithoutAProxy(t *testing.T) {
	facts := slices.Concat(town(), old(), list(
		service("shop/old", "10.96.0.9", port(80, 8080, mesh.HTTP), port(81, 8081, mesh.GRPC), port(82, 8082, mesh.TCP)),
		slice("shop/old", []fact.PortSpec{port(80, 8080, mesh.HTTP), port(81, 8081, mesh.GRPC), port(82, 8082, mesh.TCP)}, ready("old-1", "10.1.0.9")),
	))
	for _, tt := range []struct {
		proxyless bool
		want      []string
	}{
		{true, []string{"spec.ports[0]", "spec.ports[2]"}},
		{false, nil},
	} {
		s := BuildFor(facts, Options{
			Features:  func(string) []mesh.Feature { return []mesh.Feature{mesh.FeatureHTTP2} },
			Proxyless: func(class string) bool { return tt.proxyless && class == "old" },
		})
		var got []string
		problems, _ := s.Problems.Get("Service shop/old")
		if problems != nil {
			for _, p := range problems.List {
				if p.Reason == ReasonNotSupportedByProxy && strings.Contains(p.Message, "pods of class old, such as those of service account shop/old, run no proxy") {
					got = append(got, p.Field)
				}
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("if the class has no proxy is %t, there are Problems of %q, want %q: %v", tt.proxyless, got, tt.want, problems)
		}
	}
}

// TestLackedFeaturesPassAway has a Problem go with what it is about, and holds that pods
// that come and go in a rollout leave it as it is.
func TestLackedFeaturesPassAway(t *testing.T) {
	j := newJoin(Options{Features: features})
	setting := upstream("shop/u", "cart", 1, most(3))
	for _, f := range slices.Concat(town(), server("shop/cart", "10.96.0.2", "10.1.0.2", port(80, 8080, mesh.HTTP)), old(), list(setting)) {
		j.set(f)
	}
	want := []string{"UpstreamTrafficSetting shop/u spec.connectionSettings.tcp.maxConnections old ConnectionLimits"}
	holds := func(what string, want []string) {
		if diff := gocmp.Diff(want, lacksText(j.snapshot())); diff != "" {
			t.Errorf("%s: what proxies can't do (-want +got):\n%s", what, diff)
		}
	}
	holds("at first", want)
	reported, _ := j.snapshot().Problems.Get("UpstreamTrafficSetting shop/u")
	j.set(pod("shop/old-0", "old", "10.1.0.10", ofClass("old")))
	j.set(gone(pod("shop/old-1", "", "")))
	if now, _ := j.snapshot().Problems.Get("UpstreamTrafficSetting shop/u"); now != reported {
		t.Error("a rollout made the Problems anew")
	}
	for _, change := range []struct {
		what     string
		do, undo fact.Fact
	}{
		{"the class is another", pod("shop/old-0", "old", "10.1.0.10"), pod("shop/old-0", "old", "10.1.0.10", ofClass("old"))},
		{"the pod is gone", gone(pod("shop/old-0", "", "")), pod("shop/old-0", "old", "10.1.0.10", ofClass("old"))},
		{"the object asks no more", upstream("shop/u", "cart", 1), setting},
		{"the object is gone", gone(setting), setting},
	} {
		j.set(change.do)
		holds(change.what, nil)
		j.set(change.undo)
		holds(change.what+", and back again", want)
	}
}
