package behaviour

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

const splitTemplate = `
apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: {name: cart, namespace: shop}
spec:
  service: cart.shop
  backends:
  - {service: cart-v1, weight: %d}
  - {service: cart-v2, weight: %d}
`

// upstream returns an UpstreamTrafficSetting of a service in the namespace shop.
func upstream(service, spec string) string {
	return fmt.Sprintf(`
apiVersion: policy.openservicemesh.io/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: %[1]s, namespace: shop}
spec:
  host: %[1]s.shop.svc.cluster.local
%[2]s`, service, spec)
}

// traffic is the table of routing, load balancing and limits.
var traffic = []Row{
	{"Split 90/10", "A TrafficSplit distributes requests by its weights.", ofEvery, func(t *testing.T, w *testMesh) {
		w.apply(t, "split.yaml", fmt.Sprintf(splitTemplate, 90, 10))
		// The split is in effect when v2 gets much less than half.
		w.sharesEventually(t, 60, "cart-v2", 0, 15)
		// Of 600 requests the mean is 60, and four standard deviations are 30.
		if share := w.share(t, 600, "cart-v2"); share < 30 || share > 90 {
			t.Errorf("cart-v2 got %d of 600 requests, want 60 within 30", share)
		}
	}},
	{"A split is shifted live", "A change of a TrafficSplit takes effect while requests run, and none of them fails.", ofEvery, func(t *testing.T, w *testMesh) {
		w.apply(t, "split.yaml", fmt.Sprintf(splitTemplate, 100, 0))
		w.sharesEventually(t, 40, "cart-v2", 0, 0)
		l := w.startLoad(w.pod(t, "users/web"), cart, 4)
		l.more(t, 50)
		for _, weights := range [][2]int{{50, 50}, {0, 100}} {
			w.set(t, "split.yaml", fmt.Sprintf(splitTemplate, weights[0], weights[1]))
			w.eventually(t, func() error {
				total, before := l.count("cart-v2")
				l.more(t, 40)
				after, now := l.count("cart-v2")
				if share := (now - before) * 100 / (after - total); share < weights[1]*6/10 {
					return fmt.Errorf("cart-v2 gets %d of 100 requests, want about %d", share, weights[1])
				}
				return nil
			})
		}
		l.end(t)
	}},
	{"Split by header", "A TrafficSplit with matches applies only to the requests that match.", ofClient(mesh.FeatureHeaderMatches), testSplitByHeader},
	{"Split by a header given twice", "A TrafficSplit with matches applies to a request with several lines of a header only if the server gets the line that matches.", ofClient(mesh.FeatureHeaderMatches), testRepeatedRoutes},
	{"A split with its own service", "A TrafficSplit may have its own service as a backend, whose share goes to the service's own endpoints.", ofEvery, testRecursiveSplit},
	{"A split over other ports", "A backend of a TrafficSplit receives requests at its port of the same name, or at its only port, if it has none of the same number.", ofEvery, testSplitOverPorts},
	{"Split of connections", "A TrafficSplit distributes connections by its weights, also to servers that send first, unless a TCPRoute of Gateway API routes them. Its service needs no pods.", ofBoth(mesh.FeatureServerFirst), testSplitConnections},
	{"A split grants nothing", "A client needs permission for the backends of a TrafficSplit: the share of a backend that it may not call fails.", ofEvery, testSplitGrantsNothing},
	{"Limited to some services", "A sidecar that an annotation limits to some services calls these, by policy and in permissive mode, and refuses connections to others.", ofEvery, testOutboundServices},
	{"On demand", "A sidecar that gets services on demand knows none until its pod calls them. The first request to a service, of every protocol, takes effect as if it were known, by policy and in permissive mode, and later ones go straight. Traffic out of the mesh obeys the same rules as otherwise.", ofClient(mesh.FeatureOnDemand, mesh.FeatureServerFirst, mesh.FeatureIPv6), testOnDemand},
	{"On demand without a controller", "While no controller answers, the services and addresses that a sidecar knows can be called as before. The first connection to a service fails and does not leave the mesh.", ofClient(mesh.FeatureOnDemand, mesh.FeatureEgressTCP), testOnDemandAlone},
	{"No endpoints", "Requests to a service without endpoints get 503 at once, and connections to it are closed. In a TrafficSplit this happens to its share.", ofEvery, testNoEndpoints},
	{"Retry", "A Retry policy repeats failed requests, for its source only, regardless of its namespace.", ofClient(mesh.FeatureRetries), func(t *testing.T, w *testMesh) {
		w.get(t, "users/web", cartV1, ok)
		if r, err := w.send(w.pod(t, "users/web"), request{url: cartV1 + "?times=2&fail=before"}); err != nil || r.Status != http.StatusServiceUnavailable {
			t.Fatalf("without a Retry the answer is %d, %v", r.Status, err)
		}
		w.apply(t, "retry.yaml", retryOf("shop", "cart-v1"))
		w.afterFailures(t, request{url: cartV1}, "times=2", ok)
	}},
	{"Answers under a retry policy", "A retry policy changes nothing about answers that are not retried: pieces arrive when they are sent, and many small messages, large trailers and answers that have only trailers arrive whole, by gRPC and in chunks of HTTP/1.1.", Needs{
		Client: []mesh.Feature{mesh.FeatureRetries, mesh.FeatureHTTP2}, Server: []mesh.Feature{mesh.FeatureHTTP2},
	}, testAnswersWithRetries},
	{"Retries that are not enabled", "Without the MeshConfig's enableRetryPolicy a Retry has no effect and has a Problem.", ofClient(mesh.FeatureRetries), testRetriesDisabled},
	{"Timeout", "A request that takes longer than its service's timeout gets 504.", ofClient(mesh.FeatureTimeouts), func(t *testing.T, w *testMesh) {
		w.apply(t, "timeout.yaml", upstream("cart-v1", "  timeouts: {request: 300ms}\n"))
		w.get(t, "users/web", cartV1+"?wait=1500ms", isStatus(http.StatusGatewayTimeout))
		w.get(t, "users/web", cartV1, ok)
	}},
	{"Circuit breaker", "Concurrent requests above a service's limit get 503 at once, and the others are served.", ofClient(mesh.FeatureConnectionLimits, mesh.FeatureRequestLimits), func(t *testing.T, w *testMesh) {
		w.apply(t, "breaker.yaml", upstream("cart-v1", "  connectionSettings: {tcp: {maxConnections: 1}, http: {maxRequests: 1, maxPendingRequests: 1}}\n"))
		w.eventually(t, func() error {
			var mu sync.Mutex
			var group sync.WaitGroup
			statuses := map[int]int{}
			for range 8 {
				group.Go(func() {
					r, err := w.send(w.pod(t, "users/web"), request{url: cartV1 + "?wait=300ms"})
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						r.Status = -1
					}
					statuses[r.Status]++
				})
			}
			group.Wait()
			if statuses[http.StatusOK] == 0 || statuses[http.StatusServiceUnavailable] == 0 || len(statuses) != 2 {
				return fmt.Errorf("8 requests at once have the statuses %v, want some 200 and some 503", statuses)
			}
			return nil
		})
	}},
	{"Limits of 0", "A limit of 0 is a limit: no requests pass with 0 requests, connections or pending requests, and with 0 retries none is made.", ofClient(mesh.FeatureConnectionLimits, mesh.FeatureRequestLimits), testLimitsOfZero},
	{"Outlier ejection", "An endpoint that fails repeatedly is ejected for a while.", ofClient(mesh.FeatureOutlierEjection), func(t *testing.T, w *testMesh) {
		w.apply(t, "outlier.yaml", upstream("cart", "  outlierDetection: {consecutiveErrors: 3, interval: 1s, baseEjectionTime: 30s, maxEjectionPercent: 50}\n"))
		w.apps["shop/cart-v1"].setBroken(http.StatusInternalServerError)
		defer w.apps["shop/cart-v1"].setBroken(0)
		w.sharesEventually(t, 30, "cart-v2", 30, 30)
	}},
	{"Rate limit", "A server accepts no more requests than its limit and answers the others with 429.", ofServer(mesh.FeatureRequestRateLimits), func(t *testing.T, w *testMesh) {
		w.get(t, "users/web", cartV2, ok)
		w.apply(t, "limit.yaml", upstream("cart-v2", "  rateLimit: {local: {http: {requests: 3, unit: hour}}}\n"))
		w.get(t, "users/web", cartV2, isStatus(http.StatusTooManyRequests))
	}},
	{"Rate limit of a path", "A limit of a path holds for requests to this path only.", ofServer(mesh.FeatureRequestRateLimits), func(t *testing.T, w *testMesh) {
		w.get(t, "users/web", cartV2+"/limited", ok)
		w.apply(t, "limit.yaml", upstream("cart-v2", "  httpRoutes: [{path: /cart/limited, rateLimit: {local: {requests: 3, unit: hour}}}]\n"))
		w.get(t, "users/web", cartV2+"/limited", isStatus(http.StatusTooManyRequests))
		for range 5 {
			w.get(t, "users/web", cartV2+"/other", isFrom("cart-v2"))
		}
	}},
	{"Connection rate limit", "A server accepts no more TCP connections than its limit and closes the others.", ofServer(mesh.FeatureConnectionRateLimits), func(t *testing.T, w *testMesh) {
		echo := func() (string, error) { return line(w.pod(t, "users/web"), "cart-v1.shop:9000", "echo\n") }
		w.eventually(t, func() error { _, err := echo(); return err })
		w.apply(t, "limit.yaml", upstream("cart-v1", "  rateLimit: {local: {tcp: {connections: 3, unit: hour}}}\n"))
		w.eventually(t, func() error {
			if got, err := echo(); err == nil || !isClosed(err) {
				return fmt.Errorf("%q, %v, want that the connection is closed", got, err)
			}
			return nil
		})
	}},
	{"Requests per connection", "A connection between two proxies carries no more requests than its service's limit.", ofClient(mesh.FeatureRequestsPerConnection), testRequestsPerConnection},
	{"One endpoint for one user", "Requests with the same value of a header go to the same endpoint, and different values are spread over all endpoints, also when a service gets its first and its second one.", ofClient(mesh.FeatureConsistentHash), testConsistentHash},
	{"Own zone first", "With zoneAware the client uses the endpoints of its own zone.", ofClient(mesh.FeatureZonePreference), func(t *testing.T, w *testMesh) {
		w.apply(t, "zone.yaml", upstream("cart", "  loadBalancing: {zoneAware: true}\n"))
		w.sharesEventually(t, 30, "cart-v1", 30, 30)
	}},
	{"A policy takes effect in under two seconds", "The client gets the first response that follows a changed policy in less than two seconds.", ofEvery, testSoon},
	{"Least surprise after a policy goes", "When a policy is deleted, the former behaviour returns.", ofEvery, func(t *testing.T, w *testMesh) {
		w.set(t, "moved.yaml", fmt.Sprintf(splitTemplate, 0, 100))
		w.get(t, "users/web", cart, isFrom("cart-v2"))
		w.forget(t, "moved.yaml")
		w.get(t, "users/web", cart, isFrom("cart-v1"))
	}},
}

