package catalog

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

func policyOf(name string, action fact.AccessAction, target fact.AccessTarget, rules ...fact.PolicyRule) fact.Fact {
	return factOf(kindAccessPolicy, name, &fact.AccessPolicy{Name: parseName(name), Action: action, Targets: []fact.AccessTarget{target}, Rules: rules}, nil)
}

// clusterPolicyOf is for all pods of the namespaces with labels.
func clusterPolicyOf(t *testing.T, name string, action fact.AccessAction, namespaces string, rules ...fact.PolicyRule) fact.Fact {
	t.Helper()
	return factOf(kindClusterAccessPolicy, "/"+name, &fact.AccessPolicy{
		Name: mesh.Name{Name: name}, Namespaces: podsWith(t, namespaces).Pods, Action: action, Targets: []fact.AccessTarget{podsWith(t, "")}, Rules: rules,
	}, nil)
}

// podsWith selects pods by labels, as in "app=cart".
func podsWith(t *testing.T, text string) fact.AccessTarget {
	t.Helper()
	selector, err := labels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return fact.AccessTarget{Pods: fact.NewSelector(selector)}
}

func sourceOf(namespace, account string) fact.PolicySource {
	return fact.PolicySource{Identity: mesh.Identity{Namespace: namespace, ServiceAccount: account}}
}

