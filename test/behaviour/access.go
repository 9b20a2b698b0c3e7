package behaviour

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	cart   = "http://cart.shop/cart"
	cartV1 = "http://cart-v1.shop/cart"
	cartV2 = "http://cart-v2.shop/cart"
)

// webIdentity is the identity of users/web.
var webIdentity = mesh.Identity{TrustDomain: "cluster.local", Namespace: "users", ServiceAccount: "web"}

// access is the table of who may call what.
var access = []Row{
	{"Denied by default", "A client that no TrafficTarget names reaches nothing: its own proxy has no route, and the server denies requests that bypass the proxy.", ofEvery, func(t *testing.T, w *testMesh) {
		for _, url := range []string{"http://db.shop:8080/cart", "http://cart-v2.shop/cart"} {
			w.denies(t, "users/thief", url)
		}
		thief := w.certificate(t, mesh.Identity{TrustDomain: "cluster.local", Namespace: "users", ServiceAccount: "thief"})
		w.eventually(t, func() error { return w.callDirectly(t, "shop/db-0", "db", http.StatusForbidden, thief) })
		web := w.certificate(t, webIdentity)
		w.eventually(t, func() error { return w.callDirectly(t, "shop/db-0", "db", http.StatusOK, web) })
	}},
	{"Allowed by one rule only", "Each rule stands alone: a client that may request one path gets 403 for another.", ofEvery, func(t *testing.T, w *testMesh) {
		w.get(t, "users/thief", "http://cart-v1.shop/window", isFrom("cart-v1"))
		w.get(t, "users/thief", cartV1, isStatus(http.StatusForbidden))
	}},
	{"Allowed by path", "A TrafficTarget allows its sources the paths of its routes, and no others.", ofEvery, func(t *testing.T, w *testMesh) {
		w.get(t, "users/web", cartV1, isFrom("cart-v1"))
		w.get(t, "users/web", cartV1+"/items", isFrom("cart-v1"))
		w.get(t, "users/web", "http://cart-v1.shop/admin", isStatus(http.StatusForbidden))
	}},
	{"Allowed by method", "A route allows only its methods.", ofEvery, func(t *testing.T, w *testMesh) {
		w.ask(t, "users/web", request{method: http.MethodPut, url: cartV1 + "/items"}, ok)
		w.ask(t, "users/web", request{method: http.MethodDelete, url: cartV1 + "/items"}, isStatus(http.StatusForbidden))
	}},
	{"Allowed by header", "A route requires all of its headers.", ofServer(mesh.FeatureHeaderMatches), func(t *testing.T, w *testMesh) {
		w.apply(t, "ticket.yaml", routeGroup("shop/ticket", ` [{name: ticket, pathRegex: /gate, methods: [GET], headers: [{x-ticket: "gold|silver"}]}]`)+
			trafficTarget("shop/ticket", "cart-v1", "{kind: HTTPRouteGroup, name: ticket}", "users/web"))
		const gate = "http://cart-v1.shop/gate"
		w.ask(t, "users/web", request{url: gate, header: http.Header{"X-Ticket": {"silver"}}}, isFrom("cart-v1"))
		for _, ticket := range []string{"tin", "golden", ""} {
			w.ask(t, "users/web", request{url: gate, header: http.Header{"X-Ticket": {ticket}}}, isStatus(http.StatusForbidden))
		}
		w.get(t, "users/web", gate, isStatus(http.StatusForbidden))
	}},
	{"Allowed by port", "A TCPRoute beside an HTTPRouteGroup restricts the requests to its ports.", ofEvery, func(t *testing.T, w *testMesh) {
		rule := func(ports string) string { return byPort + tcpRoute("door", ports) }
		const door = "http://cart-v1.shop/door"
		w.apply(t, "port.yaml", rule("[8080]"))
		w.get(t, "users/web", door, isFrom("cart-v1"))
		w.get(t, "users/web", cartV1, isFrom("cart-v1"))
		w.set(t, "port.yaml", rule("[9000]"))
		w.get(t, "users/web", door, isStatus(http.StatusForbidden))
		w.get(t, "users/web", cartV1, isFrom("cart-v1"))
	}},
	{"Several TrafficTargets", "The rules of several TrafficTargets add up, each with the routes that it names, and one ends without the others.", ofEvery, testSeveralTargets},
	{"A TCPRoute alone", "A TCPRoute without ports allows connections to all TCP ports, and no requests at HTTP ports.", ofEvery, testTCPRouteAlone},
	{"A TrafficTarget in another namespace", "A TrafficTarget outside its destination's namespace allows nothing and has a Problem.", ofEvery, testOtherNamespace},
	{"AccessPolicy", "AccessPolicies allow and deny by namespace, account, path and port beside TrafficTargets, and close pods in permissive mode. A denial holds however a path is spelled.", ofEvery, testAccessPolicies},
	{"Rules of the cluster", "A ClusterAccessPolicy denies what a namespace allows, and allows what it denies. The default of a namespace opens or closes it, whatever the mode of the mesh is.", ofEvery, testClusterAccess},
	{"Tokens of users", "A rule asks for a token of an issuer, for an audience and with claims. Tokens that are expired, forged, of another algorithm or of another issuer are none, and a denial refuses them. A server that verifies no tokens allows nothing by such a rule, and denies what it could deny.", ofEvery, testTokens},
	{"Permissive mode", "In permissive mode every client of the mesh may call everything, and pods outside the mesh still nothing. Without it the rules hold again.", ofEvery, testPermissiveMode},
	{"Spoofed headers", "The caller's identity comes from its certificate: headers that claim an identity have no effect, and the application gets the true identity or none.", ofEvery, func(t *testing.T, w *testMesh) {
		claims := http.Header{
			"X-Forwarded-Client-Cert": {"By=spiffe://cluster.local/ns/shop/sa/cart-v1;URI=" + webIdentity.String()},
			"Serviceidentity":         {"web.users"},
			"X-Forwarded-For":         {"10.0.0.1"},
		}
		w.ask(t, "users/thief", request{url: cartV1, header: claims}, isStatus(http.StatusForbidden))
		claims.Set("X-Forwarded-Client-Cert", "URI=spiffe://cluster.local/ns/shop/sa/admin")
		got := w.ask(t, "users/web", request{url: cartV1, header: claims}, ok)
		for _, certificate := range got.answer.Header.Values("X-Forwarded-Client-Cert") {
			if strings.Contains(certificate, "admin") || !strings.Contains(certificate, webIdentity.String()) {
				t.Errorf("the application gets %q, want the client's own identity or nothing", certificate)
			}
		}
	}},
	{"A header given twice", "A rule compares a header as the application gets it: one line, in one spelling of its name. A request with several lines is rejected, or passed on with the one line that was compared.", ofServer(mesh.FeatureHeaderMatches), testRepeatedHeaders},
	{"Identity headers", "The application gets no header with which a client could claim an identity or another end of the body, in any spelling and by any path into the mesh.", ofEvery, testIdentityHeaders},
	{"A certificate with several names", "The caller is the only SPIFFE ID of its certificate. Other names have no effect, and with two SPIFFE IDs the caller is nobody.", ofEvery, testCallerNames},
	{"A path read in two ways", "Rules for several paths reject paths that some applications read as a different path from the one that was compared.", ofEvery, testSpellings},
	{"A request within another", "A request's body, or the data after an upgrade, cannot smuggle an unauthorized request, whatever parsers may read in it.", ofEvery, testHidden},
	{"Broken messages", "No request, answer or handshake ends a proxy or gives a client the answer to another request, whatever parsers refuse in it.", ofEvery, testBroken},
	{"A service with two service accounts", "A service whose endpoints have different service accounts is called like any other, and each endpoint is verified by its own identity.", ofEvery, func(t *testing.T, w *testMesh) {
		seen := map[string]bool{}
		w.eventually(t, func() error {
			r, err := w.send(w.pod(t, "users/web"), request{url: cart})
			if err != nil || r.Status != http.StatusOK {
				return fmt.Errorf("%d %s %v", r.Status, r.Body, err)
			}
			if seen[r.Pod] = true; !seen["cart-v1"] || !seen["cart-v2"] {
				return fmt.Errorf("only %v have answered", seen)
			}
			return nil
		})
	}},
	{"A pod calls itself", "A pod that calls its own Service is authorized by its own identity, and the request returns over loopback.", ofEvery, func(t *testing.T, w *testMesh) {
		got := w.get(t, "shop/cart-v1", cartV1, isFrom("cart-v1"))
		if host, _, _ := net.SplitHostPort(got.From); host != "127.0.0.6" {
			t.Errorf("the application saw %s, want 127.0.0.6", got.From)
		}
	}},
	{"A service account of a long name", "A service account whose name is too long for a certificate works like any other, and an account named like the hash that replaces the name cannot impersonate it.", ofEvery, testLongName},
	{"Hostile objects of a neighbour", "Objects of another namespace that a proxy might refuse or misread, all at once, delay no permission and no revocation elsewhere.", ofEvery, testHostileNeighbour},
	{"A pod without a service", "A pod without a service is called by its own address, over mTLS and with the same rules.", ofEvery, func(t *testing.T, w *testMesh) {
		url := "http://" + w.address(t, "shop/lone", "8080") + "/cart"
		w.get(t, "users/web", url, isFrom("lone"))
		w.denies(t, "users/thief", url)
	}},
}

// byPort allows users/web a path of cart-v1 at the ports of a TCPRoute.
var byPort = routeGroup("shop/door", " [{name: door, pathRegex: /door, methods: [GET]}]") +
	trafficTarget("shop/door", "cart-v1", "{kind: HTTPRouteGroup, name: door}, {kind: TCPRoute, name: door}", "users/web")

// testLongName has an account with a long name be called by a proxy, and call a pod
// itself. An account named like its hash must be denied.
func testLongName(t *testing.T, w *testMesh) {
	w.get(t, "users/web", "http://"+w.address(t, "shop/lone", "8080")+"/cart", isFrom("lone"))
	w.apply(t, "long.yaml", trafficTarget("shop/long", "db", "{kind: HTTPRouteGroup, name: cart}", "shop/"+longAccount))
	long := mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: longAccount}
	w.eventually(t, func() error { return w.callDirectly(t, "shop/db-0", "db", http.StatusOK, w.certificate(t, long)) })
	hash, _, _ := strings.Cut(long.DNSName(), ".")
	twin := long
	twin.ServiceAccount = hash
	if err := w.callDirectly(t, "shop/db-0", "db", http.StatusForbidden, w.certificate(t, twin)); err != nil {
		t.Error(err)
	}
}