// share sends the given number of requests for the cart and returns how many the pod
// answered.
func (w *testMesh) share(t *testing.T, times int, pod string) int {
	t.Helper()
	web := w.pod(t, "users/web")
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: web.Dial}}
	defer client.CloseIdleConnections()
	got := 0
	for range times {
		if r, err := w.sendBy(client, request{url: cart}); err == nil && r.Status == http.StatusOK && strings.EqualFold(r.Pod, pod) {
			got++
		}
	}
	return got
}

// sharesEventually waits until the pod answers at least and at most so many of the requests
// for the cart.
func (w *testMesh) sharesEventually(t *testing.T, times int, pod string, least, most int) {
	t.Helper()
	w.eventually(t, func() error {
		if got := w.share(t, times, pod); got < least || got > most {
			return fmt.Errorf("%s got %d of %d requests, want %d to %d", pod, got, times, least, most)
		}
		return nil
	})
}

// soon is the time limit for a changed policy to take effect for a client.
const soon = 2 * time.Second

// change is a file of the mesh with two contents in turn, and what a client gets with each.
type change struct {
	name, file, from, url string
	manifests             [2]string
	wants                 [2]func(reply) error
}

// testSoon changes the configuration of clients, and then the access rules of servers. Other
// programs of the machine may delay single tries, or all of some seconds: what counts is the
// median of the fastest of three attempts.
func testSoon(t *testing.T, w *testMesh) {
	thiefToo := trafficTarget("shop/thief-too", "cart-v2", "{kind: HTTPRouteGroup, name: cart}", "users/thief")
	const noTarget = "# nobody\n"
	isDenied := func(r reply) error {
		if r.Status < 400 {
			return fmt.Errorf("the answer is %d", r.Status)
		}
		return nil
	}
	for _, c := range []change{
		{"a split", "split.yaml", "users/web", cart,
			[2]string{fmt.Sprintf(splitTemplate, 0, 100), fmt.Sprintf(splitTemplate, 100, 0)}, [2]func(reply) error{isFrom("cart-v2"), isFrom("cart-v1")}},
		{"a permission", "target.yaml", "users/thief", cartV2,
			[2]string{thiefToo, noTarget}, [2]func(reply) error{isFrom("cart-v2"), isDenied}},
	} {
		w.apply(t, c.file, c.manifests[1])
		w.eventually(t, func() error { return w.obeys(t, c.from, c.url, c.wants[1]) })
		var attempts [][]time.Duration
		for range 3 {
			times := w.timesUntilObeyed(t, c)
			attempts = append(attempts, times)
			if median(times) < soon {
				break
			}
		}
		t.Logf("%s took effect in %v", c.name, attempts)
		if median(attempts[len(attempts)-1]) >= soon {
			t.Errorf("%s took effect in %v, want a median of less than %v", c.name, attempts, soon)
		}
	}
}