// TestAccessPolicies says which policies a pod gets, and at which ports.
func TestAccessPolicies(t *testing.T) {
	everything := []mesh.HTTPMatch{{}}
	everyone := fact.PolicyRule{Field: "spec", Everyone: true, AnyPort: true, Requests: everything}
	users := fact.PolicyRule{Field: "spec.rules[0]", Sources: []fact.PolicySource{sourceOf("users", "")}, AnyPort: true, Requests: everything}
	app := func(w *fact.Workload) { w.Labels = map[string]string{"app": "cart"} }
	base := slices.Concat(server("shop/cart", "10.96.0.1", "10.1.0.1", port(80, 8080, mesh.HTTP)), list(
		namespace("shop"), namespace("users", func(ns *fact.Namespace) { ns.Labels = map[string]string{"team": "a"} }),
		pod("shop/cart-1", "cart", "10.1.0.1", app), pod("users/web-1", "web", "10.1.0.2"), pod("users/guest-1", "guest", "10.1.0.3"),
	))
	web, guest := mesh.Identity{TrustDomain: "td", Namespace: "users", ServiceAccount: "web"}, mesh.Identity{TrustDomain: "td", Namespace: "users", ServiceAccount: "guest"}
	selected, err := labels.Parse("team=a")
	if err != nil {
		t.Fatal(err)
	}
	teams := fact.NewSelector(selected)
	stance := func(action fact.AccessAction) fact.Fact {
		return namespace("shop", func(ns *fact.Namespace) { ns.DefaultAccess, ns.Labels = action, map[string]string{"tier": "back"} })
	}
	port9000 := users
	port9000.AnyPort, port9000.Ports = false, []uint16{9000}
	for _, tt := range []struct {
		name  string
		facts []fact.Fact
		// allowed are who may send requests to port 8080, and others who may connect to port 9000.
		allowed, others []mesh.Identity
		// knows says that users/web has a destination for the service.
		knows bool
	}{
		{"no policy", list(settings(permissive)), []mesh.Identity{web, guest}, []mesh.Identity{web, guest}, true},
		{"of another pod", list(settings(permissive), policyOf("shop/p", fact.Allow, podsWith(t, "app=other"))), []mesh.Identity{web, guest}, []mesh.Identity{web, guest}, true},
		{"of another namespace", list(settings(permissive), policyOf("users/p", fact.Deny, podsWith(t, "app=cart"), everyone)), []mesh.Identity{web, guest}, []mesh.Identity{web, guest}, true},
		{"without rules", list(settings(permissive), policyOf("shop/p", fact.Allow, podsWith(t, "app=cart"))), nil, nil, true},
		{"of a service, which is for its ports", list(settings(permissive), policyOf("shop/p", fact.Allow, fact.AccessTarget{Service: "cart"})), nil, []mesh.Identity{web, guest}, true},
		{"of a service account", list(settings(permissive), policyOf("shop/p", fact.Allow, fact.AccessTarget{ServiceAccount: "cart"})), nil, nil, true},
		{"of another service account", list(settings(permissive), policyOf("shop/p", fact.Allow, fact.AccessTarget{ServiceAccount: "car"})), []mesh.Identity{web, guest}, []mesh.Identity{web, guest}, true},
		{"of a service that is not there", list(settings(permissive), policyOf("shop/p", fact.Allow, fact.AccessTarget{Service: "car"})), []mesh.Identity{web, guest}, []mesh.Identity{web, guest}, true},
		{"of a namespace", list(settings(), policyOf("shop/p", fact.Allow, podsWith(t, "app"), users)), []mesh.Identity{web, guest}, []mesh.Identity{web, guest}, true},
		{"of namespaces by label but one account", list(settings(), policyOf("shop/p", fact.Allow, podsWith(t, "app"), fact.PolicyRule{
			Sources: []fact.PolicySource{{Namespaces: &teams}}, Except: []fact.PolicySource{sourceOf("users", "guest")}, Ports: []uint16{8080}, Requests: everything,
		})), []mesh.Identity{web}, nil, true},
		{"denied after all", list(settings(), policyOf("shop/p", fact.Allow, podsWith(t, "app"), everyone), policyOf("shop/q", fact.Deny, podsWith(t, "app"), fact.PolicyRule{
			Sources: []fact.PolicySource{sourceOf("users", "guest")}, AnyPort: true, Requests: []mesh.HTTPMatch{{Methods: []string{"GET"}}},
		})), []mesh.Identity{web}, []mesh.Identity{web}, true},
		{"requests only", list(settings(), policyOf("shop/p", fact.Allow, podsWith(t, "app"), fact.PolicyRule{
			Sources: []fact.PolicySource{sourceOf("users", "web")}, AnyPort: true, Requests: []mesh.HTTPMatch{{Methods: []string{"GET"}}},
		})), []mesh.Identity{web}, nil, true},
		{"all requests and no connections", list(settings(), policyOf("shop/p", fact.Allow, podsWith(t, "app"), fact.PolicyRule{
			Sources: []fact.PolicySource{sourceOf("users", "web")}, AnyPort: true, Requests: everything, OnlyRequests: true,
		})), []mesh.Identity{web}, nil, true},
		{"nobody, where nothing is allowed otherwise", list(settings(), policyOf("shop/p", fact.Allow, podsWith(t, "app"), fact.PolicyRule{AnyPort: true, Requests: everything})), nil, nil, false},
		{"a default that denies", list(settings(permissive), stance(fact.Deny)), nil, nil, true},
		{"a default that denies, and a policy that allows", list(settings(permissive), stance(fact.Deny), policyOf("shop/p", fact.Allow, podsWith(t, "app"), users)), []mesh.Identity{web, guest}, []mesh.Identity{web, guest}, true},
		{"a default that allows", list(settings(), stance(fact.Allow)), []mesh.Identity{web, guest}, []mesh.Identity{web, guest}, true},
		{"a default that allows, and a policy that closes", list(settings(), stance(fact.Allow), policyOf("shop/p", fact.Allow, podsWith(t, "app"))), nil, nil, true},
		{"audited by default", list(settings(), stance(fact.Audit)), []mesh.Identity{web, guest}, []mesh.Identity{web, guest}, true},
		{"audited by default, and a policy that denies", list(settings(), stance(fact.Audit), policyOf("shop/p", fact.Deny, podsWith(t, "app"), users)), nil, nil, true},

		{"of the cluster, which closes nothing", list(settings(permissive), stance(""), clusterPolicyOf(t, "p", fact.Allow, "tier=back")), []mesh.Identity{web, guest}, []mesh.Identity{web, guest}, true},
		{"of the cluster, which allows", list(settings(), stance(""), clusterPolicyOf(t, "p", fact.Allow, "tier=back", port9000)), nil, []mesh.Identity{web, guest}, true},
		{"of the cluster, for other namespaces", list(settings(), stance(""), clusterPolicyOf(t, "p", fact.Allow, "tier=front", users)), nil, nil, false},
		{"of the cluster, which denies whatever the namespace allows", list(settings(permissive), stance(fact.Allow), policyOf("shop/p", fact.Allow, podsWith(t, "app"), users), clusterPolicyOf(t, "p", fact.Deny, "", users)), nil, nil, true},
		{"of the cluster, which allows whatever the namespace denies", list(settings(), stance(""), policyOf("shop/p", fact.Deny, podsWith(t, "app"), everyone), clusterPolicyOf(t, "p", fact.Allow, "", port9000)), nil, []mesh.Identity{web, guest}, true},
		{"of the cluster, which allows what it denies", list(settings(), stance(""), clusterPolicyOf(t, "q", fact.Deny, "", everyone), clusterPolicyOf(t, "p", fact.Allow, "", users)), nil, nil, true},
		{"audited", list(settings(permissive), policyOf("shop/p", fact.Audit, podsWith(t, "app"), users)), []mesh.Identity{web, guest}, []mesh.Identity{web, guest}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := Build(slices.Concat(base, tt.facts))
			cart, ok := s.Views.Get("uid-shop/cart-1")
			if !ok {
				t.Fatal("there is no View of the server")
			}
			for _, who := range []mesh.Identity{web, guest} {
				request := mesh.Arrival{Port: 8080, Security: mesh.MeshTLS, Peer: who, Request: &mesh.Request{Method: "GET", Path: "/"}}
				if got := cart.Inbound.Decide(request).Allowed; got != slices.Contains(tt.allowed, who) {
					t.Errorf("requests of %s: %t", who, got)
				}
				connection := mesh.Arrival{Port: 9000, Security: mesh.MeshTLS, Peer: who}
				if got := cart.Inbound.Decide(connection).Allowed; got != slices.Contains(tt.others, who) {
					t.Errorf("connections of %s: %t", who, got)
				}
			}
			client, _ := s.Views.Get("uid-users/web-1")
			if _, knows := client.Outbound.Destinations.Get("shop/cart:80"); knows != tt.knows {
				t.Errorf("the client knows of the service: %t", knows)
			}
			if _, isAudited := cart.Inbound.Audit(mesh.Arrival{Port: 8080}); isAudited != strings.HasPrefix(tt.name, "audited") {
				t.Errorf("audited: %t", isAudited)
			}
		})
	}
}