// timesUntilObeyed makes the change six times, to and fro, and returns how long each took until
// the first of ten consecutive answers that follow it. A proxy's processes or threads do not all
// change at the same time. The times are sorted.
func (w *testMesh) timesUntilObeyed(t *testing.T, c change) []time.Duration {
	t.Helper()
	var times []time.Duration
	for i := range 6 {
		begin := time.Now()
		w.set(t, c.file, c.manifests[i%2])
		var since time.Time
		inTurn := 0
		w.eventually(t, func() error {
			if err := w.obeys(t, c.from, c.url, c.wants[i%2]); err != nil {
				inTurn = 0
				return err
			}
			if inTurn++; inTurn == 1 {
				since = time.Now()
			}
			if inTurn < 10 {
				return fmt.Errorf("only %d consecutive answers follow the policy", inTurn)
			}
			return nil
		})
		times = append(times, since.Sub(begin).Round(time.Millisecond))
	}
	slices.Sort(times)
	return times
}

func median(sorted []time.Duration) time.Duration {
	return sorted[len(sorted)/2]
}

// obeys sends one request. A closed connection counts as a denial.
func (w *testMesh) obeys(t *testing.T, from, url string, want func(reply) error) error {
	r, err := w.send(w.pod(t, from), request{url: url, timeout: 2 * soon})
	if err != nil && isClosed(err) {
		r = reply{Status: http.StatusForbidden}
	} else if err != nil {
		return err
	}
	return want(r)
}