// TestAccessPoliciesOfOldClasses closes what a class without the feature would open.
func TestAccessPoliciesOfOldClasses(t *testing.T) {
	office := fact.PolicyRule{Field: "spec", Everyone: true, AnyPort: true, Requests: []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: "/admin"}}}}
	facts := slices.Concat(server("shop/cart", "10.96.0.1", "10.1.0.1", port(80, 8080, mesh.HTTP)), list(
		settings(permissive), namespace("shop"), pod("shop/cart-1", "cart", "10.1.0.1", ofClass("old"), func(w *fact.Workload) { w.Labels = map[string]string{"app": "cart"} }),
		policyOf("shop/p", fact.Deny, podsWith(t, "app=cart"), office),
	))
	s := BuildFor(facts, Options{Features: features})
	view, _ := s.Views.Get("uid-shop/cart-1")
	a := mesh.Arrival{Port: 8080, Security: mesh.MeshTLS, Peer: mesh.Identity{TrustDomain: "td", Namespace: "shop", ServiceAccount: "web"}, Request: &mesh.Request{Method: "GET", Path: "/"}}
	if view.Inbound.Decide(a).Allowed {
		t.Error("a class without denials is sent access that the denials restrict")
	}
	if got := lacksText(s); !slices.Contains(got, "AccessPolicy shop/p spec old AccessPolicies") {
		t.Errorf("the features lacked are %q", got)
	}
}