// testers routes requests with a header to cart-v2.
var testers = routeGroup("shop/testers", ` [{name: testers, headers: [{x-tester: "yes"}]}]`) + `---
apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: {name: testers, namespace: shop}
spec:
  service: cart
  matches: [{apiGroup: specs.smi-spec.io, kind: HTTPRouteGroup, name: testers}]
  backends: [{service: cart-v2, weight: 1}]
`

func testSplitByHeader(t *testing.T, w *testMesh) {
	w.apply(t, "testers.yaml", testers)
	tester := request{url: cart, header: http.Header{"X-Tester": {"yes"}}}
	w.inTurn(t, 10, "users/web", tester, isFrom("cart-v2"))
	w.get(t, "users/web", cart, isFrom("cart-v1"))
	w.ask(t, "users/web", request{url: cart, header: http.Header{"X-Tester": {"no"}}}, isFrom("cart-v1"))
}

// testConsistentHash gives a service without endpoints one, two, and then another one alone. With
// each change all users have an endpoint, the same one each time, and all endpoints have users.
// The service is called by itself and by a split, since nobody may call one without endpoints.
func testConsistentHash(t *testing.T, w *testMesh) {
	const hash = "  loadBalancing: {policy: RingHash, hashOn: [{header: x-user}]}\n"
	w.apply(t, "hash.yaml", upstream("ring", hash)+"---"+upstream("cart-v1", hash)+split("cart-v1", "{service: ring, weight: 1}"))
	for _, step := range []struct {
		selector string
		pods     []string
	}{
		{"app: nobody", nil}, {"app: cart, version: v1", []string{"cart-v1"}}, {"app: cart", []string{"cart-v1", "cart-v2"}}, {"app: cart, version: v2", []string{"cart-v2"}},
	} {
		urls := []string{cartV1, "http://ring.shop/cart"}
		w.apply(t, "ring.yaml", service("ring", "selector: {"+step.selector+"}, ports: [{name: http, port: 80, targetPort: 8080}]"))
		if step.pods == nil {
			w.get(t, "users/web", cartV1, isStatus(http.StatusServiceUnavailable))
			continue
		}
		w.eventually(t, func() error {
			pods := map[string]bool{}
			for user := range 16 {
				var first string
				for try := range 4 {
					r, err := w.send(w.pod(t, "users/web"), request{url: urls[try%2], header: http.Header{"X-User": {fmt.Sprint(user)}}})
					if err != nil || r.Status != http.StatusOK {
						return fmt.Errorf("%d, %v", r.Status, err)
					}
					if first = cmp.Or(first, r.Pod); r.Pod != first {
						return fmt.Errorf("a user is sent to %s and to %s", first, r.Pod)
					}
				}
				pods[first] = true
			}
			if got := slices.Sorted(maps.Keys(pods)); !slices.Equal(got, step.pods) {
				return fmt.Errorf("the users are sent to %v, want %v", got, step.pods)
			}
			return nil
		})
	}
}

// testRequestsPerConnection counts the connections to the server that carry data.
func testRequestsPerConnection(t *testing.T, w *testMesh) {
	const requests = 12
	// An idle connection of an earlier row may end meanwhile with a TLS close_notify
	// record of 24 bytes, which is not a request.
	const closeNotify = 24
	server := w.pod(t, "shop/cart-v2")
	connections := func() (int, error) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		frames, err := server.Capture(ctx)
		if err != nil {
			return 0, err
		}
		defer frames.Close()
		client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: w.pod(t, "users/web").Dial}}
		defer client.CloseIdleConnections()
		for range requests {
			if r, err := w.sendBy(client, request{url: cartV2}); err != nil || r.Status != http.StatusOK {
				return 0, fmt.Errorf("%d, %w", r.Status, err)
			}
		}
		from := map[netip.AddrPort]bool{}
		for _, f := range frames.Frames() {
			if s, ok := f.Segment(); ok && !f.Sent && s.To.Port() == 8080 && len(s.Payload) > closeNotify {
				from[s.From] = true
			}
		}
		return len(from), nil
	}
	before, err := connections()
	if err != nil {
		t.Fatal(err)
	}
	if before > requests/2 {
		t.Errorf("without a limit %d requests took %d connections", requests, before)
	}
	w.apply(t, "connections.yaml", upstream("cart-v2", "  connectionSettings: {http: {maxRequestsPerConnection: 1}}\n"))
	w.eventually(t, func() error {
		if n, err := connections(); err != nil || n < requests {
			return fmt.Errorf("%d requests took %d connections, %v", requests, n, err)
		}
		return nil
	})
}

// testLimitsOfZero sets each limit to 0, which must block the service, and removes it
// again.
func testLimitsOfZero(t *testing.T, w *testMesh) {
	set := func(limit string) {
		t.Helper()
		w.set(t, "zero.yaml", upstream("cart-v1", "  connectionSettings: {"+limit+"}\n"))
	}
	w.apply(t, "zero.yaml", upstream("cart-v1", ""))
	for _, limit := range []string{"http: {maxRequests: 0}", "http: {maxPendingRequests: 0}", "tcp: {maxConnections: 0}"} {
		set(limit)
		w.get(t, "users/web", cartV1, isStatus(http.StatusServiceUnavailable))
		set("")
		w.get(t, "users/web", cartV1, ok)
	}
	w.apply(t, "retry.yaml", retryOf("users", "cart-v1"))
	w.afterFailures(t, request{url: cartV1}, "times=2", ok)
	set("http: {maxRetries: 0}")
	w.afterFailures(t, request{url: cartV1}, "times=2", isStatus(http.StatusServiceUnavailable))
}

// testRetriesDisabled repeats requests until none is retried.
func testRetriesDisabled(t *testing.T, w *testMesh) {
	w.apply(t, "retry.yaml", retryOf("shop", "cart-v1"))
	w.configure(t, "", "")
	w.afterFailures(t, request{url: cartV1}, "times=2", ok)
	w.set(t, "mesh.yaml", strings.Replace(meshConfig("", ""), "enableRetryPolicy: true", "enableRetryPolicy: false", 1))
	w.afterFailures(t, request{url: cartV1}, "times=2", isStatus(http.StatusServiceUnavailable))
	w.expectProblem(t, "Retry shop/cart", "Disabled")
}

// retryOf returns a Retry in the namespace of the requests of users/web to a service.
func retryOf(namespace, service string) string {
	return fmt.Sprintf(`
apiVersion: policy.openservicemesh.io/v1alpha1
kind: Retry
metadata: {name: cart, namespace: %s}
spec:
  source: {kind: ServiceAccount, name: web, namespace: users}
  destinations: [{kind: Service, name: %s, namespace: shop}]
  retryPolicy: {retryOn: 5xx, numRetries: 4, retryBackoffBaseInterval: 10ms}
`, namespace, service)
}
